"""Values of a stream that wait until another path through the network has results for the same positions."""

import mlx.core as mx

from .axis import Axis
from .window import View, Window, take


class Delay:
    """A queue of positions along the axis of a stream, such as the input of a residual block on its way past it.

    Positions that `window` keeps as they came need no second copy: with a window, only the positions that it has
    dropped are held here, and usually there are none between two steps.

    Args:
        axis: the axis along which pieces arrive.
        window: a window with a stride of 1 that is pushed the same positions.
    """

    closed = True  # holds no result of its own back

    def __init__(self, axis: Axis, window: Window | None = None) -> None:
        self._axis = axis
        self._window = window
        self._start = 0
        self._held: list[mx.array] = []

    @property
    def arrays(self) -> list[mx.array]:
        """What is held besides the window's own arrays."""
        return self._held

    def push(self, frames: mx.array) -> None:
        """Append positions to a delay without a window."""
        self._held = [mx.concatenate([*self._held, frames], axis=self._axis)]

    def push_view(self, view: View) -> None:
        """Hold everything that the window shows until `take` is called."""
        self._held, self._start = [view.frames], view.start

    def take(self, start: int, count: int) -> mx.array:
        """`count` positions from index `start` on. Positions before `start + count` are dropped.

        Args:
            start: index in the stream; calls are in order and skip no position.
            count: at least 1.
        """
        end = start + count
        window = self._window
        if self._held:
            joined, first = self._held[0], self._start
        else:
            assert window is not None, "nothing was pushed"
            joined, first = mx.concatenate(window.arrays, axis=self._axis), window.start
        if window is not None:
            if end >= window.start:
                self._held = []
        else:
            rest = take(joined, self._axis, end - first, joined.shape[self._axis])
            self._held = [mx.contiguous(rest)] if rest.size else []
            self._start = end
        return take(joined, self._axis, start - first, end - first)
