"""Tile sizes and overlaps in pixels and frames, and the presets. Pure Python, no MLX."""

import re
from dataclasses import dataclass
from typing import Any

from ..errors import TilingError, quote

#: Names that `preset` accepts.
PRESETS = ("auto", "default", "aggressive", "conservative", "spatial_only", "temporal_only", "wide")


@dataclass(frozen=True)
class SpatialTilingConfig:
    """Tiles along height or width, and the pixels that adjacent tiles share: from 0 to less than the tile size.

    Other sizes raise a `TilingError`. Plans raise it if a size is not a multiple of the VAE's pixels per latent cell,
    or tiles are shorter than two cells: 64 pixels for a VAE of 32 pixels per cell.
    """

    tile_size_in_pixels: int
    tile_overlap_in_pixels: int = 0

    def __post_init__(self) -> None:
        _check_sizes(self.tile_size_in_pixels, self.tile_overlap_in_pixels, "pixels")


@dataclass(frozen=True)
class TemporalTilingConfig:
    """Tiles along time, with the rules and errors of `SpatialTilingConfig`, for frames instead of pixels.

    A VAE of 8 frames per latent frame needs multiples of 8 frames, and tiles of at least 16.
    """

    tile_size_in_frames: int
    tile_overlap_in_frames: int = 0

    def __post_init__(self) -> None:
        _check_sizes(self.tile_size_in_frames, self.tile_overlap_in_frames, "frames")


@dataclass(frozen=True)
class TilingConfig:
    """Sizes and overlaps of the tiles of a video. An axis without a configuration is not split.

    `height_config` and `width_config` override `spatial_config` for their axis.
    """

    spatial_config: SpatialTilingConfig | None = None
    temporal_config: TemporalTilingConfig | None = None
    height_config: SpatialTilingConfig | None = None
    width_config: SpatialTilingConfig | None = None

    @classmethod
    def of(cls, config: Any) -> "TilingConfig":
        """Convert an app's object with `spatial_config` and `temporal_config`.

        The sizes along time may have the names `chunk_size_in_frames` and `chunk_overlap_in_frames`.
        """
        if isinstance(config, cls):
            return config
        try:
            sides = [getattr(config, name, None) for name in ("height_config", "width_config")]
            space, height, width = (
                axis and SpatialTilingConfig(axis.tile_size_in_pixels, axis.tile_overlap_in_pixels)
                for axis in (config.spatial_config, *sides)
            )
            time = config.temporal_config
            noun = "chunk" if hasattr(time, "chunk_size_in_frames") else "tile"
            sizes = (f"{noun}_size_in_frames", f"{noun}_overlap_in_frames")
            time = time and TemporalTilingConfig(*(getattr(time, size) for size in sizes))
        except AttributeError as error:
            raise TilingError(
                f"the tiles are a {type(config).__name__} ({error}); expected a TilingConfig, or an object with its "
                "attributes."
            ) from error
        return cls(space, time, height, width)

    @classmethod
    def default(cls) -> "TilingConfig":
        """Return 512 px tiles overlapping by 64, and 64-frame tiles overlapping by 24."""
        return cls(SpatialTilingConfig(512, 64), TemporalTilingConfig(64, 24))

    @classmethod
    def spatial_only(cls, tile_size: int = 512, overlap: int = 64) -> "TilingConfig":
        """Return tiles of these pixels along height and width only."""
        return cls(spatial_config=SpatialTilingConfig(tile_size, overlap))

    @classmethod
    def temporal_only(cls, tile_size: int = 64, overlap: int = 24) -> "TilingConfig":
        """Return tiles of these frames along time only."""
        return cls(temporal_config=TemporalTilingConfig(tile_size, overlap))

    @classmethod
    def aggressive(cls) -> "TilingConfig":
        """Return 256 px tiles overlapping by 64, and 32-frame tiles overlapping by 8: the least memory."""
        return cls(SpatialTilingConfig(256, 64), TemporalTilingConfig(32, 8))

    @classmethod
    def conservative(cls) -> "TilingConfig":
        """Return 768 px tiles overlapping by 64, and 96-frame tiles overlapping by 24: the fewest seams."""
        return cls(SpatialTilingConfig(768, 64), TemporalTilingConfig(96, 24))

    @classmethod
    def wide(cls) -> "TilingConfig":
        """Return 512 px tiles overlapping by 160, and 96-frame tiles overlapping by 40, for large receptive fields."""
        return cls(SpatialTilingConfig(512, 160), TemporalTilingConfig(96, 40))

    @classmethod
    def auto(
        cls, height: int, width: int, num_frames: int, spatial_threshold: int = 512, temporal_threshold: int = 65
    ) -> "TilingConfig | None":
        """Return the default sizes along the axes that exceed their threshold, or `None` if no axis does.

        Sizes are in pixels and frames; `spatial_threshold` is for the longer side. The tiles are the same for every
        video: smaller tiles have less context, and look worse.
        """
        space, time = max(height, width) > spatial_threshold, num_frames > temporal_threshold
        if not (space or time):
            return None
        default = cls.default()
        return cls(default.spatial_config if space else None, default.temporal_config if time else None)


def preset(name: str, height: int, width: int, num_frames: int) -> TilingConfig | None:
    """Return the preset of this name. Only "auto" depends on the video's size, and is `None` if it needs no tiles."""
    if name not in PRESETS:
        raise TilingError(f"unknown tiling preset {name!r}; choose one of {', '.join(PRESETS)}.")
    return TilingConfig.auto(height, width, num_frames) if name == "auto" else getattr(TilingConfig, name)()


def parse_tile(text: str) -> tuple[int, int]:
    """Parse text such as "512:64" to the tile size and the overlap, which is 0 if it is left out, as in "512"."""
    match = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", text)
    if not match:
        raise TilingError(f"{quote(text)} is not a tile size with an optional overlap; write it as 512 or 512:64.")
    return int(match[1]), int(match[2] or 0)


def _check_sizes(size: int, overlap: int, unit: str) -> None:
    for value in (size, overlap):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TilingError(f"tile sizes and overlaps must be whole numbers of {unit}, not {value!r}.")
    if size < 1:
        raise TilingError(f"a tile size must be positive, not {size} {unit}.")
    if not 0 <= overlap < size:
        raise TilingError(f"the overlap of tiles of {size} {unit} must be from 0 to {size - 1} {unit}, not {overlap}.")
