"""Running a clip through a network's stages, piece by piece.

Each stage pulls from the one before it, takes at most a few positions at a time, and is evaluated before the next
one runs. So what is alive is the caches and one stage's work, however long the clip is and however many positions
the flush at its end sets free at once.

An array that a suspended generator still names is an array that cannot be freed. So pieces are handed on in a list
of one, and whoever uses a piece takes it out.
"""

from collections.abc import Iterable, Iterator, Sequence

import mlx.core as mx

from .layers.stage import Stage
from .layers.window import Axis, take

Flow = Iterator[list[mx.array]]

# Metal convolutions have returned silent zeros for inputs of more than about 1.6e9 elements; this stays far below.
MAX_STEP_ELEMENTS = 2**28


def run(
    stages: Sequence[Stage],
    pieces: Iterable[mx.array],
    *,
    axis: Axis = Axis.TIME,
    step_elements: int = MAX_STEP_ELEMENTS,
) -> Iterator[mx.array]:
    """Stream `pieces` through `stages`.

    Args:
        stages: from a network's `stages`, fresh.
        pieces: the clip in order, (B, T, H, W, C) each, cut along `axis` at will.
        axis: the axis along which it is cut.
        step_elements: a stage takes as many positions along `axis` at once as have this many elements, and at least
            one. So small early layers take more of a piece at a time than late, wide ones.

    Yields:
        The result in order along `axis`, evaluated, in pieces of no particular length. Together they are the result
        of the whole clip at once.
    """
    flow = _box(pieces)
    for stage in stages:
        flow = _advance(stage, flow, axis, min(step_elements, MAX_STEP_ELEMENTS))
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


def _advance(stage: Stage, flow: Flow, axis: Axis, step_elements: int) -> Flow:
    """Run everything that `flow` brings through one stage, then what the stage still holds back."""
    for box in _split(flow, axis, step_elements):
        result = _evaluate(stage.step(box.pop(), False), stage)
        if result:
            yield result
    while not stage.cache.closed:
        result = _evaluate(stage.step(None, True), stage)
        if result:
            yield result


def _evaluate(result: mx.array | None, stage: Stage) -> list[mx.array]:
    """Compute a step's result and what the stage remembers of it: an empty list where it has no result yet."""
    box = [] if result is None else [result]
    mx.eval(box, stage.cache.arrays)
    return box


def _split(flow: Flow, axis: Axis, step_elements: int) -> Flow:
    """Cut what `flow` brings into pieces of at most `step_elements`, but at least one position along `axis`."""
    for box in flow:
        length = box[0].shape[axis]
        step = max(1, step_elements * length // box[0].size)
        rest = (length - 1) // step * step
        for start in range(0, rest, step):
            yield [take(box[0], axis, start, start + step)]
        yield [take(box.pop(), axis, rest, length)] if rest else box
