"""The border between two bands of a picture: positions that a kernel needs from the neighboring bands."""

import mlx.core as mx

from ..backend.mlx_utils import take
from .axis import Axis, WindowSpec
from .context import Neighbors


class Halo:
    """The neighbors' positions around one kernel's window, in one stream.

    They are cached as long as the window caches its own positions, so that each is sent once.

    Args:
        axis: the axis along which pieces arrive.
        neighbors: the bands before and after this one.
        spec: the kernel's window along the axis of the bands.
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

        Args:
            frames: (B, T, H, W, C), from index `start` of the stream on.
            start: not less than in earlier calls.

        Returns:
            The joined frames, and whether there are positions before and after; if not, the picture ends there.
        """
        end = start + frames.shape[self._axis]
        if end > self._end:
            new = take(frames, self._axis, max(start, self._end) - start, end - start)
            received = self._neighbors.exchange(new, self._spec.behind, self._spec.ahead)
            for side, part in zip(self._sides, received, strict=True):
                self._drop(side, start)
                if part is not None:
                    side.append(part)
            self._start, self._end = max(self._start, start), end
        before, after = (self._join(side, start, end) for side in self._sides)
        parts = [part for part in (before, frames, after) if part is not None]
        joined = frames if len(parts) == 1 else mx.concatenate(parts, axis=self._neighbors.axis)
        return joined, before is not None, after is not None

    def _drop(self, side: list[mx.array], start: int) -> None:
        """Drop cached positions before `start`."""
        surplus = start - self._start
        while side and surplus > 0:
            length = side[0].shape[self._axis]
            if surplus < length:
                side[0] = mx.contiguous(take(side[0], self._axis, surplus, length))
                return
            surplus -= length
            side.pop(0)

    def _join(self, side: list[mx.array], start: int, end: int) -> mx.array | None:
        """The cached positions from `start` to `end`."""
        if not side:
            return None
        joined = side[0] if len(side) == 1 else mx.concatenate(side, axis=self._axis)
        return take(joined, self._axis, start - self._start, end - self._start)
