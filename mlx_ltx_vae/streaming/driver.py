"""Runs a clip through a network's stages, piece by piece.

Each stage pulls from the one before it, takes a few positions at a time, and is evaluated before the next one runs (or
the one after that, with prefetch). So what is alive is the caches and the work of one stage, or two, however long the
clip is and however many positions the flush at its end releases at once.

An array that a suspended generator names cannot be freed. So arrays travel in one-element lists, and whoever uses an
array pops it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import mlx.core as mx

from .axis import Axis
from .stage import Stage
from .window import take

Flow = Iterator[list[mx.array]]


def run(
    stages: Sequence[Stage],
    pieces: Iterable[mx.array],
    *,
    axis: Axis = Axis.TIME,
    steps: Sequence[int] | None = None,
    prefetch: int = 0,
) -> Iterator[mx.array]:
    """Stream `pieces` through `stages`.

    Args:
        stages: from a network's `stages`, fresh.
        pieces: the clip in order, (B, T, H, W, C) each, cut along `axis` anywhere.
        axis: the axis along which it is cut.
        steps: per stage, how many positions along `axis` it takes at once, at most; None for whole pieces.
        prefetch: how many steps the device is given ahead of the one that is waited for. A GPU would stand idle between
            two steps without.

    Yields:
        The result in order along `axis`, evaluated or on its way, in pieces of no particular length. Together they are
        the result of the whole clip at once.
    """
    flow = _box(pieces)
    schedule = _Schedule(prefetch)
    for index, stage in enumerate(stages):
        flow = _advance(stage, flow, axis, None if steps is None else steps[index], schedule)
    for box in flow:
        yield box.pop()


def run_whole(stages: Sequence[Stage], clip: mx.array) -> mx.array:
    """The result for a whole clip at once: the same stages, each of them given everything in one step."""
    box = [clip]
    del clip
    for stage in stages:
        result = stage.step(box.pop(), True)
        if result is None:
            raise ValueError("the clip is too short for the network: a layer has no result.")
        box.append(result)
        del result
        mx.eval(box)
    return box.pop()


def _box(pieces: Iterable[mx.array]) -> Flow:
    for piece in pieces:
        box = [piece]
        del piece
        yield box


class _Schedule:
    """When the steps of one stream are computed, and when they are waited for."""

    def __init__(self, prefetch: int) -> None:
        self._prefetch = prefetch
        self._under_way: deque[list[mx.array]] = deque()

    def compute(self, result: mx.array | None, stage: Stage) -> list[mx.array]:
        """Compute a step's result and what the stage keeps: an empty list where there is no result yet."""
        box = [] if result is None else [result]
        kept = stage.arrays
        if not self._prefetch:
            mx.eval(box, kept)
            return box
        mx.async_eval(box, kept)
        # What the stage keeps stays alive anyway, so waiting for it holds on to no result that the next stage has used.
        if kept:
            self._under_way.append(kept)
        if len(self._under_way) > self._prefetch:
            mx.eval(self._under_way.popleft())
        return box


def _advance(stage: Stage, flow: Flow, axis: Axis, step: int | None, schedule: _Schedule) -> Flow:
    """Run everything that `flow` brings through one stage, then flush what the stage holds back."""
    for box in _split(flow, axis, step):
        result = schedule.compute(stage.step(box.pop(), False), stage)
        if result:
            yield result
    while not stage.closed:
        result = schedule.compute(stage.step(None, True), stage)
        if result:
            yield result


def _split(flow: Flow, axis: Axis, step: int | None) -> Flow:
    """Cut what `flow` brings into pieces of at most `step` positions along `axis`."""
    for box in flow:
        length = box[0].shape[axis]
        size = length if step is None else step
        rest = (length - 1) // size * size
        for start in range(0, rest, size):
            yield [take(box[0], axis, start, start + size)]
        yield [take(box.pop(), axis, rest, length)] if rest else box
