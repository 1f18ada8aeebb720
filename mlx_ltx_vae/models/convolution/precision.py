"""The precision of a convolution's operands on Apple GPUs.

MLX's Winograd kernels for Metal round their transforms to the operands' dtype. In an emulation of that rounding,
bfloat16 loses 2.7 to 6 % of a convolution's result, float16 0.35 to 0.8 %, and a bfloat16 convolution without Winograd
0.2 to 0.3 %. Operands behind a norm are therefore float16 in a bfloat16 network: same size, more digits, and their
range is known, because the norm bounds the length of every position's vector. Operands without such a bound stay
bfloat16 and avoid Winograd.
"""

import math

import mlx.core as mx

from ...backend.machine import Backend
from ...backend.mlx_utils import to_float

_HALF_MAX = 65504.0

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


def half_range(weight: mx.array) -> float:
    """The longest input vector with which no float16 convolution overflows; 0 if the weight (O, 3, 3, 3, I) does."""
    wide = weight.astype(mx.float32)
    if to_float(mx.abs(wide).max()) > _HALF_MAX:
        return 0.0
    lengths = mx.sqrt(mx.square(wide).sum(axis=-1))  # (O, D, H, W), of the vector that each tap multiplies
    direct = to_float(lengths.sum(axis=(1, 2, 3)).max())
    gains = mx.array([[gain * size for size in sizes] for gain, sizes in zip(_INPUT_GAINS, _FILTER_SIZES, strict=True)])
    products = to_float((gains @ lengths.sum(axis=1) @ gains.T).max())
    return _HALF_MAX / max(direct, products, max(_INPUT_GAINS) ** 2)


def operand_dtype(weight: mx.array, backend: Backend, norm_bound: float | None) -> tuple[mx.Dtype, float]:
    """The dtype of a convolution's operands and, if it is float16 in place of bfloat16, their greatest length."""
    if backend is not Backend.METAL or weight.dtype != mx.bfloat16 or norm_bound is None:
        return weight.dtype, math.inf
    longest = half_range(weight)
    return (mx.float16, longest) if norm_bound <= longest else (mx.bfloat16, math.inf)
