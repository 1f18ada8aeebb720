"""Tiles: a clip cut into overlapping boxes, each decoded by itself, blended where they overlap.

Geometry is pure arithmetic, testable number by number; only `blend` computes.
"""

from ..errors import TilingError
from .batches import check_batch_size, in_tile_order, tile_batches
from .blend import SpatialBlender, blend_tiles, decode_with_tiling
from .config import PRESETS, SpatialTilingConfig, TemporalTilingConfig, TilingConfig, preset
from .intervals import Interval, make_causal, split, split_by_count, split_with_minimum
from .layout import BlendAxis, Tile, TileAxis, TileLayout, space_axis, time_axis

__all__ = [
    "PRESETS",
    "BlendAxis",
    "Interval",
    "SpatialBlender",
    "SpatialTilingConfig",
    "TemporalTilingConfig",
    "Tile",
    "TileAxis",
    "TileLayout",
    "TilingConfig",
    "TilingError",
    "blend_tiles",
    "check_batch_size",
    "decode_with_tiling",
    "in_tile_order",
    "make_causal",
    "preset",
    "space_axis",
    "split",
    "split_by_count",
    "split_with_minimum",
    "tile_batches",
    "time_axis",
]
