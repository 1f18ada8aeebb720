"""Winograd F(6x6, 3x3) as MLX's Metal kernels compute it, with their roundings.

A tile of 6x6 outputs takes 8x8 products. The input tiles, the filters and the products of both are transformed, each in
float32, and each result is rounded to the dtype of the operands when it is stored.
"""

from collections.abc import Callable

import mlx.core as mx
import numpy as np

#: Multiplies matrices: operands in their dtype, sums in float32, the result in the dtype of the operands.
Product = Callable[[mx.array, mx.array], mx.array]

_OUTPUTS, _TAPS = 6, 3
_INPUTS = _OUTPUTS + _TAPS - 1

# The polynomials of a tile and of a filter are multiplied by their values at seven points and at infinity.
_POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
# The factor of each filter value; the input value is divided by it.
_SCALES = np.array([1, -2 / 9, -2 / 9, 1 / 90, 1 / 90, 32 / 45, 32 / 45, 1])


def winograd_conv2d(x: mx.array, weight: mx.array, padding: tuple[int, int], product: Product) -> mx.array:
    """Convolve with a 3x3 kernel and a stride of one.

    Args:
        x: (N, H, W, C).
        weight: (O, 3, 3, C), in the dtype of `x`.
        padding: zeros at each end of the rows and of the columns.

    Returns:
        (N, H', W', O) in the dtype of `x`.
    """
    batch, out_channels = len(x), len(weight)
    height, width = (extent + 2 * pad - _TAPS + 1 for extent, pad in zip(x.shape[1:3], padding, strict=True))
    high, wide = -(-height // _OUTPUTS), -(-width // _OUTPUTS)
    inputs = _transform(_INPUT, _cut_tiles(x, high, wide, padding))
    filters = _transform(_FILTER, weight.transpose(1, 2, 3, 0))
    channels = x.shape[-1]
    products = product(inputs.reshape(_INPUTS**2, -1, channels), filters.reshape(_INPUTS**2, channels, out_channels))
    tiles = _transform(_OUTPUT, products).reshape(_OUTPUTS, _OUTPUTS, batch, high, wide, out_channels)
    picture = tiles.transpose(2, 3, 0, 4, 1, 5).reshape(batch, high * _OUTPUTS, wide * _OUTPUTS, out_channels)
    return picture[:, :height, :width]


def _values(degree: int) -> np.ndarray:
    """The matrix that evaluates a polynomial with `degree` coefficients at the points and at infinity: (8, degree)."""
    powers = np.array([[point**power for power in range(degree)] for point in _POINTS])
    return np.concatenate([powers, np.eye(degree)[-1:]])


def _two_dimensional(matrix: np.ndarray) -> mx.array:
    """The transform of rows and columns as one matrix."""
    return mx.array(np.kron(matrix, matrix).astype(np.float32))


# Multiples of 1/4, so rounding removes the error of the inversion.
_INPUT = _two_dimensional(np.round(4 * np.linalg.inv(_values(_INPUTS)).T / _SCALES[:, None]) / 4)
_FILTER = _two_dimensional(_SCALES[:, None] * _values(_TAPS))
_OUTPUT = _two_dimensional(_values(_OUTPUTS).T)


def _cut_tiles(x: mx.array, high: int, wide: int, padding: tuple[int, int]) -> mx.array:
    """Pad (N, H, W, C) with zeros and cut it into overlapping tiles: (8, 8, N, high, wide, C)."""
    batch, height, width, channels = x.shape
    rows, columns = _OUTPUTS * high + _TAPS - 1, _OUTPUTS * wide + _TAPS - 1
    (top, left), (bottom, right) = padding, (rows - height - padding[0], columns - width - padding[1])
    x = mx.pad(x, [(0, 0), (top, bottom), (left, right), (0, 0)])
    row, frame = columns * channels, rows * columns * channels
    return mx.as_strided(
        x,
        (_INPUTS, _INPUTS, batch, high, wide, channels),
        (row, channels, frame, _OUTPUTS * row, _OUTPUTS * channels, 1),
    )


def _transform(matrix: mx.array, x: mx.array) -> mx.array:
    """Transform rows and columns, the first axes, to one axis, and round to the dtype."""
    flat = x.astype(mx.float32).reshape(matrix.shape[1], -1)
    return _matmul(matrix, flat).astype(x.dtype)


_matmul = mx.matmul  # not the emulated one
