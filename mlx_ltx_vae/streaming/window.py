"""The memory of one kernel in one running stream.

A kernel of three needs two positions of the past to go on. `Window` keeps exactly these and says when the true ends of
the clip are reached, so that padding is added only there. A whole clip in one piece is the same code with both ends at
once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from .axis import Axis, Border, WindowSpec


class View(NamedTuple):
    """What a window shows for one step.

    Attributes:
        frames: the positions in view, oldest first, without padding.
        before: positions of padding that the kernel needs in front of them; above 0 only at the start of the stream.
        after: positions of padding that it needs behind them; above 0 only at the end.
        start: the index of `frames[0]` in the stream.
        output: the index of the first result.
        results: how many results this step has.
        window_starts: with `Border.SHIFT`, the index in `frames` of the first position that each result sees.
    """

    frames: mx.array
    before: int
    after: int
    start: int
    output: int
    results: int
    window_starts: tuple[int, ...] = ()


class Window:
    """The memory of one kernel in one running stream.

    Attributes:
        axis: the axis along which pieces arrive.
        spec: what one result sees along it.
        start: the index of the first position that is kept.
        output: the index of the next result.
        arrays: what is kept, in order.
        closed: whether the stream has ended and everything is computed.
    """

    def __init__(self, axis: Axis, spec: WindowSpec) -> None:
        self.axis = axis
        self.spec = spec
        self.start = 0
        self.output = 0
        self.arrays: list[mx.array] = []
        self.closed = False
        self._before = spec.before

    def push(self, frames: mx.array | None, last: bool) -> View | None:
        """Take the next piece. Returns what can be computed now, or None where more is needed first.

        Args:
            frames: the piece, or None at the end of the stream.
            last: whether the stream ends here.
        """
        pieces = self.arrays if frames is None else [*self.arrays, frames]
        self.closed = last
        if not pieces:
            return None
        joined = mx.concatenate(pieces, axis=self.axis)
        view = self._shift(joined, last) if self.spec.border is Border.SHIFT else self._pad(joined, last)
        if view is None:
            self.arrays = [] if last else _keep(pieces, self.axis, 0)
            return None
        next_start = self._next_start(view)
        self.output += view.results
        self._before = max(0, self._before - self.spec.stride * view.results)
        self.start += next_start
        self.arrays = [] if last and frames is not None else _keep(pieces, self.axis, next_start)
        return view

    def _pad(self, joined: mx.array, last: bool) -> View | None:
        after = self.spec.after if last else 0
        length = joined.shape[self.axis]
        results = (self._before + length + after - self.spec.kernel) // self.spec.stride + 1
        if results <= 0:
            return None
        return View(joined, self._before, after, self.start, self.output, results)

    def _shift(self, joined: mx.array, last: bool) -> View | None:
        kernel, end = self.spec.kernel, self.start + joined.shape[self.axis]
        if last and end < kernel:
            raise ValueError(f"a window of {kernel} positions cannot shift within a clip of {end}.")
        results = (end if last else end - self.spec.ahead) - self.output
        if results <= 0 or end < kernel:
            return None
        outputs = range(self.output, self.output + results)
        starts = tuple(min(max(0, output - self.spec.behind), end - kernel) - self.start for output in outputs)
        return View(joined, 0, 0, self.start, self.output, results, starts)

    def _next_start(self, view: View) -> int:
        """How many of the positions in view no later result sees."""
        if self.spec.border is Border.SHIFT:
            # All of the last window: should the stream end here, the results that are left see it too.
            return view.frames.shape[self.axis] - self.spec.kernel
        return max(0, self.spec.stride * view.results - view.before)


def _keep(pieces: Sequence[mx.array], axis: Axis, start: int) -> list[mx.array]:
    """`pieces` without their first `start` positions."""
    kept = []
    for piece in pieces:
        length = piece.shape[axis]
        if start < length:
            # A slice keeps the array that it was cut from alive, so it is copied; a whole array is not.
            kept.append(mx.contiguous(take(piece, axis, start, length)))
        start = max(0, start - length)
    return kept


def take(array: mx.array, axis: int, start: int, stop: int) -> mx.array:
    """`array[start:stop]` along `axis`."""
    index = [slice(None)] * array.ndim
    index[axis] = slice(start, stop)
    return array[tuple(index)]
