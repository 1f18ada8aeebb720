"""What a stream holds while each of its layers runs: the layers that cache positions then, and the layer's own step.

A piece of the input fills the caches of the layers that it reaches. At the end the layers are flushed one by one, and
those in front hold nothing any more. Pure arithmetic, no MLX.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from ..backend.machine import Machine
from ..models.specs import LayerSpec, Part, Step
from ..shapes import Axis, Grid


@dataclass(frozen=True)
class StreamRun:
    """The parameters of running a network as one stream.

    Attributes:
        pieces: the lengths of the input pieces.
        steps: positions per step of each layer; None for everything in one step, with nothing cached.
        is_band: whether the picture is a band with neighbors.
    """

    axis: Axis
    pieces: tuple[int, ...]
    steps: tuple[int, ...] | None
    prefetch: int
    machine: Machine
    is_band: bool = False


class Load:
    """The work of one layer: in bytes, for each step that its input pieces make it take.

    `taken` are the most positions that it takes in a step, and `beside` bytes of what is in memory with any step.
    """

    def __init__(self, layer: LayerSpec, grid: Grid, batch: int, run: StreamRun, taken: int, beside: int) -> None:
        self.layer = layer
        self.taken = taken
        self.least = 0
        self.has_parts = layer.has_parts(run.machine)
        self._grid = grid
        self._batch = batch
        self._run = run
        self._beside = beside
        self._known: dict[tuple[int, Part], int] = {}

    @property
    def largest(self) -> int:
        return self.bytes(self.taken, Part.MIDDLE if self._run.steps is not None else Part.WHOLE)

    def bytes(self, count: int, part: Part) -> int:
        """Those of a step for which `count` positions have arrived."""
        axis, run = self._run.axis, self._run
        count = min(count, self.taken)
        if part is Part.LAST:
            count = max(1, min(self.layer.window(axis).cached, self._grid[axis.grid]))
        if not self.has_parts:
            count, part = self.taken, Part.MIDDLE
        if not count:
            return self.least
        if (count, part) not in self._known:
            # Of one position, nothing is joined to the cache.
            is_whole = run.steps is None or self._grid[axis.grid] == 1
            step = Step(axis, replace_extent(self._grid, axis, count), is_whole, run.machine, run.is_band, part)
            self._known[count, part] = self._beside + self._batch * self.layer.work_bytes(step)
        return max(self.least, self._known[count, part])


class _Moment(NamedTuple):
    """What the layers do while a piece of the input passes through them, or while one of them is flushed.

    Attributes:
        first: the layer that is flushed, behind those that were; 0 for a piece.
        last: the last layer that has received positions.
        given: the positions that arrive at each layer.
        parts: the part of the stream that a layer's first step for them belongs to.
    """

    first: int
    last: int
    given: Sequence[int]
    parts: Sequence[Part]


def layer_moments(
    run: StreamRun, caches: Sequence[int], loads: Sequence[Load], bursts: Sequence[int], held: int
) -> list[tuple[int, int, int]]:
    """The bytes of all caches, of a step, and of held output, while each layer runs, where they are most together.

    `bursts` are those by which a long piece in front of a layer exceeds the usual ones.
    """
    if run.steps is None:
        return [(0, load.largest, held) for load in loads]
    before = list(accumulate(caches, initial=0))  # the caches of the layers before each one
    # Of the layers in front, of this one and those behind it, of its step, and of the output.
    peaks = [(0, 0, 0, 0)] * len(loads)
    reached = 0
    for first, last, given, parts in _passes([load.layer for load in loads], run.pieces, run.axis):
        # A residual block's second layer adds the block's input, which its first one caches.
        start, is_one_step = before[max(0, first - 1)], True
        out = held if max(last, reached) == len(loads) - 1 or run.prefetch else 0
        for index in range(first, last + 1):
            load, front = loads[index], before[index] - start
            # The first step is done before what it makes has reached layers behind.
            behind, once = (before[end + 1] - before[index] for end in (last, max(index, reached)))
            is_one_step = is_one_step and given[index] <= load.taken
            each = [(front, once, load.bytes(given[index], parts[index]), out)]
            if not is_one_step:
                each.append((front, behind, load.bytes(given[index], Part.MIDDLE), out))
            peaks[index] = max(peaks[index], *each, key=sum)
        reached = max(reached, last)
    # While the first long piece waits, the layers from here on cache less than later, and while the last one does,
    # those in front.
    bursting = accumulate(max(0, burst - min(each[:2])) for burst, each in zip(bursts, peaks, strict=True))
    return [
        (front + behind, work + more, out) for (front, behind, work, out), more in zip(peaks, bursting, strict=True)
    ]


def _passes(layers: Sequence[LayerSpec], pieces: Iterable[int], axis: Axis) -> Iterator[_Moment]:
    """Yield what happens with each piece, and while each layer is flushed.

    Layers behind have not received any position yet, and those in front were flushed: a clip shorter than the network's
    delay never occupies all of them. When the last layer is reached, later pieces are as one that is as long as any.
    """
    counts = [_Count(layer, axis) for layer in layers]
    for piece in pieces:
        yield _pass(counts, 0, piece)
        if counts[-1].seen:
            yield _Moment(0, len(layers) - 1, [sys.maxsize] * len(layers), [Part.MIDDLE] * len(layers))
            break
    is_full = counts[-1].seen > 0
    for first, count in enumerate(counts):
        given, parts = [0] * (first + 1), [Part.LAST] * (first + 1)
        # Behind a layer that is flushed when all have been full, steps are no larger than they were.
        moment = _Moment(first, first, [], []) if is_full else _pass(counts, first + 1, count.flush())
        yield _Moment(first, max(first, moment.last), [*given, *moment.given], [*parts, *moment.parts])


class _Count:
    """The positions that a layer has received and returned."""

    def __init__(self, layer: LayerSpec, axis: Axis) -> None:
        self.seen = self.done = 0
        self._layer, self._axis = layer, axis

    def push(self, count: int) -> tuple[int, Part]:
        """The number of results of so many further positions, and the part of the stream that their step is in."""
        self.seen += count
        done, self.done = self.done, max(self.done, self._layer.ready(self._axis, self.seen))
        part = Part.MIDDLE if done else Part.FIRST if self.done else Part.ENTERING
        return self.done - done, part

    def flush(self) -> int:
        done, self.done = self.done, max(self.done, self._layer.results(self._axis, self.seen) if self.seen else 0)
        return self.done - done


def _pass(counts: Sequence[_Count], first: int, given: int) -> _Moment:
    """What happens while so many positions arrive at layer `first`, from there on."""
    arrivals, parts, last = [], [], first - 1
    for index in range(first, len(counts)):
        arrivals.append(given)
        given, part = counts[index].push(given) if given else (0, Part.ENTERING)
        parts.append(part)
        if counts[index].seen:
            last = index
    return _Moment(first, last, arrivals, parts)


def replace_extent(grid: Grid, axis: Axis, extent: int) -> Grid:
    """The grid with another extent along one axis."""
    time, height, width = (extent if index == axis.grid else other for index, other in enumerate(grid))
    return time, height, width
