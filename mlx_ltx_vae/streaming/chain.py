"""Stages that take each piece of a stream one after the other: alone, or several chains side by side.

Unlike the driver, a chain flushes all of its stages in one step each, with the last piece. That step is longer by the
chain's lookahead, which suits networks whose pieces are small, and takes far fewer steps where there are many stages.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext

import mlx.core as mx

from .axis import Axis
from .context import Stage
from .delay import Delay
from .driver import AroundStep


class Chain:
    """Some stages of one stream. Each is evaluated before the next one runs, so that memory is the work of one."""

    def __init__(self, axis: Axis, stages: Sequence[Stage], *, around_step: AroundStep = nullcontext) -> None:
        self._axis = axis
        self._stages = stages
        self._around_step = around_step
        self.closed = False

    @property
    def arrays(self) -> list[mx.array]:
        return [array for stage in self._stages for array in stage.arrays]

    def push(self, x: mx.array | None, last: bool) -> mx.array | None:
        """What the last stage returns for the next piece, or for None at the end. `last` flushes all stages."""
        self.closed = last
        box = [x]
        del x  # otherwise the first piece stays alive while later stages run
        for stage in self._stages:
            if box[0] is None and not last:
                return None
            box.append(self._step(stage, box.pop(), last))
        return box.pop()

    def _step(self, stage: Stage, x: mx.array | None, last: bool) -> mx.array | None:
        with self._around_step():
            results = [stage.step(x, last)]
            while last and not stage.closed:
                results.append(stage.step(None, True))
            arrays = [result for result in results if isinstance(result, mx.array)]
            joined = mx.concatenate(arrays, axis=self._axis) if len(arrays) > 1 else arrays[0] if arrays else None
            mx.eval(arrays if joined is None else joined, stage.arrays)
        return joined


def run_chain(
    stages: Sequence[Stage], pieces: Iterable[mx.array], *, axis: Axis, around_step: AroundStep
) -> Iterator[mx.array]:
    """As `driver.run`, but that each stage takes whatever comes in one step."""
    running = Chain(axis, stages, around_step=around_step)

    def push(box: list[mx.array], last: bool) -> list[mx.array]:
        result = running.push(box.pop(), last)
        return [] if result is None else [result]

    flow = ([piece] for piece in pieces)
    box = next(flow, [])
    while box:
        following = next(flow, [])
        if results := push(box, not following):
            yield results.pop()
        box = following


def branches(axis: Axis, chains: Sequence[Sequence[Stage]], combine: Callable[[list[mx.array]], mx.array]) -> Stage:
    """A stage that runs each chain on its input, and combines the results of all chains for the same positions.

    Chains may need different numbers of later positions. The results of those that are ahead wait for the others.
    """
    running = [_Branch(axis, stages) for stages in chains]
    done = 0

    def step(x: mx.array | None, last: bool) -> mx.array | None:
        nonlocal done
        for branch in running:
            branch.push(x, last)
        start, done = done, min(branch.count for branch in running)
        return combine([branch.results.take(start, done - start) for branch in running]) if done > start else None

    return Stage(step, *running)


class _Branch:
    """A chain, and those of its results that wait for the other chains."""

    def __init__(self, axis: Axis, stages: Sequence[Stage]) -> None:
        self.results = Delay(axis)
        self.count = 0  # of results so far
        self._axis = axis
        self._chain = Chain(axis, stages)

    @property
    def arrays(self) -> list[mx.array]:
        return [*self.results.arrays, *self._chain.arrays]

    @property
    def closed(self) -> bool:
        return self._chain.closed

    def push(self, x: mx.array | None, last: bool) -> None:
        result = self._chain.push(x, last)
        if result is not None:
            self.results.push(result)
            self.count += result.shape[self._axis]
