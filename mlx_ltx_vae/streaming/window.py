"""Caches of one stream: a kernel's window, positions that wait for another path, and frames that may be dropped.

A kernel of three needs the last two positions to continue. `Window` caches exactly these, and adds padding only at the
true ends of the clip. A whole clip in one piece takes the same code path, with both ends in one step.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import mlx.core as mx

from ..backend.mlx_utils import contiguous, in_words, is_tracing, take, take_joined
from ..errors import LatentsError
from ..shapes import Axis, WindowSpec
from .context import Cache, Stage


class View(NamedTuple):
    """Input of one step: cached and new positions, and the padding that they need."""

    frames: mx.array  # positions in view, oldest first, without padding
    before: int  # padding positions required before them; above 0 only at the start of the stream
    after: int  # padding positions required after them; above 0 only at the end
    start: int  # index in the stream of the first position in view
    output: int  # index of the first output
    num_outputs: int  # number of outputs of this step
    window_starts: tuple[int, ...] = ()  # if the window shifts, index in `frames` of each output's first position

    def at_outputs(self, axis: Axis) -> mx.array:
        """Return the frames at the positions of the outputs along the stream's axis, for a window with stride 1."""
        first = self.output - self.start
        return take(self.frames, axis, first, first + self.num_outputs)


class CacheState(NamedTuple):
    """State of a cache between two steps. A step depends on the differences of `counts`, and on which are zero."""

    arrays: tuple[mx.array, ...]
    counts: tuple[int, ...]  # numbers of positions since the stream began
    remaining: int = 0  # positions that are still to be padded or dropped at the start of the stream
    closed: bool = True


class Window:
    """Cache of one kernel in one stream."""

    def __init__(self, axis: Axis, spec: WindowSpec) -> None:
        self.axis = axis
        self.spec = spec
        self.start = 0  # index of the first cached position
        self.output = 0  # index of the next output
        self.positions: list[mx.array] = []  # cached positions, in order
        self.closed = False
        self._before = spec.before

    @property
    def arrays(self) -> list[mx.array]:
        return self.positions

    @property
    def state(self) -> CacheState:
        return CacheState(tuple(self.positions), (self.start, self.output), self._before, self.closed)

    @state.setter
    def state(self, state: CacheState) -> None:
        self.positions, (self.start, self.output) = list(state.arrays), state.counts
        self._before, self.closed = state.remaining, state.closed

    def push(self, frames: mx.array | None, last: bool) -> View | None:
        """Add the next piece, or `None` at the end. Returns the view that can be computed now, or `None`."""
        pieces = self.positions if frames is None else [*self.positions, frames]
        self.closed = last
        if not pieces:
            return None
        joined = _join(pieces, self.axis)
        view = self._shift(joined, last) if self.spec.shifts else self._pad(joined, last)
        if view is None:
            self.positions = [] if last else _keep(pieces, self.axis, 0)
            return None
        if self.spec.shifts:
            # Keep the whole last window: if the stream ends here, the remaining outputs need it too.
            next_start = joined.shape[self.axis] - self.spec.kernel
        else:
            next_start = max(0, self.spec.stride * view.num_outputs - view.before)
        self.output += view.num_outputs
        self._before = max(0, self._before - self.spec.stride * view.num_outputs)
        self.start += next_start
        self.positions = [] if last and frames is not None else _keep(pieces, self.axis, next_start)
        return view

    def _pad(self, joined: mx.array, last: bool) -> View | None:
        after = self.spec.after if last else 0
        length = joined.shape[self.axis]
        num_outputs = (self._before + length + after - self.spec.kernel) // self.spec.stride + 1
        if num_outputs <= 0:
            return None
        return View(joined, self._before, after, self.start, self.output, num_outputs)

    def _shift(self, joined: mx.array, last: bool) -> View | None:
        kernel, end = self.spec.kernel, self.start + joined.shape[self.axis]
        if last and end < kernel:
            raise LatentsError(f"a layer sees {kernel} positions, and the clip has {end}; use a longer clip.")
        num_outputs = (end if last else self.spec.ready(end)) - self.output
        if num_outputs <= 0:
            return None
        starts = window_starts(self.spec, end, self.output, num_outputs)
        starts = tuple(start - self.start for start in starts)
        return View(joined, 0, 0, self.start, self.output, num_outputs, starts)


def windowed(
    window: Window,
    compute: Callable[[View], mx.array | None],
    *caches: Cache,
    enter: Callable[[mx.array], mx.array] | None = None,
) -> Stage:
    """Return a stage that computes each view of the window. The window caches the result of `enter` for each piece."""

    def step(x: mx.array | None, last: bool) -> mx.array | None:
        view = window.push(x if x is None or enter is None else enter(x), last)
        return None if view is None else compute(view)

    return Stage(step, window, *caches)


@lru_cache(maxsize=256)
def window_starts(spec: WindowSpec, length: int, output: int, num_outputs: int) -> tuple[int, ...]:
    """Return the first input position of each output's window, from index `output` on, among `length` positions.

    Windows shift inwards at both ends, or lie outside.
    """
    if not spec.shifts:
        return tuple(range(output - spec.behind, output - spec.behind + num_outputs))
    return tuple(
        min(max(0, index - spec.behind), length - spec.kernel) for index in range(output, output + num_outputs)
    )


def _join(pieces: Sequence[mx.array], axis: Axis) -> mx.array:
    """Return pieces, each contiguous or a slice of a contiguous array, joined along an axis."""
    if len(pieces) == 1:
        return pieces[0]
    if math.prod(pieces[0].shape[:axis]) > 1:  # slices are not contiguous
        return mx.concatenate(list(pieces), axis=axis)
    return in_words(lambda *words: mx.concatenate(list(words), axis=axis), *pieces)


def _copy(piece: mx.array, axis: Axis, start: int) -> mx.array:
    """Return the positions of a piece from `start` on, without the array that it was cut from."""
    length = piece.shape[axis]
    if math.prod(piece.shape[:axis]) > 1:
        return contiguous(take(piece, axis, start, length))
    return in_words(lambda words: contiguous(take(words, axis, start, length)), piece)


def _keep(pieces: Sequence[mx.array], axis: Axis, start: int) -> list[mx.array]:
    """Return `pieces` without their first `start` positions."""
    parts = []
    for piece in pieces:
        length = piece.shape[axis]
        if start < length:
            # Copy slices, since a slice keeps the array that it was cut from alive. A whole array is not copied.
            parts.append(_copy(piece, axis, start))
        start = max(0, start - length)
    return parts


class Delay:
    """Queue of positions along the axis of a stream, such as the skip connection of a residual block.

    A `window` with a stride of 1 that receives the same positions and caches them unchanged saves a second copy: the
    queue then stores only the positions that the window has dropped. Between two steps there are usually none.

    `readers` is the number of layers that take the positions. Each takes all of them, at its own pace.
    """

    closed = True  # a delay has no outputs to flush

    def __init__(self, axis: Axis, window: Window | None = None, *, readers: int = 1) -> None:
        if window is not None and readers > 1:
            raise ValueError("several readers take positions at different times, which a window does not keep.")
        self._axis = axis
        self._window = window
        self._start = 0  # index of the first stored position
        self._held: list[mx.array] = []
        self._ends = [0] * readers  # number of positions that each reader has taken

    @property
    def arrays(self) -> list[mx.array]:
        return self._held

    @property
    def state(self) -> CacheState:
        return CacheState(tuple(self._held), (self._start, *self._ends))

    @state.setter
    def state(self, state: CacheState) -> None:
        self._held, (self._start, *self._ends) = list(state.arrays), state.counts

    def push(self, frames: mx.array) -> None:
        """Append positions to a delay without a window."""
        self._held.append(frames)

    def push_view(self, view: View) -> None:
        """Store all positions in view until `take` is called."""
        self._held, self._start = [view.frames], view.start

    def take(self, start: int, count: int, *, reader: int = 0) -> mx.array:
        """Return `count` positions from index `start`, and drop the positions that all readers have taken.

        The calls of a reader must be in order and skip no position.
        """
        window = self._window
        arrays, first = self._held, self._start
        if window is not None and not arrays:
            arrays, first = window.positions, window.start
        frames = take_joined(arrays, self._axis, start - first, start - first + count)
        self._ends[reader] = start + count
        end = min(self._ends)
        if window is not None and end >= window.start:
            self._held = []
        self._drop(end)
        return frames

    def take_next(self, count: int, *, reader: int = 0) -> mx.array:
        """Return the `count` positions after the ones that this reader has taken."""
        return self.take(self._ends[reader], count, reader=reader)

    def _drop(self, end: int) -> None:
        """Drop positions before `end`: whole arrays, and more than half of an array, whose other part is copied."""
        while self._held and end > self._start:
            length = self._held[0].shape[self._axis]
            dropped = min(end - self._start, length)
            if 2 * dropped < length:
                return
            array = self._held.pop(0)
            if dropped < length:
                self._held.insert(0, contiguous(take(array, self._axis, dropped, length)))
                if not is_tracing():
                    mx.async_eval(self._held[0])  # its stage may run only with the next piece, on another thread
            self._start += dropped


class Trim:
    """Cut of the first `start` and the last `end` frames that a layer returns, in pieces of any length.

    Along rows and columns, each piece has all frames. Along time, `end` frames are held back while the clip may go on.
    """

    def __init__(self, axis: Axis, start: int, end: int = 0) -> None:
        self._axis = axis
        self._start = start
        self._end = end
        self._held: list[mx.array] = []
        self.closed = False

    @property
    def arrays(self) -> list[mx.array]:
        return self._held

    @property
    def state(self) -> CacheState:
        return CacheState(tuple(self._held), (), self._start, self.closed)

    @state.setter
    def state(self, state: CacheState) -> None:
        self._held, self._start, self.closed = list(state.arrays), state.remaining, state.closed

    def push(self, frames: mx.array | None, last: bool) -> mx.array | None:
        """Add the next piece (B, n, H, W, C), or `None` at the end. Returns the frames that are certain to remain."""
        self.closed = last
        if self._axis is not Axis.TIME:
            return None if frames is None else take(frames, Axis.TIME, self._start, frames.shape[1] - self._end)
        if frames is None:
            self._held = [] if last else self._held
            return None
        dropped = min(self._start, frames.shape[1])
        self._start -= dropped
        joined = take(frames, Axis.TIME, dropped, frames.shape[1])
        if self._held:
            joined = mx.concatenate([*self._held, joined], axis=Axis.TIME)
        length = max(0, joined.shape[1] - self._end)
        tail = take(joined, Axis.TIME, length, joined.shape[1])
        self._held = [contiguous(tail)] if tail.size and not last else []
        return take(joined, Axis.TIME, 0, length) if length else None


#: Caches of layers that can be exported: their `state` can be read and set.
TraceableCache = Window | Delay | Trim
