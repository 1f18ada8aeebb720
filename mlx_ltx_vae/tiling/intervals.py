"""Splits one axis of the latent grid into overlapping intervals. Pure Python, no MLX."""

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import TilingError


class Interval(NamedTuple):
    """A range of positions on one axis, with the lengths of the ramps at its ends."""

    start: int
    end: int  # one past the last position
    left_ramp: int = 0  # positions at the start over which the interval fades in
    right_ramp: int = 0

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def as_slice(self) -> slice:
        return slice(self.start, self.end)


def split(length: int, size: int, overlap: int) -> tuple[Interval, ...]:
    """Split an axis into intervals of `size` that overlap by `overlap`; the last one may be shorter.

    An axis no longer than `size` is one interval. Raises a `TilingError` unless length >= 1 and 0 <= overlap < size.
    """
    if length < 1:
        raise TilingError(f"an axis of length {length} cannot be split into tiles; it must have at least 1 position.")
    if not 0 <= overlap < size:
        raise TilingError(f"the overlap of tiles of size {size} must be from 0 to {size - 1}, not {overlap}.")
    if length <= size:
        return (Interval(0, length),)
    starts = range(0, length - overlap, size - overlap)
    return tuple(
        Interval(start, min(start + size, length), overlap if start else 0, overlap if start != starts[-1] else 0)
        for start in starts
    )


def make_causal(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """Intervals of latent frames, of which all but the first start one frame earlier, with a left ramp one longer.

    The first latent frame of a tile decodes to one frame instead of `scale`, as if the clip began there. The extra
    latent frame takes that place. Its weight is 0, so it is context only.
    """
    first, *later = intervals
    return (first, *(Interval(start - 1, end, left + 1, right) for start, end, left, right in later))
