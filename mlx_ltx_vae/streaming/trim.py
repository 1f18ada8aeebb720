"""Drops positions at both ends of a stream."""

import mlx.core as mx

from ..backend.mlx_utils import take
from .axis import Axis


class Trim:
    """Drops the first and the last frames of what a layer returns, however it is cut into pieces.

    Args:
        axis: the axis along which pieces arrive. Along rows and columns, each piece has all frames.
        start: frames to drop at the start of the clip.
        end: frames to drop at its end. As many are held back while the clip may go on.
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
