"""Splits one axis into overlapping intervals, and weights their positions. Pure Python, no MLX."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose
from typing import NamedTuple

from ..errors import TilingError

#: A weight in [0, 1] for each position of an interval.
Mask = tuple[float, ...]


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


def grow_last(intervals: Sequence[Interval], least: int) -> tuple[Interval, ...]:
    """Intervals of which the last one, if it is shorter than `least`, begins earlier, so that it overlaps by more."""
    *others, last = intervals
    if not others or last.length >= least:
        return tuple(intervals)
    before, start = others.pop(), last.end - least
    overlap = before.end - start
    return (*others, before._replace(right_ramp=overlap), Interval(start, last.end, overlap))


def make_causal(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """Intervals of latent frames, of which all but the first start one frame earlier, with a left ramp one longer.

    The extra frame takes the place of the first one of a tile, which decodes to one frame instead of `scale`. Its
    weight is 0, so it is context only.
    """
    first, *later = intervals
    return (first, *(Interval(start - 1, end, left + 1, right) for start, end, left, right in later))


def trapezoid(length: int, left_ramp: int, right_ramp: int, *, from_zero: bool = False) -> Mask:
    """A mask that rises over `left_ramp` positions (`from_zero`, if so), stays at 1, and falls over `right_ramp`.

    Ramps longer than the mask are shortened to it. Ramps that overlap are multiplied.
    """
    left_ramp, right_ramp = min(left_ramp, length), min(right_ramp, length)
    rising = [0.0, *_ramp(left_ramp - 1)] if from_zero and left_ramp else _ramp(left_ramp)
    left = rising + [1.0] * (length - left_ramp)
    right = [1.0] * (length - right_ramp) + _ramp(right_ramp)[::-1]
    return tuple(rise * fall for rise, fall in zip(left, right, strict=True))


def trapezoids(intervals: Sequence[Interval], *, from_zero: bool = False) -> tuple[Mask, ...]:
    """The mask of each interval, from its ramps."""
    return tuple(trapezoid(each.length, each.left_ramp, each.right_ramp, from_zero=from_zero) for each in intervals)


def sums(intervals: Sequence[Interval], masks: Sequence[Mask]) -> list[float]:
    """The sum of the masks of all intervals, at each position of the axis."""
    total = [0.0] * max(interval.end for interval in intervals)
    for interval, mask in zip(intervals, masks, strict=True):
        for position, weight in enumerate(mask, interval.start):
            total[position] += weight
    return total


def complementary(intervals: Sequence[Interval], masks: Sequence[Mask]) -> tuple[Mask, ...]:
    """Masks that add up to 1 at every position: unchanged if they do already, else divided by their sum.

    The sum over all tiles of products of weights on three axes is the product of the three sums, so that dividing each
    axis once replaces the division of the video by a buffer of summed weights.
    """
    total = sums(intervals, masks)
    if all(isclose(weight, 1.0, abs_tol=1e-9) for weight in total):
        return tuple(masks)
    return tuple(
        tuple(weight / total[position] for position, weight in enumerate(mask, interval.start))
        for interval, mask in zip(intervals, masks, strict=True)
    )


def _ramp(length: int) -> list[float]:
    """Evenly rising weights between 0 and 1, both excluded."""
    return [step / (length + 1) for step in range(1, length + 1)]


# For apps with their own loop over tiles: names, arguments and results of the MLX ports' tilers.


@dataclass
class DimensionIntervals:
    """The overlapping intervals of one axis: one list per property, with an entry per interval."""

    starts: list[int]
    ends: list[int]  # one past the last position
    left_ramps: list[int]  # positions over which the interval fades in
    right_ramps: list[int]

    @classmethod
    def of(cls, intervals: Sequence[Interval]) -> "DimensionIntervals":
        """These intervals."""
        return cls(*map(list, zip(*intervals, strict=True)))


def split_in_spatial(size: int, overlap: int, dimension_size: int) -> DimensionIntervals:
    """Split height or width, `dimension_size` cells long, into intervals of `size` cells that share `overlap`."""
    return DimensionIntervals.of(split(dimension_size, size, overlap))


def split_in_temporal(size: int, overlap: int, dimension_size: int) -> DimensionIntervals:
    """As `split_in_spatial`, for latent frames: all intervals but the first start one frame earlier, for context."""
    return DimensionIntervals.of(make_causal(split(dimension_size, size, overlap)))
