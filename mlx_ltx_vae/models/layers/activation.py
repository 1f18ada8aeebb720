"""What a convolution's input goes through: norm, modulation by a timestep, SiLU.

On a GPU SiLU is one kernel. MLX's CPU backend for x86 computes exponentials one by one (16 ns each here, so that SiLU
took a third of a decode's time), so there the exponential is a series of multiplications, which a compiler turns into
vector instructions.
"""

import math
from functools import partial
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn

from .backend import on_cpu

_TERMS = 6  # of the series
_HALVINGS = 4  # of x, so that few terms do


class Modulation(NamedTuple):
    """Shift and scale of one norm, each (B, 1, 1, 1, C) in float32."""

    shift: mx.array
    scale: mx.array


def activate(x: mx.array, norm: nn.Module, modulation: Modulation | None = None) -> mx.array:
    """Norm, modulation (shift + x * (1 + scale)) and SiLU: what stands before every convolution but the first."""
    x = norm(x)
    if modulation is not None:
        x = (x * (1 + modulation.scale) + modulation.shift).astype(x.dtype)
    return silu(x)


def silu(x: mx.array) -> mx.array:
    """x * sigmoid(x), in the dtype of `x`."""
    return _on_cpu(x) if on_cpu() else _on_gpu(x)


@partial(mx.compile, shapeless=True)
def _on_gpu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def _on_cpu(x: mx.array) -> mx.array:
    """max(x, 0) - |x| / (1 + exp(|x|)), where exp(|x|) - 1 is Taylor's series at |x| / 16, squared four times.

    Of |x| an exponential that is too large for float32 leaves the right result, so nothing has to be clipped, and
    without the 1 little is lost by rounding: the largest error is 1e-6, where that of MLX's own is 1.4e-6. Two kernels,
    since MLX fuses no more than 11 operations in depth, and what it cuts off is no longer read as it lies.
    """
    return _subtract(x, _series(x))


# Compiled for each shape: a kernel for all shapes does not take memory as it lies, and four times as long.
@mx.compile
def _series(x: mx.array) -> mx.array:
    """exp(|x| / 8) - 1 in float32."""
    x = mx.abs(x.astype(mx.float32))
    square = x * x
    c1, c2, c3, c4, c5, c6 = (0.5 ** (_HALVINGS * term) / math.factorial(term) for term in range(1, _TERMS + 1))
    power = x * (c1 + c2 * x + square * (c3 + c4 * x + square * (c5 + c6 * x)))
    return power * (2 + power)


@mx.compile
def _subtract(x: mx.array, power: mx.array) -> mx.array:
    """`_on_cpu`, given what `_series` gave: squared twice more here, and once without taking the 1 away."""
    for _ in range(_HALVINGS - 2):
        power = power * (2 + power)
    root = 1 + power
    wide = x.astype(mx.float32)
    size = mx.abs(wide)
    return (0.5 * wide + 0.5 * size - size / (1 + root * root)).astype(x.dtype)
