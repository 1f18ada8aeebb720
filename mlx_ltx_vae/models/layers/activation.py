"""Norm, timestep modulation and SiLU, which precede a layer's convolution.

On a GPU, SiLU is a single kernel. MLX's CPU backend for x86 computes exponentials one at a time (measured at 16 ns
each, a third of the decode time). On the CPU the exponential is therefore a series of multiplications, which the
compiler vectorizes.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import mlx.core as mx

from ...backend.device import is_cpu
from ...backend.mlx_utils import to_float

PIXEL_NORM_EPS = 1e-8
_LANES = 16
_TERMS = 6  # of the series of an exponential, for arguments up to 1/4
_HALVINGS = 4  # times that x is halved, so that few terms suffice


class Modulation(NamedTuple):
    """Shift and scale of one norm, each (B, 1, 1, 1, C) in float32."""

    shift: mx.array
    scale: mx.array


def read_modulations(table: mx.array, embedding: mx.array) -> list[Modulation]:
    """The n modulations of a layer: its learned table (2n, C), rows shift, scale, ..., plus an embedding (B, 2n*C)."""
    rows = table.astype(mx.float32)[None] + embedding.reshape(embedding.shape[0], *table.shape)
    values = [rows[:, row, None, None, None, :] for row in range(table.shape[0])]
    return [Modulation(shift, scale) for shift, scale in zip(values[::2], values[1::2], strict=True)]


def norm_bound(channels: int, modulation: Modulation | None) -> float:
    """The length that no position's vector exceeds after norm, modulation and SiLU. Evaluates the modulation."""
    bound = math.sqrt(channels)
    if modulation is None:
        return bound
    scale = mx.abs(1 + modulation.scale.astype(mx.float32)).max()
    shift = mx.sqrt(mx.square(modulation.shift.astype(mx.float32)).sum(axis=-1)).max()
    return to_float(scale * bound + shift)


def inverse_rms(x: mx.array, eps: float = PIXEL_NORM_EPS) -> mx.array:
    """1 / sqrt(mean(x^2) + eps) over the channels of each position (..., C): (..., 1) in float32."""
    channels = x.shape[-1]
    if not is_cpu():
        return mx.rsqrt(_squares(x).sum(axis=-1, keepdims=True) / channels + eps)
    # Summed in two steps, the first one vectorized: MLX's CPU backend reduces the last axis one element at
    # a time. A matrix product would be faster, but its rounding depends on the length of the piece.
    squares = mx.square(x.astype(mx.float32)).reshape(*x.shape[:-1], -1, math.gcd(channels, _LANES))
    return mx.rsqrt(squares.sum(axis=-2).sum(axis=-1, keepdims=True) / channels + eps)


def pixel_norm(x: mx.array, eps: float = PIXEL_NORM_EPS) -> mx.array:
    """RMS norm over the channels of each position (..., C), without weights, computed in float32."""
    if not is_cpu():
        return mx.fast.rms_norm(x, None, eps)
    return (x.astype(mx.float32) * inverse_rms(x, eps)).astype(x.dtype)


@partial(mx.compile, shapeless=True)
def _squares(x: mx.array) -> mx.array:
    return mx.square(x.astype(mx.float32))


def activate(x: mx.array, modulation: Modulation | None = None, dtype: mx.Dtype | None = None) -> mx.array:
    """Apply the norm, the modulation (shift + x * (1 + scale)) and SiLU; in `dtype`, or in the dtype of `x`."""
    target = dtype or x.dtype
    x = pixel_norm(x)
    if modulation is not None:
        x = x * (1 + modulation.scale) + modulation.shift
    return silu(x, target)


def silu(x: mx.array, dtype: mx.Dtype | None = None) -> mx.array:
    """x * sigmoid(x), computed in float32; in `dtype`, or in the dtype of `x`."""
    target = dtype or x.dtype
    return _subtract(x, _series(x)).astype(target) if is_cpu() else _SILU_KERNELS[target](x)


def gated_silu(x: mx.array, other: mx.array) -> mx.array:
    """silu(x) * other, computed in float32; in the dtype of `x`."""
    return _subtract_gated(x, _series(x), other) if is_cpu() else _gated_kernel(x, other)


def expm1_series(x: mx.array, halvings: int) -> mx.array:
    """exp(x / 2^halvings) - 1 as a series of multiplications, for compiled functions; of x / 2^halvings up to 1/4."""
    c1, c2, c3, c4, c5, c6 = (0.5 ** (halvings * term) / math.factorial(term) for term in range(1, _TERMS + 1))
    square = x * x
    return x * (c1 + c2 * x + square * (c3 + c4 * x + square * (c5 + c6 * x)))


def _silu_kernel(dtype: mx.Dtype) -> Callable[[mx.array], mx.array]:
    """A single kernel: MLX rounds every operation in it to its dtype, which therefore is float32."""

    def compute(x: mx.array) -> mx.array:
        wide = x.astype(mx.float32)
        return (wide * mx.sigmoid(wide)).astype(dtype)

    return mx.compile(compute, shapeless=True)


_SILU_KERNELS = {dtype: _silu_kernel(dtype) for dtype in (mx.float32, mx.bfloat16, mx.float16)}


@partial(mx.compile, shapeless=True)
def _gated_kernel(x: mx.array, other: mx.array) -> mx.array:
    wide = x.astype(mx.float32)
    return (wide * mx.sigmoid(wide) * other.astype(mx.float32)).astype(x.dtype)


# On a CPU, SiLU is max(x, 0) - |x| / (1 + exp(|x|)), where exp(|x|) - 1 is the Taylor series at |x| / 16, squared four
# times. With |x|, it is correct even if the exponential overflows float32, so no clipping is needed. Subtracting the 1
# keeps the rounding error small: at most 1e-6, against 1.4e-6 for MLX's own SiLU. There are two kernels because MLX
# fuses at most 11 operations in depth, and the kernel that it splits off no longer reads contiguous memory.
# Not `shapeless`: a shapeless kernel assumes non-contiguous input and is 4x slower.
@mx.compile
def _series(x: mx.array) -> mx.array:
    """exp(|x| / 8) - 1 in float32."""
    power = expm1_series(mx.abs(x.astype(mx.float32)), _HALVINGS)
    return power * (2 + power)


@mx.compile
def _subtract(x: mx.array, power: mx.array) -> mx.array:
    return _silu_of(x, power).astype(x.dtype)


@mx.compile
def _subtract_gated(x: mx.array, power: mx.array, other: mx.array) -> mx.array:
    return (_silu_of(x, power) * other.astype(mx.float32)).astype(x.dtype)


def _silu_of(x: mx.array, power: mx.array) -> mx.array:
    """SiLU in float32 from the result of `_series`, squared twice more here and once without subtracting the 1."""
    for _ in range(_HALVINGS - 2):
        power = power * (2 + power)
    root = 1 + power
    wide = x.astype(mx.float32)
    size = mx.abs(wide)
    return 0.5 * wide + 0.5 * size - size / (1 + root * root)
