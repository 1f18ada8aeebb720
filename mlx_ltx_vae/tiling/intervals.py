"""Cutting one axis of the latent grid into overlapping intervals. Pure arithmetic, no MLX."""

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import TilingError


class Interval(NamedTuple):
    """A run of positions on one axis, and how far it fades at its ends.

    Attributes:
        start: the first position.
        end: one past the last.
        left_ramp: positions at the start over which it fades in.
        right_ramp: positions at the end over which it fades out.
    """

    start: int
    end: int
    left_ramp: int = 0
    right_ramp: int = 0

    @property
    def length(self) -> int:
        """Its number of positions."""
        return self.end - self.start

    @property
    def as_slice(self) -> slice:
        """Its positions as an index."""
        return slice(self.start, self.end)


def split(length: int, size: int, overlap: int) -> tuple[Interval, ...]:
    """Cut an axis into intervals of `size`, each sharing `overlap` positions with the next; the last may be shorter.

    An axis of at most `size` stays whole.

    Raises:
        TilingError: unless length >= 1 and 0 <= overlap < size.
    """
    if length < 1:
        raise TilingError(f"an axis of {length} positions cannot be cut into tiles.")
    if not 0 <= overlap < size:
        raise TilingError(f"tiles of {size} cannot overlap by {overlap}; an overlap is at least 0 and under the size.")
    if length <= size:
        return (Interval(0, length),)
    step = size - overlap
    starts = range(0, length - overlap, step)
    return _with_ramps([(start, min(start + size, length)) for start in starts])


def split_with_minimum(length: int, size: int, overlap: int, minimum: int) -> tuple[Interval, ...]:
    """As `split`, but a last interval shorter than `minimum` is extended to the left, and overlaps by more.

    Raises:
        TilingError: as `split`, and unless 1 <= minimum <= size.
    """
    if not 1 <= minimum <= size:
        raise TilingError(f"tiles of {size} cannot have a minimum of {minimum}.")
    intervals = split(length, size, overlap)
    if len(intervals) == 1:
        return intervals
    *others, last = [(interval.start, interval.end) for interval in intervals]
    return _with_ramps([*others, (min(last[0], length - minimum), length)])


def split_by_count(length: int, count: int, overlap: int) -> tuple[Interval, ...]:
    """Cut an axis into `count` intervals, as equal as can be (the longer ones first), overlapping by `overlap`.

    Raises:
        TilingError: for a count below 1, a negative overlap, or intervals that would be nothing but overlap.
    """
    if count < 1 or overlap < 0:
        raise TilingError(f"{count} tiles with an overlap of {overlap} cannot be had.")
    if count == 1:
        return split(length, length, 0)
    size, longer = divmod(length + (count - 1) * overlap, count)
    if size <= overlap:
        raise TilingError(f"{length} positions are too few for {count} tiles that overlap by {overlap}.")
    edges, start = [], 0
    for index in range(count):
        end = start + size + (index < longer)
        edges.append((start, end))
        start = end - overlap
    return _with_ramps(edges)


def make_causal(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """The intervals for latent frames: all but the first start one frame earlier, with a left ramp one longer.

    The first latent frame of a tile makes one frame instead of `scale`, as if the clip began there. Decoded as
    context only, it spoils nothing: its weight is 0.
    """
    first, *later = intervals
    return (first, *(Interval(start - 1, end, left + 1, right) for start, end, left, right in later))


def _with_ramps(edges: Sequence[tuple[int, int]]) -> tuple[Interval, ...]:
    """Intervals with these starts and ends, in order, fading over what they share with their neighbours."""
    shared = [left[1] - right[0] for left, right in zip(edges, edges[1:], strict=False)]
    return tuple(
        Interval(start, end, left, right)
        for (start, end), left, right in zip(edges, [0, *shared], [*shared, 0], strict=True)
    )
