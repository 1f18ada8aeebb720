"""The floor under a decode: its convolutions and nothing else."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx


@dataclass(frozen=True)
class Convolution:
    """One call of `mx.conv3d`, by its shapes."""

    frames: tuple[int, ...]
    weight: tuple[int, ...]
    dtype: mx.Dtype
    options: tuple[tuple[str, Any], ...]


def record_convolutions(decode: Callable[[], object]) -> list[Convolution]:
    """Every convolution of a decode, in order."""
    seen: list[Convolution] = []
    with _watched(seen.append):
        decode()
    return seen


def run_bare(convolutions: list[Convolution]) -> float:
    """Seconds that the convolutions take by themselves, evaluated one by one as a stream does."""
    arrays = {}
    for each in convolutions:
        for shape in (each.frames, each.weight):
            arrays[shape, each.dtype] = mx.random.normal(shape).astype(each.dtype)
    mx.eval(list(arrays.values()))
    start = time.perf_counter()
    for each in convolutions:
        frames, weight = arrays[each.frames, each.dtype], arrays[each.weight, each.dtype]
        mx.eval(mx.conv3d(frames, weight, **dict(each.options)))
    return time.perf_counter() - start


@contextmanager
def _watched(see: Callable[[Convolution], None]) -> Iterator[None]:
    conv3d = mx.conv3d

    def watch(frames: mx.array, weight: mx.array, **options: Any) -> mx.array:
        see(Convolution(frames.shape, weight.shape, frames.dtype, tuple(options.items())))
        return conv3d(frames, weight, **options)

    mx.conv3d = watch
    try:
        yield
    finally:
        mx.conv3d = conv3d
