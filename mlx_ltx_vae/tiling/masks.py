"""Blend masks: the weight of each position of a tile. Pure Python, no MLX."""

from collections.abc import Sequence
from math import isclose

from .intervals import Interval

#: A weight in [0, 1] for each position of an interval.
Mask = tuple[float, ...]


def trapezoid(length: int, left_ramp: int, right_ramp: int, *, from_zero: bool = False) -> Mask:
    """A mask that rises over `left_ramp` positions (`from_zero`, if so), stays at 1, and falls over `right_ramp`.

    Ramps longer than the mask are shortened to it. Ramps that overlap are multiplied.
    """
    left_ramp, right_ramp = min(left_ramp, length), min(right_ramp, length)
    rising = [0.0, *_ramp(left_ramp - 1)] if from_zero and left_ramp else _ramp(left_ramp)
    falling = _ramp(right_ramp)[::-1]
    left = rising + [1.0] * (length - left_ramp)
    right = [1.0] * (length - right_ramp) + falling
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

    The weight of a position in a video is the product of its weights on the three axes, and the sum of these products
    over all tiles is the product of the three sums. Dividing each axis once here therefore replaces the division of
    the video by a buffer of summed weights.
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
