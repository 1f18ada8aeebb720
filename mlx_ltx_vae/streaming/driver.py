"""Running a clip through a network's stages, piece by piece.

Each stage pulls from the one before it, takes at most a few positions at a time, and is evaluated before the next
one runs, or the next but one. So what is alive is the caches and one stage's work, or two's, however long the clip is
and however many positions the flush at its end sets free at once.

An array that a suspended generator still names is an array that cannot be freed. So pieces are handed on in a list
of one, and whoever uses a piece takes it out.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import mlx.core as mx

from .stage import Stage
from .window import Axis, take

Flow = Iterator[list[mx.array]]

# Metal convolutions have returned silent zeros for inputs of more than about 1.6e9 elements; this stays far below.
MAX_STEP_ELEMENTS = 2**28


def run(
    stages: Sequence[Stage],
    pieces: Iterable[mx.array],
    *,
    axis: Axis = Axis.TIME,
    step_elements: int = MAX_STEP_ELEMENTS,
    steps_ahead: int = 0,
) -> Iterator[mx.array]:
    """Stream `pieces` through `stages`.

    Args:
        stages: from a network's `stages`, fresh.
        pieces: the clip in order, (B, T, H, W, C) each, cut along `axis` at will.
        axis: the axis along which it is cut.
        step_elements: a stage takes as many positions along `axis` at once as have this many elements, and at least
            one. So small early layers take more of a piece at a time than late, wide ones.
        steps_ahead: how many steps the device is given beyond the one that is waited for. A device that has to be fed
            from afar, as a GPU, would stand idle between two steps without.

    Yields:
        The result in order along `axis`, evaluated or under way, in pieces of no particular length. Together they are
        the result of the whole clip at once.
    """
    flow = _box(pieces)
    schedule = _Schedule(steps_ahead)
    for stage in stages:
        flow = _advance(stage, flow, axis, min(step_elements, MAX_STEP_ELEMENTS), schedule)
    for box in flow:
        yield box.pop()


def run_whole(stages: Sequence[Stage], clip: mx.array) -> mx.array:
    """The result for a whole clip at once: the same stages, every one of them taking all there is.

    Nothing is cut, so this is also right for networks whose norms look at the whole clip.
    """
    box = [clip]
    del clip
    for stage in stages:
        box = [stage.step(box.pop(), True)]
        mx.eval(box)
    return box.pop()


def _box(pieces: Iterable[mx.array]) -> Flow:
    for piece in pieces:
        box = [piece]
        del piece
        yield box


class _Schedule:
    """When the steps of one stream are computed, and when they are waited for.

    Args:
        steps_ahead: see `run`.
    """

    def __init__(self, steps_ahead: int) -> None:
        self._steps_ahead = steps_ahead
        self._under_way: deque[list[mx.array]] = deque()

    def compute(self, result: mx.array | None, stage: Stage) -> list[mx.array]:
        """Compute a step's result and what the stage remembers of it: an empty list where it has no result yet."""
        box = [] if result is None else [result]
        remembered = stage.cache.arrays
        if not self._steps_ahead:
            mx.eval(box, remembered)
            return box
        mx.async_eval(box, remembered)
        # What is remembered is kept anyway, so to wait for that keeps no result alive that the next stage has used.
        if remembered:
            self._under_way.append(remembered)
        if len(self._under_way) > self._steps_ahead:
            mx.eval(self._under_way.popleft())
        return box


def _advance(stage: Stage, flow: Flow, axis: Axis, step_elements: int, schedule: _Schedule) -> Flow:
    """Run everything that `flow` brings through one stage, then what the stage still holds back."""
    for box in _split(flow, axis, step_elements):
        result = schedule.compute(stage.step(box.pop(), False), stage)
        if result:
            yield result
    while not stage.cache.closed:
        result = schedule.compute(stage.step(None, True), stage)
        if result:
            yield result


def _split(flow: Flow, axis: Axis, step_elements: int) -> Flow:
    """Cut what `flow` brings into pieces of at most `step_elements`, but at least one position along `axis`."""
    for box in flow:
        length = box[0].shape[axis]
        step = max(1, step_elements * length // box[0].size)
        rest = (length - 1) // step * step
        for start in range(0, rest, step):
            yield [take(box[0], axis, start, start + step)]
        yield [take(box.pop(), axis, rest, length)] if rest else box
