"""The caches of one stream: of a kernel's window, of what waits for other paths, and of what may be dropped.

A kernel of three needs the last two positions to continue. `Window` caches exactly these, and adds padding only at the
true ends of the clip. A whole clip in one piece takes the same code path, with both ends in one step.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import mlx.core as mx

from ..backend.mlx_utils import take, take_joined
from ..errors import LatentsError
from ..shapes import Axis, Border, WindowSpec
from .context import Cache, Neighbors, Stage


class Halo:
    """The positions of neighboring bands around one kernel's window, in one stream, whose axis is `axis`.

    `spec` is the kernel's window along the axis of the bands. The positions are cached as long as the window caches its
    own, so that each is sent once.
    """

    def __init__(self, axis: Axis, neighbors: Neighbors, spec: WindowSpec) -> None:
        self._axis = axis
        self._neighbors = neighbors
        self._spec = spec
        self._end = 0  # the number of positions of the stream that have been exchanged
        self._start = 0  # the index of the first cached one
        self._sides: tuple[list[mx.array], list[mx.array]] = ([], [])

    @property
    def arrays(self) -> list[mx.array]:
        return [*self._sides[0], *self._sides[1]]

    def extend(self, frames: mx.array, start: int) -> tuple[mx.array, bool, bool]:
        """Join this band with the positions that the kernel needs from its neighbors.

        `frames` (B, T, H, W, C) begin at index `start` of the stream, which is not less than in earlier calls. Returns
        the joined frames, and whether there are positions before and after; if not, the picture ends there.
        """
        end = start + frames.shape[self._axis]
        if end > self._end:
            new = take(frames, self._axis, max(start, self._end) - start, end - start)
            received = self._neighbors.exchange(new, self._spec.behind, self._spec.ahead)
            for side, part in zip(self._sides, received, strict=True):
                side[:] = _keep(side, self._axis, start - self._start)
                if part is not None:
                    side.append(part)
            self._start, self._end = max(self._start, start), end
        first, last = start - self._start, end - self._start
        before, after = (take_joined(side, self._axis, first, last) if side else None for side in self._sides)
        parts = [part for part in (before, frames, after) if part is not None]
        joined = frames if len(parts) == 1 else mx.concatenate(parts, axis=self._neighbors.axis)
        return joined, before is not None, after is not None


class View(NamedTuple):
    """The input of one step: cached and new positions, and the padding that they need."""

    frames: mx.array  # the positions in view, oldest first, without padding
    before: int  # padding positions required before them; above 0 only at the start of the stream
    after: int  # padding positions required after them; above 0 only at the end
    start: int  # the index in the stream of the first position in view
    output: int  # the index of the first output
    num_outputs: int  # of this step
    window_starts: tuple[int, ...] = ()  # with `Border.SHIFT`, the index in `frames` of each output's first position
    halo: Halo | None = None  # the neighboring bands' part; None if the stream has the whole picture

    def own(self, axis: Axis) -> mx.array:
        """The positions of the outputs along the axis of the stream, for a window with a stride of 1."""
        first = self.output - self.start
        return take(self.frames, axis, first, first + self.num_outputs)


class Window:
    """The cache of one kernel in one stream."""

    def __init__(self, axis: Axis, spec: WindowSpec, halo: Halo | None = None) -> None:
        self.axis = axis
        self.spec = spec
        self._halo = halo
        self.start = 0  # the index of the first cached position
        self.output = 0  # the index of the next output
        self.positions: list[mx.array] = []  # that are cached, in order
        self.closed = False
        self._before = spec.before

    @property
    def arrays(self) -> list[mx.array]:
        return self.positions if self._halo is None else [*self.positions, *self._halo.arrays]

    def push(self, frames: mx.array | None, last: bool) -> View | None:
        """Add the next piece, or None at the end. Returns the view that can be computed now, or None."""
        pieces = self.positions if frames is None else [*self.positions, frames]
        self.closed = last
        if not pieces:
            return None
        joined = mx.concatenate(pieces, axis=self.axis)
        view = self._shift(joined, last) if self.spec.border is Border.SHIFT else self._pad(joined, last)
        if view is None:
            self.positions = [] if last else _keep(pieces, self.axis, 0)
            return None
        if self.spec.border is Border.SHIFT:
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
        return View(joined, self._before, after, self.start, self.output, num_outputs, halo=self._halo)

    def _shift(self, joined: mx.array, last: bool) -> View | None:
        kernel, end = self.spec.kernel, self.start + joined.shape[self.axis]
        if last and end < kernel:
            raise LatentsError(f"a layer sees {kernel} positions, and the clip has {end}; use a longer clip.")
        num_outputs = (end if last else self.spec.ready(end)) - self.output
        if num_outputs <= 0:
            return None
        starts = window_starts(self.spec, end, self.output, num_outputs)
        starts = tuple(start - self.start for start in starts)
        return View(joined, 0, 0, self.start, self.output, num_outputs, starts, self._halo)


def windowed(
    window: Window,
    compute: Callable[[View], mx.array | None],
    *caches: Cache,
    enter: Callable[[mx.array], mx.array] | None = None,
) -> Stage:
    """A stage that computes what the window has in view. It caches what `enter` makes of each piece."""

    def step(x: mx.array | None, last: bool) -> mx.array | None:
        view = window.push(x if x is None or enter is None else enter(x), last)
        return None if view is None else compute(view)

    return Stage(step, window, *caches)


@lru_cache(maxsize=256)
def window_starts(spec: WindowSpec, length: int, output: int, num_outputs: int) -> tuple[int, ...]:
    """The first input position of the windows of some outputs, which shift inwards at both ends, or lie outside.

    `length` includes the positions of neighboring bands, so that windows shift at the true ends. `output` is the
    position of the first output among them.
    """
    if spec.border is Border.PAD:
        return tuple(range(output - spec.behind, output - spec.behind + num_outputs))
    return tuple(
        min(max(0, index - spec.behind), length - spec.kernel) for index in range(output, output + num_outputs)
    )


def _keep(pieces: Sequence[mx.array], axis: Axis, start: int) -> list[mx.array]:
    """`pieces` without their first `start` positions."""
    kept = []
    for piece in pieces:
        length = piece.shape[axis]
        if start < length:
            # Copy slices, since a slice keeps the array that it was cut from alive. A whole array is not copied.
            kept.append(mx.contiguous(take(piece, axis, start, length)))
        start = max(0, start - length)
    return kept


class Delay:
    """A queue of positions along the axis of a stream, such as the skip connection of a residual block.

    Positions that `window`, which has a stride of 1 and receives the same ones, caches unchanged need no second copy:
    the queue then stores only the positions that the window has dropped. Between two steps there are usually none.

    `readers` is the number of layers that take the positions. Each takes all of them, at its own pace.
    """

    closed = True  # a delay has no outputs of its own to flush

    def __init__(self, axis: Axis, window: Window | None = None, *, readers: int = 1) -> None:
        if window is not None and readers > 1:
            raise ValueError("several readers take positions at different times, which a window does not keep.")
        self._axis = axis
        self._window = window
        self._start = 0  # the index of the first stored position
        self._held: list[mx.array] = []
        self._taken = [0] * readers

    @property
    def arrays(self) -> list[mx.array]:
        return self._held

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
        held, first = self._held, self._start
        if window is not None and not held:
            held, first = window.positions, window.start
        taken = take_joined(held, self._axis, start - first, start - first + count)
        self._taken[reader] = start + count
        done = min(self._taken)
        if window is not None and done >= window.start:
            self._held = []
        self._drop(done)
        return taken

    def take_next(self, count: int, *, reader: int = 0) -> mx.array:
        """The `count` positions after the ones that this reader has taken."""
        return self.take(self._taken[reader], count, reader=reader)

    def _drop(self, done: int) -> None:
        """Drop positions before `done`: whole arrays, and a part that is more than half of one, which takes a copy."""
        while self._held and done > self._start:
            length = self._held[0].shape[self._axis]
            dropped = min(done - self._start, length)
            if 2 * dropped < length:
                return
            array = self._held.pop(0)
            if dropped < length:
                self._held.insert(0, mx.contiguous(take(array, self._axis, dropped, length)))
                mx.async_eval(self._held[0])  # its own stage may run only in the next piece, on another thread
            self._start += dropped


class Trim:
    """Drops the first `start` and the last `end` frames of what a layer returns, however it is cut into pieces.

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

    def push(self, frames: mx.array | None, last: bool) -> mx.array | None:
        """Add the next piece (B, n, H, W, C), or None at the end. Returns the frames that are known to remain."""
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
        rest = take(joined, Axis.TIME, length, joined.shape[1])
        self._held = [mx.contiguous(rest)] if rest.size and not last else []
        return take(joined, Axis.TIME, 0, length) if length else None
