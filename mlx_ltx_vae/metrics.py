"""How far two results are apart."""

import math

import mlx.core as mx

from .backend.mlx_utils import to_float


def psnr(one: mx.array, other: mx.array, *, span: float = 2.0) -> float:
    """The peak signal-to-noise ratio of two arrays of one shape, in dB; infinite if they are equal.

    `span` is the distance between black and white: 2 for pixels in [-1, 1], 255 for uint8.
    """
    error = rms(one.astype(mx.float32) - other.astype(mx.float32))
    return math.inf if error == 0 else 20 * math.log10(span / error)


def rms(array: mx.array) -> float:
    """The root mean square of a float32 array."""
    return to_float(mx.sqrt(mx.square(array).mean()))


def max_difference(one: mx.array, other: mx.array) -> float:
    """The largest absolute difference of two arrays of one shape."""
    return to_float(mx.abs(one.astype(mx.float32) - other.astype(mx.float32)).max())
