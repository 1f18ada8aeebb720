"""Splits, slices and masks of one axis, for apps with their own loop over tiles.

Names, arguments and results are those of the MLX ports' tilers. Masks are float32 arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import TilingError
from .intervals import Interval, make_causal, split, trapezoid
from .layout import TileAxis, space_axis, time_axis

if TYPE_CHECKING:
    import mlx.core as mx


@dataclass
class DimensionIntervals:
    """The overlapping intervals of one axis: one list per property, with an entry per interval."""

    starts: list[int]
    ends: list[int]  # one past the last position
    left_ramps: list[int]  # positions over which the interval fades in
    right_ramps: list[int]


def split_in_spatial(size: int, overlap: int, dimension_size: int) -> DimensionIntervals:
    """Split height or width, `dimension_size` cells long, into intervals of `size` cells that share `overlap`."""
    return _by_property(split(dimension_size, size, overlap))


def split_in_temporal(size: int, overlap: int, dimension_size: int) -> DimensionIntervals:
    """As `split_in_spatial`, for latent frames: all intervals but the first start one frame earlier, for context."""
    return _by_property(make_causal(split(dimension_size, size, overlap)))


def compute_trapezoidal_mask_1d(
    length: int, ramp_left: int, ramp_right: int, left_starts_from_0: bool = False
) -> "mx.array":
    """A float32 mask (length,) that rises over `ramp_left` positions, stays at 1, and falls over `ramp_right`.

    Ramps longer than the mask are shortened to it, and negative ramps count as 0.
    """
    import mlx.core as mx  # not where plans are made

    if length < 1:
        raise TilingError(f"a mask of length {length} has no positions; it must have at least 1.")
    return mx.array(trapezoid(length, max(ramp_left, 0), max(ramp_right, 0), from_zero=left_starts_from_0))


def map_spatial_slice(begin: int, end: int, left_ramp: int, right_ramp: int, scale: int) -> "tuple[slice, mx.array]":
    """The pixels of an interval of latent cells, as a slice, and their mask, at `scale` pixels per cell."""
    return _slice_and_mask(space_axis([Interval(begin, end, left_ramp, right_ramp)], scale))


def map_temporal_slice(begin: int, end: int, left_ramp: int, right_ramp: int, scale: int) -> "tuple[slice, mx.array]":
    """The frames of an interval of latent frames, as a slice, and their mask, at `scale` frames per latent frame."""
    return _slice_and_mask(time_axis([Interval(begin, end, left_ramp, right_ramp)], scale))


def _by_property(intervals: Sequence[Interval]) -> DimensionIntervals:
    return DimensionIntervals(*map(list, zip(*intervals, strict=True)))


def _slice_and_mask(axis: TileAxis) -> "tuple[slice, mx.array]":
    (interval,) = axis.pixels
    mask = compute_trapezoidal_mask_1d(interval.length, interval.left_ramp, interval.right_ramp, axis.from_zero)
    return interval.as_slice, mask
