"""Delays a stream until another path through the network has outputs for the same positions."""

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
        window: a window with a stride of 1 that receives the same positions.
    """

    closed = True  # a delay has no outputs of its own to flush

    def __init__(self, axis: Axis, window: Window | None = None) -> None:
        self._axis = axis
        self._window = window
        self._start = 0
        self._held: list[mx.array] = []

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

    def take(self, start: int, count: int) -> mx.array:
        """Return `count` positions from index `start`, and drop all positions before `start + count`.

        Args:
            start: index in the stream; calls must be in order and skip no position.
            count: at least 1.
        """
        end = start + count
        window = self._window
        if self._held:
            joined, first = self._held[0], self._start
        else:
            assert window is not None, "nothing was pushed"
            joined, first = mx.concatenate(window.positions, axis=self._axis), window.start
        if window is not None:
            if end >= window.start:
                self._held = []
        else:
            rest = take(joined, self._axis, end - first, joined.shape[self._axis])
            self._held = [mx.contiguous(rest)] if rest.size else []
            self._start = end
        return take(joined, self._axis, start - first, end - first)
