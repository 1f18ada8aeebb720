"""The cache of one kernel in one stream.

A kernel of three needs the last two positions to continue. `Window` caches exactly these, and adds padding only at the
true ends of the clip. A whole clip in one piece takes the same code path, with both ends in one step.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from ..backend.mlx_utils import take
from ..errors import LatentsError
from .axis import Axis, Border, WindowSpec
from .halo import Halo


class View(NamedTuple):
    """The input of one step: cached and new positions, and the padding that they need.

    Attributes:
        frames: the positions in view, oldest first, without padding.
        before: padding positions required before them; above 0 only at the start of the stream.
        after: padding positions required after them; above 0 only at the end.
        start: the index in the stream of the first position in view.
        output: the index of the first output.
        results: the number of outputs of this step.
        window_starts: with `Border.SHIFT`, the index in `frames` of each output's first input position.
        halo: the neighboring bands' part of the window; None if the stream has the whole picture.
    """

    frames: mx.array
    before: int
    after: int
    start: int
    output: int
    results: int
    window_starts: tuple[int, ...] = ()
    halo: Halo | None = None

    def own(self, axis: Axis) -> mx.array:
        """The positions of the outputs along the axis of the stream, for a window with a stride of 1."""
        first = self.output - self.start
        return take(self.frames, axis, first, first + self.results)


class Window:
    """The cache of one kernel in one stream.

    Attributes:
        start: the index of the first cached position.
        output: the index of the next output.
        positions: the cached positions, in order.
    """

    def __init__(self, axis: Axis, spec: WindowSpec, halo: Halo | None = None) -> None:
        self.axis = axis
        self.spec = spec
        self._halo = halo
        self.start = 0
        self.output = 0
        self.positions: list[mx.array] = []
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
        next_start = self._next_start(view)
        self.output += view.results
        self._before = max(0, self._before - self.spec.stride * view.results)
        self.start += next_start
        self.positions = [] if last and frames is not None else _keep(pieces, self.axis, next_start)
        return view

    def _pad(self, joined: mx.array, last: bool) -> View | None:
        after = self.spec.after if last else 0
        length = joined.shape[self.axis]
        results = (self._before + length + after - self.spec.kernel) // self.spec.stride + 1
        if results <= 0:
            return None
        return View(joined, self._before, after, self.start, self.output, results, halo=self._halo)

    def _shift(self, joined: mx.array, last: bool) -> View | None:
        kernel, end = self.spec.kernel, self.start + joined.shape[self.axis]
        if last and end < kernel:
            raise LatentsError(f"a layer sees {kernel} positions, and the clip has {end}; use a longer clip.")
        results = (end if last else self.spec.ready(end)) - self.output
        if results <= 0:
            return None
        starts = window_starts(self.spec, end, self.output, results)
        starts = tuple(start - self.start for start in starts)
        return View(joined, 0, 0, self.start, self.output, results, starts, self._halo)

    def _next_start(self, view: View) -> int:
        """The number of leading positions in view that no later output needs."""
        if self.spec.border is Border.SHIFT:
            # Keep the whole last window: if the stream ends here, the remaining outputs need it too.
            return view.frames.shape[self.axis] - self.spec.kernel
        return max(0, self.spec.stride * view.results - view.before)


def window_starts(spec: WindowSpec, length: int, output: int, results: int) -> tuple[int, ...]:
    """The first input position of the window of each output, which shifts inwards at both ends.

    Args:
        length: the positions that there are. Those of neighboring bands count, so that windows shift at the true ends.
        output: the position of the first output among them.
        results: the number of outputs.
    """
    return tuple(min(max(0, index - spec.behind), length - spec.kernel) for index in range(output, output + results))


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
