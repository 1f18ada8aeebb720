"""Runs a clip through a network's stages, piece by piece.

Each stage pulls from the one before it, takes a few positions at a time, and is evaluated before the next one runs (or
the one after that, with prefetch). Memory is therefore the caches and the work of one stage, or two, however long the
clip is and however many positions the flush at its end releases at once.

Pieces travel in one-element lists, and the consumer pops them, so that a suspended generator holds no reference and
their arrays can be freed. Elsewhere in the package, arrays that are yielded pass through `map` for the same reason: a
suspended `for` would hold its variable.

Unlike `run_stream`, a `chain` flushes all of its stages in one step each, with the last piece. That step is longer by
the chain's lookahead, which suits networks whose pieces are small, and takes far fewer steps where there are many
stages.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import mlx.core as mx

from ..backend.device import explained_device_errors
from ..backend.mlx_utils import take
from ..errors import LatentsError
from ..shapes import Axis
from .context import Stage
from .window import Delay

Flow = Iterator[list[mx.array]]
#: Makes the context of a step, from its multiply-adds.
AroundStep = Callable[[float], AbstractContextManager[object]]


def run_stream(
    stages: Sequence[Stage],
    pieces: Iterable[mx.array],
    *,
    axis: Axis = Axis.TIME,
    steps: Sequence[int] | None = None,
    prefetch: int = 0,
    around_step: AroundStep = lambda _: nullcontext(),
    schedule: "Schedule | None" = None,
) -> Iterator[mx.array]:
    """Stream `pieces` through `stages`.

    Args:
        stages: new ones, from a network's `stages`.
        pieces: the clip in order, (B, T, H, W, C) each, cut anywhere along `axis`.
        steps: for each stage, the maximum number of positions along `axis` per step. `None` means whole pieces.
        prefetch: steps submitted to the device ahead of the one that is waited for. Without prefetch, a GPU is idle
            between steps.
        around_step: makes the context in which each step is run and evaluated. An exception in it ends the stream. The
            pieces are read outside of it.
        schedule: runs the steps instead, without `prefetch` and `around_step`.

    Returns:
        An iterator of the output in order along `axis`, evaluated or being evaluated, in pieces of any length.
        Concatenated, they equal the output of `run_whole`.
    """
    flow: Flow = map(_box, pieces)
    schedule = schedule or Schedule(axis, prefetch, around_step)
    for index, stage in enumerate(stages):
        flow = _advance(stage, flow, axis, None if steps is None else steps[index], schedule)
    return map(list.pop, flow)


def run_whole(
    stages: Sequence[Stage], clip: mx.array, *, around_step: AroundStep = lambda _: nullcontext()
) -> mx.array:
    """Return the output for a whole clip. Each stage runs once, in a single step. See `run_stream` for `around_step`.

    Raises:
        DeviceError: if the device runs out of memory, or is stopped.
    """
    box = [clip]
    del clip
    for stage in stages:
        with around_step(_work(stage, box, Axis.TIME)), explained_device_errors():
            result = stage.step(box.pop(), True)
            if result is None:
                raise LatentsError("the clip is too short for the network: a layer has no result.")
            box.append(result)
            del result
            mx.eval(box)
    return box.pop()


def _box(piece: mx.array | None) -> list[mx.array]:
    """Return a list with the piece, or an empty one if there is none."""
    return [] if piece is None else [piece]


def _work(stage: Stage, box: Sequence[mx.array], axis: Axis) -> float:
    """Return the multiply-adds of a step with the piece in `box`, if there is one."""
    return stage.work * box[0].shape[0] * box[0].shape[axis] if box else 0.0


class Schedule:
    """Evaluation of the steps of one stream. Up to `prefetch` steps may be under way."""

    def __init__(self, axis: Axis, prefetch: int = 0, around_step: AroundStep = lambda _: nullcontext()) -> None:
        self._axis, self._prefetch = axis, prefetch
        self._around_step = around_step
        self._under_way: deque[list[mx.array]] = deque()

    def compute(self, stage: Stage, inputs: list[mx.array], last: bool) -> list[mx.array]:
        """Run a step with the piece in `inputs`, if there is one, and evaluate its result and the stage's caches.

        Returns the result in a list, which is empty if there is no result yet.
        """
        with self._around_step(_work(stage, inputs, self._axis)):
            outputs = _box(stage.step(inputs.pop() if inputs else None, last))
            caches = stage.arrays
            if not self._prefetch:
                mx.eval(outputs, caches)
                return outputs
            # Wait for the caches, which stay alive anyway, or without caches for a value computed from the result.
            # Waiting for the result itself would keep it alive after the next stage has consumed it.
            awaited = caches or [result[(0,) * result.ndim] == 0 for result in outputs]
            mx.async_eval(outputs, caches, awaited)
            if awaited:
                self._under_way.append(awaited)
            if len(self._under_way) > self._prefetch:
                mx.eval(self._under_way.popleft())
        return outputs

    def cut(self, box: list[mx.array], start: int, stop: int) -> mx.array:
        """Return a part of the piece in a box, and empty the box after the last part."""
        piece = box.pop()
        if stop < piece.shape[self._axis]:
            box.append(piece)
        return take(piece, self._axis, start, stop)


def _advance(stage: Stage, flow: Flow, axis: Axis, step: int | None, schedule: Schedule) -> Flow:
    """Run all of `flow` through one stage, then flush the stage."""
    for box in _split(flow, axis, step, schedule):
        result = schedule.compute(stage, box, False)
        if result:
            yield result
    while not stage.closed:
        result = schedule.compute(stage, [], True)
        if result:
            yield result


def _split(flow: Flow, axis: Axis, step: int | None, schedule: Schedule) -> Flow:
    """Cut the pieces of `flow` into pieces of at most `step` positions along `axis`."""
    for box in flow:
        length = box[0].shape[axis]
        size = length if step is None else step
        if length <= size:
            yield box
            continue
        for start in range(0, length, size):
            yield [schedule.cut(box, start, min(start + size, length))]


def chain(axis: Axis, stages: Sequence[Stage], around_step: AroundStep = lambda _: nullcontext()) -> Stage:
    """Return a stage that runs several. Each is evaluated before the next one, so that memory is the work of one.

    The last piece, or `None` after it, flushes all of them.
    """

    def step(x: mx.array | None, last: bool) -> mx.array | None:
        box = _box(x)
        del x  # otherwise the first piece stays alive while later stages run
        for stage in stages:
            if not box and not last:
                return None
            with around_step(_work(stage, box, axis)):
                box = _box(stage.step(box.pop() if box else None, last))
                while last and not stage.closed:
                    box += _box(stage.step(None, True))
                if len(box) > 1:
                    box = [mx.concatenate(box, axis=axis)]
                mx.eval(box, stage.arrays)
        return box.pop() if box else None

    return Stage(step, *stages)


def run_chain(
    stages: Sequence[Stage], pieces: Iterable[mx.array], *, axis: Axis, around_step: AroundStep
) -> Iterator[mx.array]:
    """Stream `pieces` through `stages` as `run_stream` does, but each stage takes a whole piece in one step."""
    stage, flow = chain(axis, stages, around_step), map(_box, pieces)
    box = next(flow, [])
    while box:
        next_box = next(flow, [])
        if results := _box(stage.step(box.pop(), not next_box)):
            yield results.pop()
        box = next_box


def branches(axis: Axis, chains: Sequence[Sequence[Stage]], combine: Callable[[list[mx.array]], mx.array]) -> Stage:
    """Return a stage that runs each chain on its input, and combines the results of all chains for equal positions.

    Chains may need different numbers of later positions. Results of chains that are ahead wait for the other chains.
    """
    parallel = [(chain(axis, stages), Delay(axis)) for stages in chains]
    counts = [0] * len(parallel)  # of results of each chain
    num_outputs = 0

    def step(x: mx.array | None, last: bool) -> mx.array | None:
        nonlocal num_outputs
        for index, (stage, waiting) in enumerate(parallel):
            if (result := stage.step(x, last)) is not None:
                waiting.push(result)
                counts[index] += result.shape[axis]
        start, num_outputs = num_outputs, min(counts)
        count = num_outputs - start
        return combine([waiting.take(start, count) for _, waiting in parallel]) if count > 0 else None

    return Stage(step, *(cache for branch in parallel for cache in branch))
