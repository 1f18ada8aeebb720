"""Norm, modulation by a timestep and SiLU: what stands between the input of a layer and its convolution.

On a GPU SiLU is one kernel. MLX's CPU backend for x86 computes exponentials one at a time (16 ns each on the machine
where that was measured, a third of a decode's time), so there the exponential is a series of multiplications, which a
compiler turns into vector instructions.
"""

import math
from functools import partial
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn

from ...device import is_cpu

_TERMS = 6  # of the series
_HALVINGS = 4  # of x, so that few terms suffice


class Modulation(NamedTuple):
    """Shift and scale of one norm, each (B, 1, 1, 1, C) in float32."""

    shift: mx.array
    scale: mx.array


def read_modulations(table: mx.array, embedding: mx.array) -> list[Modulation]:
    """The modulations of a layer: its learned table (2n, C), rows shift, scale, shift, scale, ..., plus the embedding.

    Args:
        table: (2n, C).
        embedding: (B, 2n * C), of a timestep.
    """
    rows = table.astype(mx.float32)[None] + embedding.reshape(embedding.shape[0], *table.shape)
    values = [rows[:, row, None, None, None, :] for row in range(table.shape[0])]
    return [Modulation(shift, scale) for shift, scale in zip(values[::2], values[1::2], strict=True)]


def activate(x: mx.array, norm: nn.Module, modulation: Modulation | None = None) -> mx.array:
    """Norm, modulation (shift + x * (1 + scale)) and SiLU."""
    x = norm(x)
    if modulation is not None:
        x = (x * (1 + modulation.scale) + modulation.shift).astype(x.dtype)
    return silu(x)


def silu(x: mx.array) -> mx.array:
    """x * sigmoid(x), in the dtype of `x`."""
    return _silu_on_cpu(x) if is_cpu() else _silu_on_gpu(x)


@partial(mx.compile, shapeless=True)
def _silu_on_gpu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def _silu_on_cpu(x: mx.array) -> mx.array:
    """max(x, 0) - |x| / (1 + exp(|x|)), where exp(|x|) - 1 is Taylor's series at |x| / 16, squared four times.

    With |x|, an exponential that overflows float32 still gives the right result, so nothing has to be clipped; without
    the 1, little is lost to rounding: the largest error is 1e-6, that of MLX's own is 1.4e-6. Two kernels, since MLX
    fuses at most 11 operations in depth, and what it splits off no longer reads contiguous memory.
    """
    return _subtract(x, _series(x))


# Not `shapeless`: a shapeless kernel assumes non-contiguous input and is 4x slower.
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
    """`_silu_on_cpu`, given the result of `_series`: squared twice more here, and once without subtracting the 1."""
    for _ in range(_HALVINGS - 2):
        power = power * (2 + power)
    root = 1 + power
    wide = x.astype(mx.float32)
    size = mx.abs(wide)
    return (0.5 * wide + 0.5 * size - size / (1 + root * root)).astype(x.dtype)
