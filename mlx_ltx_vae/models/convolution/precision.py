"""The precision of a convolution's operands on Apple GPUs.

MLX's Winograd kernels for Metal round their transforms to the operands' dtype. In an emulation of that rounding,
bfloat16 loses 2.7 to 6 % of a convolution's result, float16 0.35 to 0.8 %, and a bfloat16 convolution without Winograd
0.2 to 0.3 %. The operands of a bfloat16 network are therefore float16: same size, more digits, and less range.

Behind a norm the range is known, because the norm bounds the length of every position's vector. Other inputs are
multiplied by a power of two, which the device computes from their largest magnitude, and the result is divided by it in
float32. The factor belongs to an output frame and depends on the frames that it sees, so that a stream by time has the
same factors however it is cut. Along rows and columns a piece has a part of each frame, and may have another factor. A
power of two changes exponents only: the result has the same bits for any factor, unless values become smaller than
float16's normal numbers. In the emulation that begins with factors less than 2^-4 of the one chosen here. Factors are
powers of 16, so that parts of a picture usually have the same one.
"""

import math
from functools import partial, reduce
from typing import NamedTuple

import mlx.core as mx

from ...backend.mlx_utils import to_float
from .rules import TAPS

_HALF_MAX = 65504.0
_NORM_MARGIN = 4  # of the length of an input behind a norm, for a timestep's modulation

# A float32 number is 2^(e - 127) times its mantissa, of 23 bits.
_MANTISSA_BITS, _EXPONENT_BIAS, _EXPONENT_MASK = 23, 127, 0xFF
_FACTOR_STEP = 4  # factors are powers of 2^4
_LARGEST_SHIFT = 120  # so that a factor and its inverse are normal numbers

# The transforms of Winograd F(6x6, 3x3), for each of the eight points of one axis, six of them in pairs: the sum of the
# sizes of the input transform's coefficients, and the sizes of the filter transform's three coefficients.
_INPUT_GAINS = (12.5, 12.5, 12.5, 7.5, 7.5, 15.0, 15.0, 12.5)
_FILTER_SIZES = (
    (1.0, 0.0, 0.0),
    *[(2 / 9, 2 / 9, 2 / 9)] * 2,
    *[(1 / 90, 1 / 45, 2 / 45)] * 2,
    *[(32 / 45, 16 / 45, 8 / 45)] * 2,
    (0.0, 0.0, 1.0),
)


class HalfScale(NamedTuple):
    """How a convolution is scaled for float16.

    Attributes:
        factor: of the weight, (1,) float32, a power of two.
        inverse: by which a result is multiplied.
        longest: the length of the longest input vector with which no convolution overflows.
    """

    factor: mx.array
    inverse: mx.array
    longest: float


def half_scale(weight: mx.array) -> HalfScale:
    """What makes a weight (O, 3, 3, 3, I) as large as inputs behind a norm allow.

    Winograd's transforms make some weights 8100 times smaller, below float16's normal range if nothing is done.
    """
    lengths = _tap_lengths(weight)
    direct = to_float(lengths.sum(axis=(1, 2, 3)).max())
    gains = mx.array([[gain * size for size in sizes] for gain, sizes in zip(_INPUT_GAINS, _FILTER_SIZES, strict=True)])
    products = to_float((gains @ lengths.sum(axis=1) @ gains.T).max())
    largest = max(direct, products)  # of the results for inputs of length 1
    longest = _HALF_MAX / max(_INPUT_GAINS) ** 2  # that can be transformed
    shift = 0
    if 0 < largest < math.inf:
        shift = math.floor(math.log2(_HALF_MAX / (largest * _NORM_MARGIN * math.sqrt(weight.shape[-1]))))
        longest = min(longest, _HALF_MAX / math.ldexp(largest, shift))
    return HalfScale(mx.array([2.0**shift]), mx.array([2.0**-shift]), longest)


def _tap_lengths(weight: mx.array) -> mx.array:
    """(O, D, H, W), of the vector that each tap multiplies; tap by tap, since float32 takes twice the memory."""
    lengths = []
    for tap in range(TAPS**3):
        depth, row, column = tap // TAPS**2, tap // TAPS % TAPS, tap % TAPS
        lengths.append(mx.sqrt(mx.square(weight[:, depth, row, column].astype(mx.float32)).sum(axis=-1)))
        mx.eval(lengths)
    return mx.stack(lengths, axis=1).reshape(-1, TAPS, TAPS, TAPS)


def scale_factors(frames: mx.array, scale: HalfScale) -> tuple[mx.array, mx.array]:
    """For each output frame the factor with which no vector that it sees is too long, and what undoes all scaling.

    (B, T + 2, H, W, C) to (B, T, 1, 1, 1) twice, in float32, powers of two. Nothing is read back from the device.
    """
    axes = (2, 3, 4)
    largest = mx.maximum(frames.max(axis=axes, keepdims=True), -frames.min(axis=axes, keepdims=True))
    time = frames.shape[1] - TAPS + 1
    largest = reduce(mx.maximum, (largest[:, tap : tap + time] for tap in range(TAPS)))
    exponents = (largest.astype(mx.float32).view(mx.int32) >> _MANTISSA_BITS) & _EXPONENT_MASK
    # largest < 2^(exponents - bias + 1), and a vector is at most sqrt(C) times as long as its largest element.
    limit = math.floor(math.log2(scale.longest / math.sqrt(frames.shape[-1]))) - 1 + _EXPONENT_BIAS
    shift = (limit - exponents) & -_FACTOR_STEP  # rounded down to a multiple
    shift = mx.clip(shift, -_LARGEST_SHIFT, _LARGEST_SHIFT)
    factor, inverse = (((_EXPONENT_BIAS + each) << _MANTISSA_BITS).view(mx.float32) for each in (shift, -shift))
    return factor, inverse * scale.inverse


@partial(mx.compile, shapeless=True)
def scale_to_half(array: mx.array, factor: mx.array) -> mx.array:
    """`array * factor` in float16, rounded once."""
    return (array.astype(mx.float32) * factor).astype(mx.float16)
