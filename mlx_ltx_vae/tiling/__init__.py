"""Overlapping tiles of a clip, decoded or encoded one by one and blended where they overlap.

Sizes, positions and masks are pure Python; only `blend` uses MLX.
"""

from ..errors import TilingError
from .batches import check_batch_size, in_tile_order, tile_batches
from .blend import SpatialBlender, blend_tiles, decode_with_tiling
from .config import PRESETS, SpatialTilingConfig, TemporalTilingConfig, TilingConfig, parse_tile, preset
from .intervals import Interval, make_causal, split
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
    "parse_tile",
    "preset",
    "space_axis",
    "split",
    "tile_batches",
    "time_axis",
]
