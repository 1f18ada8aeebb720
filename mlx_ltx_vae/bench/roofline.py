"""The floor under a decode, its convolutions and nothing else, and what there is besides: `bench --roofline`."""

import math
import operator
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import mlx.core as mx
import numpy as np

from .case import Case
from .counts import Counts, count_chunks
from .processes import Run
from .subject import Decode
from .tables import aligned

_GIGA = 1e9

Operands = dict[tuple[tuple[int, ...], mx.Dtype], mx.array]


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
    """Decode and run the bare convolutions in turns, chunk by chunk, `case.rounds` times, after a decode that watches.

    What else happens on the machine slows both down, so even where it is busy their ratio can be had.

    Returns:
        order, seconds (of each decode), floor_seconds (of each floor), rest_seconds (of each decode without its
        convolutions), convolutions, gflop, chunks, and counts (per chunk in the middle third of the clip).
    """
    subject = Decode.of(case)
    groups, chunks = _watch(subject)
    convolutions = list(chain.from_iterable(groups))
    operands = make_operands(convolutions)
    seconds, floors, rests = [], [], []
    for _ in range(case.rounds):
        decode, floor = _in_turns(subject, groups, operands)
        seconds.append(decode)
        floors.append(floor)
        with _without(convolutions):
            rests.append(sum(_turns(subject)))
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


def make_operands(convolutions: list[Convolution]) -> Operands:
    """Noise for every shape that enters one, and every kernel."""
    operands: Operands = {}
    for each in convolutions:
        for shape in (each.frames, each.weight):
            if (shape, each.dtype) not in operands:
                operands[shape, each.dtype] = mx.random.normal(shape).astype(each.dtype)
    mx.eval(list(operands.values()))
    return operands


def run_bare(convolutions: list[Convolution], operands: Operands, steps_ahead: int) -> float:
    """Seconds that the convolutions take by themselves, evaluated one by one as a stream does.

    Args:
        convolutions: in order.
        operands: from `make_operands`.
        steps_ahead: how many are under way beyond the one that is waited for.
    """
    under_way: deque[mx.array] = deque()
    start = time.perf_counter()
    for each in convolutions:
        frames, weight = operands[each.frames, each.dtype], operands[each.weight, each.dtype]
        under_way.append(mx.conv3d(frames, weight, **dict(each.options)))
        mx.async_eval(under_way[-1])
        if len(under_way) > steps_ahead:
            mx.eval(under_way.popleft())
    mx.eval(list(under_way))
    return time.perf_counter() - start


def _watch(subject: Decode) -> tuple[list[list[Convolution]], list[Counts]]:
    """One decode: what it convolves for each chunk, and after the last; and what it stops for, chunk by chunk."""
    groups: list[list[Convolution]] = [[]]

    def chunks() -> Iterator[np.ndarray]:
        for frames in subject.run():
            groups.append([])
            yield frames

    with watched(lambda convolution: groups[-1].append(convolution)):
        counts = count_chunks(chunks())
    counts.pop()  # what comes after the last one
    return groups, counts


def _in_turns(subject: Decode, groups: list[list[Convolution]], operands: Operands) -> tuple[float, float]:
    """Seconds of a decode and of its floor; after each chunk come the convolutions that it took."""
    decode = floor = 0.0
    for seconds, group in zip(_turns(subject), groups, strict=True):
        decode += seconds
        floor += run_bare(group, operands, subject.plan.steps_ahead)
    return decode, floor


def _turns(subject: Decode) -> Iterator[float]:
    """Seconds until each chunk of a decode, and until its end, where nothing is under way any more."""
    chunks = subject.run()
    at_end = False
    while not at_end:
        start = time.perf_counter()
        at_end = next(chunks, None) is None
        mx.synchronize()
        yield time.perf_counter() - start


@contextmanager
def watched(see: Callable[[Convolution], object]) -> Iterator[None]:
    """Show every convolution to `see` while the block runs."""
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
        ratio = statistics.median(map(operator.truediv, run["seconds"], run["floor_seconds"]))
        rows.append(
            [
                run["mode"],
                run["order"],
                str(run["frames"]),
                f"{total:.2f}",
                f"{floor:.2f}",
                f"{rest:.2f}",
                f"{ratio:.3f}",
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
        "seconds / floor of the same round, taken in turns chunk by chunk; GFLOP/s is the floor's.",
        "reads, arrays, evals: per chunk of frames in the middle of the clip. Two reads are the frames and their flag.",
        f"{run['width']}x{run['height']}; medians of {run['rounds']} rounds of all three in one process.",
    ]
    return "\n".join([aligned(head, rows, words=2), *notes])
