"""What a convolution remembers of a stream.

A stream is one clip handed over in pieces along one axis (time, or rows, or columns). A kernel of three needs two
positions of the past to go on; `Window` keeps exactly these and says when the true ends of the clip are reached, so
that only there anything is padded. The whole clip in one piece is the same code with both ends at once.
"""

import enum
from typing import NamedTuple

import mlx.core as mx


class Axis(enum.IntEnum):
    """The axes of (B, T, H, W, C) along which a clip can be streamed."""

    TIME = 1
    HEIGHT = 2
    WIDTH = 3


class View(NamedTuple):
    """What a window shows for one step.

    Attributes:
        frames: the positions in sight, oldest first, without padding.
        before: how many positions of padding the kernel needs in front of them (only at the stream's beginning).
        after: likewise behind them (only at its end).
        start: the index in the stream of `frames[0]`.
        output: the index of the first result.
        count: how many results this step gives.
    """

    frames: mx.array
    before: int
    after: int
    start: int
    output: int
    count: int


class Window:
    """The memory of one kernel in one running stream.

    Args:
        axis: the axis along which the pieces arrive.
        kernel: positions that one result needs.
        stride: positions between two results.
        before: positions of padding in front of the stream.
        after: positions of padding behind it.
    """

    def __init__(self, axis: Axis, *, kernel: int = 3, stride: int = 1, before: int = 1, after: int = 1) -> None:
        self.axis = axis
        self.kernel = kernel
        self.stride = stride
        self.before = before
        self.after = after
        self.start = 0
        self.output = 0
        self.memory: list[mx.array] = []
        self.closed = False

    def push(self, frames: mx.array | None, last: bool) -> View | None:
        """Take the next piece; return what can be computed now, or None where more is needed first.

        Args:
            frames: the piece, or None at the end of the stream.
            last: whether the stream ends here.
        """
        pieces = self.memory if frames is None else [*self.memory, frames]
        joined = mx.concatenate(pieces, axis=self.axis)
        self.closed = last
        length = joined.shape[self.axis]
        after = self.after if last else 0
        count = (self.before + length + after - self.kernel) // self.stride + 1
        if count <= 0:
            self.memory = [] if last else self._all_but(0, pieces)
            return None
        passed = self.stride * count
        view = View(joined, self.before, after, self.start, self.output, count)
        forget = max(0, passed - self.before)
        self.before = max(0, self.before - passed)
        self.output += count
        self.start += forget
        self.memory = [] if last and frames is not None else self._all_but(forget, pieces)
        return view

    def _all_but(self, forget: int, pieces: list[mx.array]) -> list[mx.array]:
        """What is left of `pieces` without the first `forget` positions."""
        kept = []
        for piece in pieces:
            length = piece.shape[self.axis]
            if forget < length:
                # A slice keeps alive the whole array it was cut from, so it is copied; what is whole is not.
                kept.append(mx.contiguous(take(piece, self.axis, forget, length)))
            forget = max(0, forget - length)
        return kept


class WindowCache:
    """The memory of a block with one convolution."""

    def __init__(self, window: Window) -> None:
        self.window = window

    @property
    def arrays(self) -> list[mx.array]:
        """See `Cache`."""
        return self.window.memory

    @property
    def closed(self) -> bool:
        """See `Cache`."""
        return self.window.closed


def take(array: mx.array, axis: int, start: int, stop: int) -> mx.array:
    """`array[start:stop]` along `axis`."""
    index = [slice(None)] * array.ndim
    index[axis] = slice(start, stop)
    return array[tuple(index)]
