"""Delays a stream until other paths through the network have outputs for the same positions."""

import mlx.core as mx

from ..backend.mlx_utils import take
from .axis import Axis
from .window import View, Window


class Delay:
    """A queue of positions along the axis of a stream, such as the skip connection of a residual block.

    Positions that `window` caches unchanged need no second copy: with a window, the queue stores only the positions
    that the window has dropped. Between two steps there are usually none.

    Args:
        axis: the axis along which pieces arrive.
        window: a window with a stride of 1 that receives the same positions, for a single reader.
        readers: the number of layers that take the positions. Each takes all of them, at its own pace.
    """

    closed = True  # a delay has no outputs of its own to flush

    def __init__(self, axis: Axis, window: Window | None = None, *, readers: int = 1) -> None:
        if window is not None and readers > 1:
            raise ValueError("several readers take positions at different times, which a window does not keep.")
        self._axis = axis
        self._window = window
        self._start = 0
        self._held: list[mx.array] = []
        self._taken = [0] * readers

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays stored in addition to the window's."""
        return self._held

    def push(self, frames: mx.array) -> None:
        """Append positions to a delay without a window."""
        self._held = [mx.concatenate([*self._held, frames], axis=self._axis)]

    def push_view(self, view: View) -> None:
        """Store all positions in view until `take` is called."""
        self._held, self._start = [view.frames], view.start

    def take(self, start: int, count: int, *, reader: int = 0) -> mx.array:
        """Return `count` positions from index `start`, and drop the positions that all readers have taken.

        Args:
            start: index in the stream; the calls of a reader must be in order and skip no position.
            count: at least 1.
        """
        end = start + count
        window = self._window
        if self._held:
            joined, first = self._held[0], self._start
        else:
            assert window is not None, "nothing was pushed"
            joined, first = mx.concatenate(window.positions, axis=self._axis), window.start
        self._taken[reader] = end
        done = min(self._taken)
        if window is not None:
            if done >= window.start:
                self._held = []
        elif done > first:
            rest = take(joined, self._axis, done - first, joined.shape[self._axis])
            self._held = [mx.contiguous(rest)] if rest.size else []
            self._start = done
        return take(joined, self._axis, start - first, end - first)
