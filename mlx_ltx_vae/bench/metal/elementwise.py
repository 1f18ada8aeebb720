"""What runs between the convolutions, as a speed of memory. Part D."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from ...models.convolution.module import add_bias
from ...models.convolution.rules import TAPS
from ...models.layers.activation import activate, silu
from ...models.layers.norm import PIXEL_NORM_EPS, PixelNorm
from ..case import Case
from .convolutions import seconds_of

_ROUNDS, _CALLS = 5, 10


class _Operation(NamedTuple):
    """An operation, whether the package uses it, and how many arrays of the input's size it reads and writes."""

    name: str
    is_ours: bool
    call: Callable[[], mx.array]
    arrays: int


def elementwise(case: Case, *, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Time the operations between convolutions in bfloat16.

    Args:
        case: not used.
        shapes: of inputs, (T, H, W, C).

    Returns:
        runs: for each shape and operation shape, operation, is_ours (else another way to compute the one before it),
        seconds, and gb_per_second of the bytes that it must read and write.
    """
    runs = []
    for shape in shapes:
        x = mx.random.normal((1, *shape), key=mx.random.key(0)).astype(mx.bfloat16)
        mx.eval(x)
        for operation in _operations(x):
            mx.eval(operation.call())
            seconds = statistics.median(seconds_of(operation.call, _CALLS) / _CALLS for _ in range(_ROUNDS))
            runs.append(
                {
                    "shape": list(shape),
                    "operation": operation.name,
                    "is_ours": operation.is_ours,
                    "seconds": seconds,
                    "gb_per_second": operation.arrays * x.nbytes / seconds / 1e9,
                }
            )
    return {"runs": runs}


def _operations(x: mx.array) -> list[_Operation]:
    bias = mx.zeros((x.shape[-1],), x.dtype)
    norm = PixelNorm()
    frames = mx.concatenate([x, *[x[:, :1]] * (TAPS - 1)], axis=1)
    mx.eval(bias, frames)
    time = x.shape[1]
    return [
        _Operation("copy (x * 2)", True, lambda: x * 2, 2),
        _Operation("norm", True, lambda: norm(x), 2),
        _Operation("norm in plain operations", False, lambda: _plain_norm(x), 2),
        _Operation("SiLU, float32 inside", True, lambda: silu(x), 2),
        _Operation("SiLU, bfloat16 inside", False, lambda: _plain_silu(x), 2),
        _Operation("norm and SiLU to float16", True, lambda: activate(x, norm, None, mx.float16), 4),
        _Operation("bias and skip", True, lambda: add_bias(x, bias, x), 3),
        _Operation("bias and skip in two sums", False, lambda: x + bias + x, 3),
        _Operation(
            "join three frames",
            True,
            lambda: mx.concatenate([frames[:, tap : tap + time] for tap in range(TAPS)], axis=-1),
            2 * TAPS,
        ),
    ]


def _plain_norm(x: mx.array) -> mx.array:
    wide = x.astype(mx.float32)
    return (wide * mx.rsqrt(mx.square(wide).mean(axis=-1, keepdims=True) + PIXEL_NORM_EPS)).astype(x.dtype)


@mx.compile
def _plain_silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)
