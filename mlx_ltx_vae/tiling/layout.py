"""The tiles of a clip, on the latent grid and in the video, and which run together. Pure Python, no MLX."""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import product
from typing import NamedTuple

from ..errors import TilingError
from ..shapes import Grid, ScaleFactors
from .config import SpatialTilingConfig, TemporalTilingConfig, TilingConfig
from .intervals import Interval, Mask, complementary, make_causal, split, trapezoids

TileBox = tuple[Interval, Interval, Interval]  # intervals of time, height and width

_MIN_CELLS_PER_TILE = 2


class Tile(NamedTuple):
    """A crop of the clip on the latent grid, and the same in frames and pixels."""

    latent: TileBox
    pixels: TileBox

    @property
    def latent_size(self) -> Grid:
        time, height, width = self.latent
        return time.length, height.length, width.length

    @property
    def output_size(self) -> Grid:
        time, height, width = self.pixels
        return time.length, height.length, width.length


class BlendAxis(NamedTuple):
    """One axis of the blended result: pixels for a decode, latents for an encode."""

    intervals: tuple[Interval, ...]
    masks: tuple[Mask, ...]  # of each tile; they add up to 1 at every position

    @property
    def length(self) -> int:
        return self.intervals[-1].end

    def final(self) -> list[int]:
        """How many positions become final with each interval: those before the start of the next one."""
        starts = [interval.start for interval in self.intervals] + [self.length]
        return [after - before for before, after in zip(starts, starts[1:], strict=False)]


@dataclass(frozen=True)
class TileAxis:
    """One axis split into tiles, on the latent grid and in pixels (or frames)."""

    latent: tuple[Interval, ...]
    pixels: tuple[Interval, ...]
    from_zero: bool  # left ramps start with a weight of 0, as they do in time

    def blended(self, *, is_decode: bool) -> BlendAxis:
        """Pixels as a decode blends them, or latents as an encode does, with masks of their own."""
        intervals = self.pixels if is_decode else self.latent
        return BlendAxis(intervals, complementary(intervals, trapezoids(intervals, from_zero=self.from_zero)))


def space_axis(intervals: Sequence[Interval], scale: int) -> TileAxis:
    """Height or width from its intervals on the latent grid, at `scale` pixels per latent cell."""
    return TileAxis(tuple(intervals), tuple(Interval(*(scale * value for value in each)) for each in intervals), False)


def time_axis(intervals: Sequence[Interval], scale: int, first: int = 1) -> TileAxis:
    """Time, at `scale` frames per latent frame; the first decodes to `first` frames, in the clip and in each tile."""
    frames = tuple(
        Interval(scale * start, first + scale * (end - 1), first + scale * (left - 1) if left else 0, scale * right)
        for start, end, left, right in intervals
    )
    return TileAxis(tuple(intervals), frames, True)


@dataclass(frozen=True)
class TileLayout:
    """All tiles of one clip: each interval of time combined with each interval of height and width."""

    time: TileAxis  # its intervals have causal context, see `make_causal`
    height: TileAxis
    width: TileAxis

    @classmethod
    def make(
        cls, config: TilingConfig, latent_grid: Sequence[int], scale: ScaleFactors, first_frames: int = 1
    ) -> "TileLayout":
        """The tiles of a clip of latents (F', H', W'), whose first latent frame decodes to `first_frames` frames."""
        frames, rows, columns = latent_grid
        height, width = config.height_config or config.spatial_config, config.width_config or config.spatial_config
        return cls(
            time_axis(make_causal(_split(frames, config.temporal_config, scale.time)), scale.time, first_frames),
            space_axis(_split(rows, height, scale.height), scale.height),
            space_axis(_split(columns, width, scale.width), scale.width),
        )

    def groups(self) -> Iterator[list[Tile]]:
        """The tiles of each interval of time, in order; within an interval, row by row."""
        time, height, width = (
            list(zip(axis.latent, axis.pixels, strict=True)) for axis in (self.time, self.height, self.width)
        )
        for frames in time:
            yield [Tile(*zip(frames, rows, columns, strict=True)) for rows, columns in product(height, width)]

    def blended(self, *, is_decode: bool) -> tuple[BlendAxis, BlendAxis, BlendAxis]:
        time, height, width = (axis.blended(is_decode=is_decode) for axis in (self.time, self.height, self.width))
        return time, height, width


def _split(length: int, config: SpatialTilingConfig | TemporalTilingConfig | None, scale: int) -> tuple[Interval, ...]:
    if config is None:
        return (Interval(0, length),)
    size, overlap = astuple(config)
    unit, minimum = "frames" if isinstance(config, TemporalTilingConfig) else "pixels", _MIN_CELLS_PER_TILE * scale
    if size % scale or size < minimum:
        nearest = sorted({max(multiple, minimum) for multiple in range(size // scale * scale, size + scale, scale)})
        raise TilingError(
            f"a tile of {size} {unit} does not fit this VAE, whose tiles must be a multiple of {scale} {unit} and at "
            f"least {minimum}; use {' or '.join(map(str, nearest))}."
        )
    if overlap % scale:
        nearest = [multiple for multiple in range(overlap // scale * scale, overlap + scale, scale) if multiple < size]
        raise TilingError(
            f"a tile overlap of {overlap} {unit} does not fit this VAE, whose overlaps must be a multiple of {scale} "
            f"{unit}; use {' or '.join(map(str, nearest))}."
        )
    return split(length, size // scale, overlap // scale)


def check_batch_size(tile_batch_size: int) -> None:
    """Raise a `TilingError` unless a batch size is a whole number of at least 1."""
    if isinstance(tile_batch_size, bool) or not isinstance(tile_batch_size, int) or tile_batch_size < 1:
        raise TilingError(f"a tile batch size must be a whole number of at least 1, not {tile_batch_size!r}.")


def tile_batches(tiles: Sequence[Tile], tile_batch_size: int) -> list[list[int]]:
    """Indices into `tiles`, in batches of at most `tile_batch_size` tiles of equal shape for one call of a network."""
    check_batch_size(tile_batch_size)
    by_shape: dict[Grid, list[int]] = {}
    for index, tile in enumerate(tiles):
        by_shape.setdefault(tile.output_size, []).append(index)
    return [
        indices[start : start + tile_batch_size]
        for indices in by_shape.values()
        for start in range(0, len(indices), tile_batch_size)
    ]
