"""Splits one axis of the latent grid into overlapping intervals. Pure Python, no MLX."""

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import TilingError


class Interval(NamedTuple):
    """A range of positions on one axis, with the lengths of the ramps at its ends.

    Attributes:
        start: the first position.
        end: one past the last position.
        left_ramp: positions at the start over which the interval fades in.
        right_ramp: positions at the end over which the interval fades out.
    """

    start: int
    end: int
    left_ramp: int = 0
    right_ramp: int = 0

    @property
    def length(self) -> int:
        """The number of positions."""
        return self.end - self.start

    @property
    def as_slice(self) -> slice:
        """The positions as an index."""
        return slice(self.start, self.end)


def split(length: int, size: int, overlap: int) -> tuple[Interval, ...]:
    """Split an axis into intervals of `size` that overlap by `overlap`; the last one may be shorter.

    An axis no longer than `size` is one interval.

    Raises:
        TilingError: unless length >= 1 and 0 <= overlap < size.
    """
    if length < 1:
        raise TilingError(f"an axis of length {length} cannot be split into tiles; it must have at least 1 position.")
    if not 0 <= overlap < size:
        raise TilingError(f"the overlap of tiles of size {size} must be from 0 to {size - 1}, not {overlap}.")
    if length <= size:
        return (Interval(0, length),)
    starts = range(0, length - overlap, size - overlap)
    return _with_ramps([(start, min(start + size, length)) for start in starts])


def split_with_minimum(length: int, size: int, overlap: int, minimum: int) -> tuple[Interval, ...]:
    """As `split`, but a last interval shorter than `minimum` is extended to the left, so that it overlaps by more.

    Raises:
        TilingError: as `split`, and unless 1 <= minimum <= size.
    """
    if not 1 <= minimum <= size:
        raise TilingError(f"the minimum length of tiles of size {size} must be from 1 to {size}, not {minimum}.")
    intervals = split(length, size, overlap)
    if len(intervals) == 1:
        return intervals
    *others, last = [(interval.start, interval.end) for interval in intervals]
    return _with_ramps([*others, (min(last[0], length - minimum), length)])


def split_by_count(length: int, count: int, overlap: int) -> tuple[Interval, ...]:
    """Split an axis into `count` intervals that overlap by `overlap`, as equal as possible, the longer ones first.

    Raises:
        TilingError: for a count below 1, a negative overlap, or intervals no longer than the overlap.
    """
    if count < 1 or overlap < 0:
        raise TilingError(
            f"{count} tiles that overlap by {overlap} are impossible; the count must be at least 1 and the overlap at "
            "least 0."
        )
    if count == 1:
        return split(length, length, 0)
    size, longer = divmod(length + (count - 1) * overlap, count)
    if size <= overlap:
        raise TilingError(
            f"{length} positions are too few for {count} tiles that overlap by {overlap}; use fewer tiles."
        )
    bounds, start = [], 0
    for index in range(count):
        end = start + size + (index < longer)
        bounds.append((start, end))
        start = end - overlap
    return _with_ramps(bounds)


def make_causal(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """Intervals of latent frames, of which all but the first start one frame earlier, with a left ramp one longer.

    The first latent frame of a tile decodes to one frame instead of `scale`, as if the clip began there. The extra
    latent frame takes that place. Its weight is 0, so it is context only.
    """
    first, *later = intervals
    return (first, *(Interval(start - 1, end, left + 1, right) for start, end, left, right in later))


def _with_ramps(bounds: Sequence[tuple[int, int]]) -> tuple[Interval, ...]:
    """Intervals with these starts and ends, in order, whose ramps are as long as the overlaps with their neighbors."""
    overlaps = [left[1] - right[0] for left, right in zip(bounds, bounds[1:], strict=False)]
    return tuple(
        Interval(start, end, left, right)
        for (start, end), left, right in zip(bounds, [0, *overlaps], [*overlaps, 0], strict=True)
    )
