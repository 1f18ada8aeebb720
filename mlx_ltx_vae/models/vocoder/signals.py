"""Operations on signals (B, T, C): convolutions as one matrix product, and short filters that all channels share."""

import math
from functools import partial

import mlx.core as mx
import numpy as np

from ...backend.device import is_cpu
from .specs import FILTER_BLOCK

_PI_HIGH = 3.140625  # few bits, so that multiples are exact
_PI_LOW = math.pi - _PI_HIGH


def convolve(x: mx.array, weight: mx.array, bias: mx.array | None, *, dilation: int = 1) -> mx.array:
    """A convolution without padding: (B, T, I) with (O, K, I) to (B, T - dilation * (K-1), O).

    As one product of unfolded positions, since MLX's CPU backend has no fast convolution with a dilation.
    """
    out_channels, taps, in_channels = weight.shape
    batch, length, _ = x.shape
    results = length - dilation * (taps - 1)
    strides = (length * in_channels, in_channels, dilation * in_channels, 1)
    unfolded = mx.as_strided(mx.contiguous(x), (batch, results, taps, in_channels), strides)
    unfolded = unfolded.reshape(batch, results, taps * in_channels)
    matrix = weight.reshape(out_channels, -1).T
    return unfolded @ matrix if bias is None else mx.addmm(bias, unfolded, matrix)


class Filter:
    """A filter that all channels share: `phases` outputs for every `stride` positions, of `taps` (phases, K) each.

    It is computed in blocks of outputs, each a product with a matrix that has the taps along its diagonals.
    """

    def __init__(self, taps: np.ndarray, *, stride: int = 1) -> None:
        self._phases, self._kernel = taps.shape
        self._stride = stride
        matrix = np.zeros((FILTER_BLOCK, self._phases, (FILTER_BLOCK - 1) * stride + self._kernel), np.float32)
        for index in range(FILTER_BLOCK):
            matrix[index, :, index * stride : index * stride + self._kernel] = taps
        self._matrix = mx.array(matrix.reshape(FILTER_BLOCK * self._phases, -1))

    def __call__(self, x: mx.array) -> mx.array:
        """(B, T, C) to (B, phases * (1 + (T - K) // stride), C)."""
        batch, length, channels = x.shape
        results = 1 + (length - self._kernel) // self._stride
        blocks = -(-results // FILTER_BLOCK)
        seen = self._matrix.shape[1]
        missing = (blocks - 1) * FILTER_BLOCK * self._stride + seen - length
        x = mx.pad(x, [(0, 0), (0, missing), (0, 0)]) if missing > 0 else mx.contiguous(x)
        strides = (x.shape[1] * channels, FILTER_BLOCK * self._stride * channels, channels, 1)
        windows = mx.as_strided(x, (batch, blocks, seen, channels), strides)
        return (self._matrix @ windows).reshape(batch, -1, channels)[:, : results * self._phases]


def snake(x: mx.array, frequency: mx.array, amplitude: mx.array) -> mx.array:
    """x + amplitude * sin(frequency * x)^2."""
    if not is_cpu():
        return _snake_kernel(x, frequency, amplitude)
    return _add_square(x, _reduce(x, frequency), amplitude)


@partial(mx.compile, shapeless=True)
def _snake_kernel(x: mx.array, frequency: mx.array, amplitude: mx.array) -> mx.array:
    sine = mx.sin(x * frequency)
    return x + amplitude * (sine * sine)


# MLX's CPU backend computes sines one at a time (16 ns each). Here, the angle is reduced to half a period of the
# square, and the sine is its Taylor series, which the compiler vectorizes: a sixth of the time, with the same rounding
# error. Not `shapeless`, and two kernels, for the reasons that `layers/activation.py` has.
@mx.compile
def _reduce(x: mx.array, frequency: mx.array) -> mx.array:
    """frequency * x less a multiple of pi, between -pi/2 and pi/2."""
    angle = x * frequency
    periods = mx.round(angle * (1 / math.pi))
    return (angle - periods * _PI_HIGH) - periods * _PI_LOW


@mx.compile
def _add_square(x: mx.array, angle: mx.array, amplitude: mx.array) -> mx.array:
    square = angle * angle
    c1, c2, c3, c4, c5 = ((-1) ** term / math.factorial(2 * term + 1) for term in range(1, 6))
    ratio = 1 + square * (c1 + square * (c2 + square * (c3 + square * (c4 + square * c5))))  # of sine to angle
    return x + amplitude * (square * (ratio * ratio))


def repeat_ends(x: mx.array, before: int, after: int) -> mx.array:
    """(B, T, C) with its first and its last position repeated."""
    parts = [mx.repeat(x[:, :1], before, axis=1)] if before else []
    parts.append(x)
    parts += [mx.repeat(x[:, -1:], after, axis=1)] if after else []
    return mx.concatenate(parts, axis=1) if len(parts) > 1 else x


def as_signal(frames: mx.array) -> mx.array:
    """(B, T, 1, 1, C) to (B, T, C)."""
    return frames[:, :, 0, 0]


def as_frames(signal: mx.array) -> mx.array:
    """(B, T, C) to (B, T, 1, 1, C)."""
    return signal[:, :, None, None]
