"""What a user says about tiles: sizes and overlaps in pixels and frames, and presets by name."""

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import TilingError

_MIN_PIXELS, _PIXEL_STEP = 64, 32
_MIN_FRAMES, _FRAME_STEP = 16, 8

# Above these `auto` takes the small tiles, whatever the sides are.
_LARGE_OUTPUT_BYTES = 2 * 2**30
_LARGE_FRAME, _LONG_CLIP = 768 * 1024, 100
_VERY_LONG_CLIP = 200


@dataclass(frozen=True)
class SpatialTilingConfig:
    """Tiles along height or width.

    Attributes:
        tile_size_in_pixels: at least 64, a multiple of 32.
        tile_overlap_in_pixels: pixels that neighbours share; a multiple of 32, smaller than the tile.

    Raises:
        TilingError: for other sizes.
    """

    tile_size_in_pixels: int
    tile_overlap_in_pixels: int = 0

    def __post_init__(self) -> None:
        _check(self.tile_size_in_pixels, self.tile_overlap_in_pixels, _MIN_PIXELS, _PIXEL_STEP, "pixels")


@dataclass(frozen=True)
class TemporalTilingConfig:
    """Tiles along time.

    Attributes:
        tile_size_in_frames: at least 16, a multiple of 8.
        tile_overlap_in_frames: frames that neighbours share; a multiple of 8, smaller than the tile.

    Raises:
        TilingError: for other sizes.
    """

    tile_size_in_frames: int
    tile_overlap_in_frames: int = 0

    def __post_init__(self) -> None:
        _check(self.tile_size_in_frames, self.tile_overlap_in_frames, _MIN_FRAMES, _FRAME_STEP, "frames")


@dataclass(frozen=True)
class TilingConfig:
    """How a video is cut into tiles. An axis without a configuration is not cut.

    Attributes:
        spatial_config: for height and width.
        temporal_config: for time.
        height_config: for height, instead of `spatial_config`.
        width_config: for width, instead of `spatial_config`.
    """

    spatial_config: SpatialTilingConfig | None = None
    temporal_config: TemporalTilingConfig | None = None
    height_config: SpatialTilingConfig | None = None
    width_config: SpatialTilingConfig | None = None

    @classmethod
    def default(cls) -> "TilingConfig":
        """512 pixels overlapping by 64, 64 frames overlapping by 24."""
        return cls(SpatialTilingConfig(512, 64), TemporalTilingConfig(64, 24))

    @classmethod
    def spatial_only(cls, tile_size: int = 512, overlap: int = 64) -> "TilingConfig":
        """Height and width cut, time whole."""
        return cls(spatial_config=SpatialTilingConfig(tile_size, overlap))

    @classmethod
    def temporal_only(cls, tile_size: int = 64, overlap: int = 24) -> "TilingConfig":
        """Time cut, frames whole."""
        return cls(temporal_config=TemporalTilingConfig(tile_size, overlap))

    @classmethod
    def aggressive(cls) -> "TilingConfig":
        """256 pixels overlapping by 64, 32 frames overlapping by 8: the least memory."""
        return cls(SpatialTilingConfig(256, 64), TemporalTilingConfig(32, 8))

    @classmethod
    def conservative(cls) -> "TilingConfig":
        """768 pixels overlapping by 64, 96 frames overlapping by 24: the fewest seams."""
        return cls(SpatialTilingConfig(768, 64), TemporalTilingConfig(96, 24))

    @classmethod
    def auto(
        cls, height: int, width: int, num_frames: int, spatial_threshold: int = 512, temporal_threshold: int = 65
    ) -> "TilingConfig | None":
        """Tiles for a video of this size, along the axes that are over their threshold.

        Returns:
            None where none is: the video needs no tiles.
        """
        cut_space = max(height, width) > spatial_threshold
        cut_time = num_frames > temporal_threshold
        if not cut_space and not cut_time:
            return None
        float32_bytes = 3 * num_frames * height * width * 4
        if float32_bytes > _LARGE_OUTPUT_BYTES or (height * width > _LARGE_FRAME and num_frames > _LONG_CLIP):
            return cls.aggressive()
        return cls(
            _auto_spatial(max(height, width)) if cut_space else None, _auto_temporal(num_frames) if cut_time else None
        )


_PRESETS: dict[str, Callable[[], TilingConfig]] = {
    "default": TilingConfig.default,
    "aggressive": TilingConfig.aggressive,
    "conservative": TilingConfig.conservative,
    "spatial_only": TilingConfig.spatial_only,
    "temporal_only": TilingConfig.temporal_only,
}


#: The names that `preset` knows.
PRESETS = ("auto", *_PRESETS)


def preset(name: str, height: int, width: int, num_frames: int) -> TilingConfig | None:
    """The preset of this name for a video of this size, which only "auto" looks at. None where auto wants no tiles.

    Raises:
        TilingError: for a name that is not known.
    """
    if name == "auto":
        return TilingConfig.auto(height, width, num_frames)
    if name not in _PRESETS:
        raise TilingError(f"tiling preset {name!r} is not known; there are {', '.join(PRESETS)}.")
    return _PRESETS[name]()


def _auto_spatial(side: int) -> SpatialTilingConfig:
    """Tiles for frames whose longer side this is; the very large get smaller ones."""
    return SpatialTilingConfig(512 if 768 < side <= 1024 else 384, 64)


def _auto_temporal(num_frames: int) -> TemporalTilingConfig:
    """Tiles for a clip of this length: the longer, the smaller."""
    if num_frames > _VERY_LONG_CLIP:
        return TemporalTilingConfig(32, 8)
    return TemporalTilingConfig(48, 16) if num_frames > _LONG_CLIP else TemporalTilingConfig(64, 24)


def _check(size: int, overlap: int, minimum: int, step: int, unit: str) -> None:
    for value in (size, overlap):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TilingError(f"tile sizes and overlaps are whole numbers of {unit}, and {value!r} is not.")
    if size < minimum or size % step:
        raise TilingError(f"a tile has at least {minimum} {unit} and a multiple of {step}, and {size} is not such.")
    if overlap < 0 or overlap % step or overlap >= size:
        raise TilingError(
            f"an overlap of tiles of {size} {unit} is a multiple of {step} from 0 to {size - step}, and not {overlap}."
        )
