"""Tiles of a clip: intervals of one axis and the weights of their positions, and their combinations. No MLX."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from itertools import product
from math import isclose
from typing import NamedTuple

from ..errors import TilingError
from ..shapes import Grid, Interval, ScaleFactors, TileRules
from .config import PRESETS, TilingConfig

#: Weights in [0, 1], one for each position of an interval.
Mask = tuple[float, ...]


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
    """Grow the last interval to the length `least`, if it is shorter: it begins earlier, and overlaps by more."""
    *earlier, last = intervals
    if not earlier or last.length >= least:
        return tuple(intervals)
    previous, start = earlier.pop(), last.end - least
    overlap = previous.end - start
    return (*earlier, previous._replace(right_ramp=overlap), Interval(start, last.end, overlap))


def make_causal(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """Start all intervals of latent frames but the first one frame earlier, with a left ramp one longer.

    The extra frame becomes the tile's first, which decodes to one frame instead of `scale`. Its weight is 0, so it is
    context only.
    """
    first, *later = intervals
    return (first, *(Interval(start - 1, end, left + 1, right) for start, end, left, right in later))


def trapezoid(length: int, left_ramp: int, right_ramp: int, *, from_zero: bool = False) -> Mask:
    """Return a mask that rises over `left_ramp` positions, stays at 1, and falls over `right_ramp`.

    `from_zero` starts the left ramp at 0. Ramps longer than the mask are shortened to it. Ramps that overlap are
    multiplied.
    """
    left_ramp, right_ramp = min(left_ramp, length), min(right_ramp, length)
    rising = [0.0, *_ramp(left_ramp - 1)] if from_zero and left_ramp else _ramp(left_ramp)
    left = rising + [1.0] * (length - left_ramp)
    right = [1.0] * (length - right_ramp) + _ramp(right_ramp)[::-1]
    return tuple(rise * fall for rise, fall in zip(left, right, strict=True))


def trapezoids(intervals: Sequence[Interval], *, from_zero: bool = False) -> tuple[Mask, ...]:
    """Return the mask of each interval, from its ramps."""
    return tuple(
        trapezoid(interval.length, interval.left_ramp, interval.right_ramp, from_zero=from_zero)
        for interval in intervals
    )


def sums(intervals: Sequence[Interval], masks: Sequence[Mask]) -> list[float]:
    """Return the sum of the masks of all intervals, at each position of the axis."""
    total = [0.0] * max(interval.end for interval in intervals)
    for interval, mask in zip(intervals, masks, strict=True):
        for position, weight in enumerate(mask, interval.start):
            total[position] += weight
    return total


def complementary(intervals: Sequence[Interval], masks: Sequence[Mask]) -> tuple[Mask, ...]:
    """Return masks that add up to 1 at every position: the same ones if they do already, else divided by their sum.

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
    """Return evenly rising weights between 0 and 1, both excluded."""
    return [step / (length + 1) for step in range(1, length + 1)]


TileBox = tuple[Interval, Interval, Interval]  # intervals of time, height and width


class Tile(NamedTuple):
    """Crop of the clip on the latent grid, or on the grid that is cut (see `TileRules`), and in frames and pixels."""

    latent: TileBox
    pixels: TileBox

    @property
    def output_size(self) -> Grid:
        time, height, width = self.pixels
        return time.length, height.length, width.length

    def planes(self, keyframes: Sequence[int]) -> tuple[int, ...]:
        """Return the indices of the tile's keyframe planes: the ones in its frames, and the nearest on each side."""
        frames = self.pixels[0]
        earlier = [plane for plane, frame in enumerate(keyframes) if frame < frames.start]
        later = [plane for plane, frame in enumerate(keyframes) if frame >= frames.end]
        planes = set(range(len(keyframes))).difference(earlier, later)
        planes |= {max(earlier, key=keyframes.__getitem__)} if earlier else set()
        return tuple(sorted(planes | {min(later, key=keyframes.__getitem__)} if later else planes))

    def input_size(self, keyframes: Sequence[int]) -> Grid:
        """Return the size (T, H, W) of the tile's input, with its keyframe planes."""
        time, height, width = self.latent
        return time.length + len(self.planes(keyframes)), height.length, width.length

    def run_size(self, keyframes: Sequence[int], *, is_decode: bool) -> Grid:
        """Return the size (T, H, W) of what the network gets for this tile: latents, or the frames of an encode."""
        return self.input_size(keyframes) if is_decode else self.output_size


@dataclass(frozen=True)
class TileAxis:
    """Axis split into tiles, on the latent grid and in pixels (or frames)."""

    latent: tuple[Interval, ...]
    pixels: tuple[Interval, ...]
    from_zero: bool  # left ramps start with a weight of 0, as they do in time

    def blended(self, *, is_decode: bool) -> tuple[Interval, ...]:
        """Return the intervals that are blended: of the pixels of a decode, or of the latents of an encode."""
        return self.pixels if is_decode else self.latent

    def masks(self, *, is_decode: bool) -> tuple[Mask, ...]:
        """Return the mask of each interval that is blended. They add up to 1 at every position."""
        intervals = self.blended(is_decode=is_decode)
        return complementary(intervals, trapezoids(intervals, from_zero=self.from_zero))

    def final(self, *, is_decode: bool) -> list[int]:
        """Return how many positions become final with each interval: the ones before the start of the next interval."""
        intervals = self.blended(is_decode=is_decode)
        starts = [interval.start for interval in intervals] + [intervals[-1].end]
        return [after - before for before, after in zip(starts, starts[1:], strict=False)]


def space_axis(intervals: Sequence[Interval], scale: int) -> TileAxis:
    """Make the axis of height or width from its intervals on the latent grid, at `scale` pixels per latent cell."""
    pixels = tuple(Interval(*(scale * value for value in interval)) for interval in intervals)
    return TileAxis(tuple(intervals), pixels, False)


def time_axis(intervals: Sequence[Interval], scale: int, first_frames: int = 1) -> TileAxis:
    """Make the axis of time, at `scale` frames per latent frame.

    The first latent frame of the clip, and of each tile, decodes to `first_frames` frames.
    """
    frames = tuple(
        Interval(
            scale * start,
            first_frames + scale * (end - 1),
            first_frames + scale * (left - 1) if left else 0,
            scale * right,
        )
        for start, end, left, right in intervals
    )
    return TileAxis(tuple(intervals), frames, True)


def inner_time_axis(intervals: Sequence[Interval], scale: int) -> TileAxis:
    """Make the axis of time for tiles of the result of a network's first layers, with `scale` frames per cell.

    The first cell of the clip becomes one frame. Tiles that begin later have all frames of their first cell.
    """
    frames = tuple(
        Interval(max(0, scale * (start - 1) + 1), scale * (end - 1) + 1, scale * left, scale * right)
        for start, end, left, right in intervals
    )
    return TileAxis(tuple(intervals), frames, False)


@dataclass(frozen=True)
class TileLayout:
    """Tiles of one clip: each interval of time combined with each interval of height and width."""

    time: TileAxis  # its intervals have causal context, see `make_causal`, if they are intervals of latents
    height: TileAxis
    width: TileAxis
    start: int = 0  # of the layers that run on each tile, see `TileRules`
    rate: int = 1  # cells along time per latent frame
    clip: TileBox | None = None  # the clip in the frames and pixels that the tiles cover, if these include padding

    @property
    def is_streamed(self) -> bool:
        """Return whether the tiles span the clip in time and are streamed side by side, frame by frame."""
        return len(self.time.latent) == 1 and not self.start

    @classmethod
    def make(
        cls, config: TilingConfig, latent_grid: Sequence[int], scale: ScaleFactors, first_frames: int = 1
    ) -> "TileLayout":
        """Make the tiles of a clip of latents (F', H', W'), whose first latent frame decodes to `first_frames`."""
        check(config, TileRules(), scale)
        time, height, width = (
            _intervals(length, size, overlap, factor)
            for length, (size, overlap, _), factor in zip(latent_grid, _sizes(config), scale, strict=True)
        )
        return cls(
            time_axis(make_causal(time), scale.time, first_frames),
            space_axis(height, scale.height),
            space_axis(width, scale.width),
        )

    @classmethod
    def behind(
        cls,
        config: TilingConfig,
        latent_grid: Grid,
        cells: Grid,
        rules: TileRules,
        scales: tuple[ScaleFactors, ScaleFactors],
        added: Sequence[tuple[int, int]],
    ) -> "TileLayout":
        """Make tiles of the result of the layers before `rules.start` for latents (F', H', W').

        These layers may pad the latents first.

        Args:
            cells: (T, H, W) of the result. The last tile includes the cells after the padded clip in time.
            scales: of the layers before the cut, and of the layers after it.
            added: positions that pad the latents before and after each axis.
        """
        check(config, rules, scales[1])
        scale_before, scale_after = scales
        padded_grid = tuple(length + sum(padding) for length, padding in zip(latent_grid, added, strict=True))
        axes = []
        for axis, length in enumerate(scale_before.video_grid(padded_grid)):
            size, overlap, _ = _sizes(config)[axis]
            intervals = _intervals(length, size, overlap, scale_after[axis])
            make_axis = space_axis if axis else inner_time_axis
            tile_axis = make_axis(grow_last(intervals, rules.size[axis]), scale_after[axis])
            *earlier, last = tile_axis.latent
            axes.append(replace(tile_axis, latent=(*earlier, last._replace(end=cells[axis]))))
        time, height, width = axes
        scale = ScaleFactors(*(before * after for before, after in zip(scale_before, scale_after, strict=True)))
        starts = [front * factor for (front, _), factor in zip(added, scale, strict=True)]
        extents = zip(starts, scale.video_grid(latent_grid), strict=True)
        frames, rows, columns = (Interval(start, start + extent) for start, extent in extents)
        clip = (frames, rows, columns) if any(map(sum, added)) else None
        return cls(time, height, width, rules.start, scale_before.time, clip)

    def groups(self) -> Iterator[list[Tile]]:
        """Yield the tiles of each interval of time, in order; within an interval, row by row."""
        time, height, width = (
            list(zip(axis.latent, axis.pixels, strict=True)) for axis in (self.time, self.height, self.width)
        )
        for frames in time:
            yield [Tile(*zip(frames, rows, columns, strict=True)) for rows, columns in product(height, width)]

    def size(self, *, is_decode: bool) -> Grid:
        """Return (T, H, W) of the blended pixels of a decode, or latents of an encode."""
        axes = self.time, self.height, self.width
        time, height, width = (axis.blended(is_decode=is_decode)[-1].end for axis in axes)
        return time, height, width


def fitting_presets(rules: TileRules, scale: ScaleFactors) -> dict[str, TilingConfig]:
    """Return the presets with tiles that can be cut, at `scale` pixels per cell of the grid."""
    presets: dict[str, TilingConfig] = {name: getattr(TilingConfig, name)() for name in PRESETS if name != "auto"}
    return {name: config for name, config in presets.items() if _fits(config, rules, scale)}


def check(config: TilingConfig, rules: TileRules, scale: ScaleFactors) -> None:
    """Check that tiles of these sizes can be cut, at `scale` pixels per cell; raise a `TilingError` otherwise."""
    _check_cells(config, rules, scale)
    for (size, overlap, unit), least in zip(_sizes(config), _least_overlaps(rules, scale), strict=True):
        if size and overlap < least:
            frames, rows, columns = _least_overlaps(rules, scale)
            pixels = f"{rows} pixels" if rows == columns else f"{rows} pixels of height and {columns} of width"
            presets = " or ".join(fitting_presets(rules, scale))
            raise TilingError(
                f"a tile overlap of {overlap} {unit} does not fit this VAE, whose tiles must share at least {pixels} "
                f"and {frames} frames; use {max(size, 2 * least)}:{least} {unit}"
                f"{f', the preset {presets},' if presets else ''} or mode exact."
            )


def _fits(config: TilingConfig, rules: TileRules, scale: ScaleFactors) -> bool:
    with suppress(TilingError):
        _check_cells(config, rules, scale)
        pairs = zip(_sizes(config), _least_overlaps(rules, scale), strict=True)
        return all(overlap >= least for (size, overlap, _), least in pairs if size)
    return False


def _least_overlaps(rules: TileRules, scale: ScaleFactors) -> Grid:
    time, height, width = (cells * factor for cells, factor in zip(rules.overlap, scale, strict=True))
    return time, height, width


def _sizes(config: TilingConfig) -> list[tuple[int, int, str]]:
    """Return the size and overlap along time, height and width, with their unit. Size 0 is an axis without tiles."""
    time, space = config.temporal_config, config.spatial_config
    sides = [side or space for side in (config.height_config, config.width_config)]
    pixels = [(*(astuple(side) if side else (0, 0)), "pixels") for side in sides]
    return [(*(astuple(time) if time else (0, 0)), "frames"), *pixels]


def _intervals(length: int, size: int, overlap: int, scale: int) -> tuple[Interval, ...]:
    return split(length, size // scale, overlap // scale) if size else (Interval(0, length),)


def _check_cells(config: TilingConfig, rules: TileRules, scale: ScaleFactors) -> None:
    """Check that sizes and overlaps are whole cells and tiles are large enough; raise a `TilingError` otherwise."""
    for (size, overlap, unit), factor, cells in zip(_sizes(config), scale, rules.size, strict=True):
        minimum = cells * factor
        if size and (size % factor or size < minimum):
            multiples = range(size // factor * factor, size + factor, factor)
            nearest = sorted({max(multiple, minimum) for multiple in multiples})
            raise TilingError(
                f"a tile of {size} {unit} does not fit this VAE, whose tiles must be a multiple of {factor} {unit} and "
                f"at least {minimum}; use {' or '.join(map(str, nearest))}."
            )
        if overlap % factor:
            multiples = range(overlap // factor * factor, overlap + factor, factor)
            nearest = [multiple for multiple in multiples if multiple < size]
            raise TilingError(
                f"a tile overlap of {overlap} {unit} does not fit this VAE, whose overlaps must be a multiple of "
                f"{factor} {unit}; use {' or '.join(map(str, nearest))}."
            )


def tile_batches(tiles: Sequence[Tile], tile_batch_size: int) -> list[list[int]]:
    """Group the indices of tiles of equal shape in batches of at most `tile_batch_size`, one per call of a network."""
    by_shape: dict[Grid, list[int]] = {}
    for index, tile in enumerate(tiles):
        by_shape.setdefault(tile.output_size, []).append(index)
    return [
        indices[start : start + tile_batch_size]
        for indices in by_shape.values()
        for start in range(0, len(indices), tile_batch_size)
    ]


# For apps with their own loop over tiles: names, arguments and results of the MLX ports' tilers.


@dataclass
class DimensionIntervals:
    """Overlapping intervals of one axis: one list per property, with an entry per interval."""

    starts: list[int]
    ends: list[int]  # one past the last position
    left_ramps: list[int]  # positions over which the interval fades in
    right_ramps: list[int]

    @classmethod
    def of(cls, intervals: Sequence[Interval]) -> "DimensionIntervals":
        """Convert intervals."""
        return cls(*map(list, zip(*intervals, strict=True)))


def split_in_spatial(size: int, overlap: int, dimension_size: int) -> DimensionIntervals:
    """Split height or width, `dimension_size` cells long, into intervals of `size` cells that share `overlap`."""
    return DimensionIntervals.of(split(dimension_size, size, overlap))


def split_in_temporal(size: int, overlap: int, dimension_size: int) -> DimensionIntervals:
    """Split latent frames as `split_in_spatial`. All intervals but the first start one frame earlier, for context."""
    return DimensionIntervals.of(make_causal(split(dimension_size, size, overlap)))
