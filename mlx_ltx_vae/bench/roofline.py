"""The floor under a decode, its convolutions and nothing else, and what there is besides: `bench --roofline`."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from .case import Case
from .counts import Counts, count_chunks
from .processes import Run
from .subject import Decode
from .tables import aligned

_GIGA = 1e9


@dataclass(frozen=True)
class Convolution:
    """One call of `mx.conv3d`, by its shapes.

    Attributes:
        frames: what enters, (B, T, H, W, I).
        weight: the kernel, (O, t, h, w, I).
        results: what comes out, (B, T', H', W', O).
        dtype: of all of them.
        options: that it was called with.
    """

    frames: tuple[int, ...]
    weight: tuple[int, ...]
    results: tuple[int, ...]
    dtype: mx.Dtype
    options: tuple[tuple[str, Any], ...]

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * math.prod(self.results) * math.prod(self.weight[1:])


def roofline(case: Case) -> dict[str, Any]:
    """Decode, the bare convolutions and all the rest in turns, `case.rounds` times, once the first decode has been.

    Returns:
        order, seconds (of each decode), floor_seconds (of each floor), rest_seconds (of each decode without its
        convolutions), convolutions, gflop, chunks, and counts (per chunk in the middle third of the clip).
    """
    subject = Decode.of(case)
    chunks: list[Counts] = []
    convolutions = record_convolutions(lambda: chunks.extend(count_chunks(subject.run())))
    seconds, floors, rests = [], [], []
    for _ in range(case.rounds):
        seconds.append(_seconds(subject))
        floors.append(run_bare(convolutions, subject.plan.steps_ahead))
        with _without(convolutions):
            rests.append(_seconds(subject))
    chunks.pop()  # what comes after the last one
    return {
        "order": subject.plan.order.value,
        "seconds": seconds,
        "floor_seconds": floors,
        "rest_seconds": rests,
        "convolutions": len(convolutions),
        "gflop": sum(each.operations for each in convolutions) / _GIGA,
        "chunks": len(chunks),
        "counts": _in_the_middle(chunks),
    }


def record_convolutions(decode: Callable[[], object]) -> list[Convolution]:
    """Every convolution of a decode, in order."""
    seen: list[Convolution] = []
    with _watched(seen.append):
        decode()
    return seen


def run_bare(convolutions: list[Convolution], steps_ahead: int) -> float:
    """Seconds that the convolutions take by themselves, evaluated one by one as a stream does.

    Args:
        convolutions: in order.
        steps_ahead: how many are under way beyond the one that is waited for.
    """
    arrays = {}
    for each in convolutions:
        for shape in (each.frames, each.weight):
            if (shape, each.dtype) not in arrays:
                arrays[shape, each.dtype] = mx.random.normal(shape).astype(each.dtype)
    mx.eval(list(arrays.values()))
    under_way: deque[mx.array] = deque()
    start = time.perf_counter()
    for each in convolutions:
        frames, weight = arrays[each.frames, each.dtype], arrays[each.weight, each.dtype]
        under_way.append(mx.conv3d(frames, weight, **dict(each.options)))
        mx.async_eval(under_way[-1])
        if len(under_way) > steps_ahead:
            mx.eval(under_way.popleft())
    mx.eval(list(under_way))
    return time.perf_counter() - start


def _seconds(subject: Decode) -> float:
    start = time.perf_counter()
    for _frames in subject.run():
        continue
    return time.perf_counter() - start


@contextmanager
def _watched(see: Callable[[Convolution], None]) -> Iterator[None]:
    conv3d = mx.conv3d

    def watch(frames: mx.array, weight: mx.array, **options: Any) -> mx.array:
        results = conv3d(frames, weight, **options)
        see(Convolution(frames.shape, weight.shape, results.shape, frames.dtype, tuple(options.items())))
        return results

    with _instead(watch):
        yield


@contextmanager
def _without(convolutions: list[Convolution]) -> Iterator[None]:
    """While the block runs, a convolution's result is noise that was there before; what it is given is computed."""
    shapes = {(each.frames, each.weight, each.options): each for each in convolutions}
    ready = {(each.results, each.dtype): mx.random.normal(each.results).astype(each.dtype) for each in convolutions}
    mx.eval(list(ready.values()))

    def result(frames: mx.array, weight: mx.array, **options: Any) -> mx.array:
        convolution = shapes[frames.shape, weight.shape, tuple(options.items())]
        return mx.depends(ready[convolution.results, convolution.dtype], frames)

    with _instead(result):
        yield


@contextmanager
def _instead(function: Callable[..., mx.array]) -> Iterator[None]:
    """What is called where the networks call `mx.conv3d`, while the block runs."""
    conv3d = mx.conv3d
    mx.conv3d = function
    try:
        yield
    finally:
        mx.conv3d = conv3d


def _in_the_middle(chunks: list[Counts]) -> dict[str, float]:
    """Means per chunk of the middle third, where nothing begins or ends. Early layers do not run for every chunk."""
    middle = chunks[len(chunks) // 3 : 2 * len(chunks) // 3 + 1]
    return {
        name: statistics.mean(getattr(each, name) for each in middle) for name in ("readbacks", "arrays", "evaluations")
    }


def roofline_table(runs: list[list[Run]]) -> str:
    """Medians per mode: the decode as a ratio to its floor, and what stops for the host."""
    rows = []
    for (run,) in runs:
        total, floor, rest = (statistics.median(run[f"{part}seconds"]) for part in ("", "floor_", "rest_"))
        rows.append(
            [
                run["mode"],
                run["order"],
                str(run["frames"]),
                f"{total:.2f}",
                f"{floor:.2f}",
                f"{rest:.2f}",
                f"{total / floor:.3f}",
                str(run["convolutions"]),
                f"{run['gflop']:.1f}",
                f"{run['gflop'] / floor:.0f}",
                *(f"{run['counts'][name]:.1f}" for name in ("readbacks", "arrays", "evaluations")),
            ]
        )
    times = ["seconds", "floor", "rest", "ratio"]
    head = ["mode", "order", "frames", *times, "convs", "GFLOP", "GFLOP/s", "reads", "arrays", "evals"]
    run = runs[0][0]
    notes = [
        "floor: the decode's convolutions alone, same shapes in the same order; rest: the decode without them; ratio:",
        "seconds / floor; GFLOP/s is the floor's.",
        "reads, arrays, evals: per chunk of frames in the middle of the clip. Two reads are the frames and their flag.",
        f"{run['width']}x{run['height']}; medians of {run['rounds']} rounds of all three in one process.",
    ]
    return "\n".join([aligned(head, rows, words=2), *notes])
