"""Where the tiles of one clip lie: on the latent grid and in its video. Pure arithmetic, no MLX."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import TilingError
from .config import SpatialTilingConfig, TemporalTilingConfig, TilingConfig
from .intervals import Interval, make_causal, split
from .masks import Mask, complementary, trapezoids


class Tile(NamedTuple):
    """A box of the clip: an interval each of time, height and width.

    Attributes:
        latent: the box on the latent grid.
        pixels: what it decodes to, in frames and pixels.
    """

    latent: tuple[Interval, Interval, Interval]
    pixels: tuple[Interval, Interval, Interval]

    @property
    def latent_slices(self) -> tuple[slice, slice, slice]:
        """Time, height and width of the latents as an index."""
        time, height, width = self.latent
        return time.as_slice, height.as_slice, width.as_slice

    @property
    def output_size(self) -> tuple[int, int, int]:
        """Frames, rows and columns that it decodes to."""
        time, height, width = self.pixels
        return time.length, height.length, width.length


class BlendAxis(NamedTuple):
    """One axis of what tiles are blended to: pixels where they were decoded, latents where they were encoded.

    Attributes:
        intervals: per tile, where it lies.
        masks: per tile, the weight of each of its positions. They add up to 1 everywhere.
    """

    intervals: tuple[Interval, ...]
    masks: tuple[Mask, ...]

    @property
    def length(self) -> int:
        """Positions of the whole axis."""
        return self.intervals[-1].end

    def final(self) -> list[int]:
        """For each interval, how many positions are final once it is there: all before the next one's."""
        starts = [interval.start for interval in self.intervals] + [self.length]
        return [after - before for before, after in zip(starts, starts[1:], strict=False)]


@dataclass(frozen=True)
class TileAxis:
    """One axis, cut: the same tiles on the latent grid and in pixels (or frames).

    A decode blends pixels and an encode latents; both masks are trapezoids of their own grid.

    Attributes:
        latent: on the latent grid.
        pixels: in pixels or frames.
        from_zero: whether left ramps begin with a weight of 0, as in time.
    """

    latent: tuple[Interval, ...]
    pixels: tuple[Interval, ...]
    from_zero: bool

    @property
    def length(self) -> int:
        """The axis's own length in pixels or frames."""
        return self.pixels[-1].end

    def decoded(self) -> BlendAxis:
        """What a decode blends."""
        return BlendAxis(self.pixels, complementary(self.pixels, trapezoids(self.pixels, from_zero=self.from_zero)))

    def encoded(self) -> BlendAxis:
        """What an encode blends."""
        return BlendAxis(self.latent, complementary(self.latent, trapezoids(self.latent, from_zero=self.from_zero)))


def space_axis(intervals: Sequence[Interval], scale: int) -> TileAxis:
    """Height or width, cut so on the latent grid, for a VAE of `scale` pixels per latent cell."""
    return TileAxis(tuple(intervals), tuple(Interval(*(scale * value for value in each)) for each in intervals), False)


def time_axis(intervals: Sequence[Interval], scale: int) -> TileAxis:
    """Time, cut so on the latent grid, for a VAE of `scale` frames per latent frame.

    The first latent frame of any clip decodes to one frame, and so does a tile's.
    """
    frames = tuple(
        Interval(scale * start, 1 + scale * (end - 1), 1 + scale * (left - 1) if left else 0, scale * right)
        for start, end, left, right in intervals
    )
    return TileAxis(tuple(intervals), frames, True)


@dataclass(frozen=True)
class TileLayout:
    """All tiles of one clip: every interval of time with every one of height and width.

    Attributes:
        time: cut causally, see `make_causal`.
        height: likewise without that.
        width: as height.
    """

    time: TileAxis
    height: TileAxis
    width: TileAxis

    @classmethod
    def make(
        cls, config: TilingConfig, latent_size: Sequence[int], *, spatial_scale: int = 32, temporal_scale: int = 8
    ) -> "TileLayout":
        """Cut a clip as `config` says.

        Args:
            config: sizes in pixels and frames.
            latent_size: (F', H', W').
            spatial_scale: pixels per latent cell.
            temporal_scale: frames per latent frame.

        Raises:
            TilingError: for sizes that are not whole latent cells.
        """
        frames, rows, columns = latent_size
        time = _split_time(frames, config.temporal_config, temporal_scale)
        height = _split_space(rows, config.height_config or config.spatial_config, spatial_scale)
        width = _split_space(columns, config.width_config or config.spatial_config, spatial_scale)
        return cls(
            time_axis(time, temporal_scale),
            space_axis(height, spatial_scale),
            space_axis(width, spatial_scale),
        )

    def groups(self) -> Iterator[list[Tile]]:
        """The tiles of each interval of time in order; within it rows outermost, then columns."""
        for time in _pairs(self.time):
            yield [
                Tile(*zip(time, height, width, strict=True))
                for height in _pairs(self.height)
                for width in _pairs(self.width)
            ]

    def decoded(self) -> tuple[BlendAxis, BlendAxis, BlendAxis]:
        """Time, height and width of what a decode blends."""
        return self.time.decoded(), self.height.decoded(), self.width.decoded()

    def encoded(self) -> tuple[BlendAxis, BlendAxis, BlendAxis]:
        """Time, height and width of what an encode blends."""
        return self.time.encoded(), self.height.encoded(), self.width.encoded()


def _split_time(length: int, config: TemporalTilingConfig | None, scale: int) -> tuple[Interval, ...]:
    if config is None:
        return (Interval(0, length),)
    size, overlap = config.tile_size_in_frames, config.tile_overlap_in_frames
    return make_causal(split(length, _cells(size, scale, "frames"), _cells(overlap, scale, "frames")))


def _split_space(length: int, config: SpatialTilingConfig | None, scale: int) -> tuple[Interval, ...]:
    if config is None:
        return (Interval(0, length),)
    size, overlap = config.tile_size_in_pixels, config.tile_overlap_in_pixels
    return split(length, _cells(size, scale, "pixels"), _cells(overlap, scale, "pixels"))


def _cells(size: int, scale: int, unit: str) -> int:
    """Latent cells that so many pixels or frames are."""
    if size % scale:
        raise TilingError(f"{size} {unit} are not whole latent cells of {scale}; take a multiple of {scale}.")
    return size // scale


def _pairs(axis: TileAxis) -> list[tuple[Interval, Interval]]:
    return list(zip(axis.latent, axis.pixels, strict=True))
