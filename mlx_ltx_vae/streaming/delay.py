"""Holds a stream back: until other paths have outputs for the same positions, or since its end is dropped."""

import mlx.core as mx

from ..backend.mlx_utils import take
from .axis import Axis
from .window import View, Window


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
        taken = self._find(held, first, start, start + count)
        self._taken[reader] = start + count
        done = min(self._taken)
        if window is not None and done >= window.start:
            self._held = []
        self._drop(done)
        return taken

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

    def _find(self, held: list[mx.array], first: int, start: int, end: int) -> mx.array:
        """The positions from `start` to `end` of arrays of which the first one begins at `first`."""
        parts = []
        for array in held:
            last = first + array.shape[self._axis]
            if first < end and start < last:
                parts.append(take(array, self._axis, max(start, first) - first, min(end, last) - first))
            first = last
        assert parts, "nothing was pushed"
        return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=self._axis)


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
