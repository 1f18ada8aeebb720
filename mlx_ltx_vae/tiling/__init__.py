"""Tiles: a clip cut into overlapping boxes, each decoded by itself, blended where they overlap.

Geometry is pure arithmetic, testable number by number; only `blend` computes.
"""

from .blend import SpatialBlender, decode_with_tiling, tiled_frames
from .config import PRESETS, SpatialTilingConfig, TemporalTilingConfig, TilingConfig, preset
from .errors import TilingError
from .intervals import Interval, make_causal, split, split_by_count, split_with_minimum
from .layout import Tile, TileAxis, TileLayout, space_axis, time_axis

__all__ = [
    "PRESETS",
    "Interval",
    "SpatialBlender",
    "SpatialTilingConfig",
    "TemporalTilingConfig",
    "Tile",
    "TileAxis",
    "TileLayout",
    "TilingConfig",
    "TilingError",
    "decode_with_tiling",
    "make_causal",
    "preset",
    "space_axis",
    "split",
    "split_by_count",
    "split_with_minimum",
    "tiled_frames",
    "time_axis",
]
