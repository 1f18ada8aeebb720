"""Exponentials of bounded scores for the CPU, where MLX's own take most of an attention's time.

MLX's CPU backend for x86 computes exponentials one at a time. Here exp(x) is a Taylor series at x / 2^n, squared n
times, which the compiler vectorizes.
"""

from collections.abc import Callable
from functools import lru_cache

import mlx.core as mx

from ..layers.activation import expm1_series

#: No score may be larger in magnitude: sums of thousands of exponentials then stay within float32.
LARGEST_SCORE = 60.0

_FEW_SQUARINGS, _SQUARINGS = 4, 6  # two kinds only, since a compiler makes each kernel when it is first used
_DOUBLINGS = 2  # of exp - 1, up to arguments of 1: with the 1, each squaring would double the error


def exponentials(scores: mx.array, bound: float) -> mx.array:
    """exp(scores), for scores of magnitude at most `bound`, which is at most `LARGEST_SCORE`."""
    squarings = _FEW_SQUARINGS if bound <= 2**_FEW_SQUARINGS else _SQUARINGS
    return _squared(squarings)(_series(squarings + _DOUBLINGS)(scores))


# Two kernels, because MLX fuses at most 11 operations in depth.
@lru_cache
def _series(halvings: int) -> Callable[[mx.array], mx.array]:
    return mx.compile(lambda x: expm1_series(x, halvings))


@lru_cache
def _squared(squarings: int) -> Callable[[mx.array], mx.array]:
    def compute(power: mx.array) -> mx.array:
        for _ in range(_DOUBLINGS):
            power = power * (2 + power)
        result = 1 + power
        for _ in range(squarings):
            result = result * result
        return result

    return mx.compile(compute)
