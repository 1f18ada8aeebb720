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

_TERMS = 6
_HALVINGS = 5  # of x, so that few terms do
_FAR_OUT = 80.0  # beyond it SiLU is x or 0, and exp(80) is still a float32


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
    return _on_gpu(x) if mx.default_device() == mx.Device(mx.gpu) else _on_cpu(x)


@partial(mx.compile, shapeless=True)
def _on_gpu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def _on_cpu(x: mx.array) -> mx.array:
    """x / (1 + exp(-x)), where exp(-x) - 1 is Taylor's series at x / -32, squared five times.

    Without the 1 little is lost by rounding: the largest error is 2.5e-6, where that of MLX's own sigmoid is 1.4e-6.
    Three kernels, since one would be too long for MLX to fuse, and what it cuts that into keeps more alive.
    """
    return _divide(x, _undo_halvings(_series(x)))


# Compiled for each shape: a kernel for all shapes does not take memory as it lies, and four times as long.
@mx.compile
def _series(x: mx.array) -> mx.array:
    """exp(-x / 32) - 1 in float32."""
    x = mx.clip(x.astype(mx.float32), -_FAR_OUT, _FAR_OUT)
    highest, *others = [(-(0.5**_HALVINGS)) ** term / math.factorial(term) for term in range(_TERMS, 0, -1)]
    power = highest
    for coefficient in others:
        power = power * x + coefficient
    return power * x


@mx.compile
def _undo_halvings(power: mx.array) -> mx.array:
    """(1 + power)**32 - 1"""
    for _ in range(_HALVINGS):
        power = power * (2 + power)
    return power


@mx.compile
def _divide(x: mx.array, power: mx.array) -> mx.array:
    return (x.astype(mx.float32) / (2 + power)).astype(x.dtype)
