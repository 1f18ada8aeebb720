"""Blend masks: how much each tile counts at each of its positions. Pure arithmetic, no MLX."""

from collections.abc import Sequence
from math import isclose

from .intervals import Interval

Mask = tuple[float, ...]


def trapezoid(length: int, left_ramp: int, right_ramp: int, *, from_zero: bool = False) -> Mask:
    """A mask that rises over `left_ramp` positions, stays 1, and falls over `right_ramp`.

    Args:
        length: of the mask. A longer ramp is shortened to it; where both ramps meet they are multiplied.
        left_ramp: positions below 1 at the beginning.
        right_ramp: positions below 1 at the end.
        from_zero: whether the first position of the left ramp counts nothing.
    """
    left_ramp, right_ramp = min(left_ramp, length), min(right_ramp, length)
    rising = [0.0, *_ramp(left_ramp - 1)] if from_zero and left_ramp else _ramp(left_ramp)
    falling = _ramp(right_ramp)[::-1]
    left = rising + [1.0] * (length - left_ramp)
    right = [1.0] * (length - right_ramp) + falling
    return tuple(rise * fall for rise, fall in zip(left, right, strict=True))


def trapezoids(intervals: Sequence[Interval], *, from_zero: bool = False) -> tuple[Mask, ...]:
    """The mask of each interval, as its ramps say."""
    return tuple(
        trapezoid(interval.length, interval.left_ramp, interval.right_ramp, from_zero=from_zero)
        for interval in intervals
    )


def sums(intervals: Sequence[Interval], masks: Sequence[Mask]) -> list[float]:
    """What the masks of all intervals add up to, at each position of the axis."""
    total = [0.0] * max(interval.end for interval in intervals)
    for interval, mask in zip(intervals, masks, strict=True):
        for position, weight in enumerate(mask, interval.start):
            total[position] += weight
    return total


def sum_to_one(intervals: Sequence[Interval], masks: Sequence[Mask]) -> bool:
    """Whether the masks add up to 1 everywhere, so that nothing has to be divided by their sum."""
    return all(isclose(total, 1.0, abs_tol=1e-9) for total in sums(intervals, masks))


def complementary(intervals: Sequence[Interval], masks: Sequence[Mask]) -> tuple[Mask, ...]:
    """The masks, divided by their sum where they do not add up to 1.

    The weight of a position in a video is the product of its weights on the three axes, and the sum over all tiles is
    the product of the three sums. So a division per axis, done here once, is the division by a buffer of summed
    weights, and no blending ever needs one.
    """
    if sum_to_one(intervals, masks):
        return tuple(masks)
    total = sums(intervals, masks)
    return tuple(
        tuple(weight / total[position] for position, weight in enumerate(mask, interval.start))
        for interval, mask in zip(intervals, masks, strict=True)
    )


def _ramp(length: int) -> list[float]:
    """Weights that rise evenly between 0 and 1, without either."""
    return [step / (length + 1) for step in range(1, length + 1)]
