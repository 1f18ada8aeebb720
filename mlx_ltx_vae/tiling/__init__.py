"""Overlapping tiles of a clip, decoded or encoded one by one and blended where they overlap.

Sizes, positions and masks are pure Python; only `blend` and `helpers` use MLX.
"""

from ..errors import TilingError
from .batches import check_batch_size, in_tile_order, tile_batches
from .blend import SpatialBlender, blend_tiles, decode_with_tiling
from .config import PRESETS, SpatialTilingConfig, TemporalTilingConfig, TilingConfig, parse_tile, preset
from .helpers import (
    DimensionIntervals,
    compute_trapezoidal_mask_1d,
    map_spatial_slice,
    map_temporal_slice,
    split_in_spatial,
    split_in_temporal,
)
from .intervals import Interval, make_causal, split
from .layout import BlendAxis, Tile, TileAxis, TileLayout, space_axis, time_axis

__all__ = [
    "PRESETS",
    "BlendAxis",
    "DimensionIntervals",
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
    "compute_trapezoidal_mask_1d",
    "decode_with_tiling",
    "in_tile_order",
    "make_causal",
    "map_spatial_slice",
    "map_temporal_slice",
    "parse_tile",
    "preset",
    "space_axis",
    "split",
    "split_in_spatial",
    "split_in_temporal",
    "tile_batches",
    "time_axis",
]
