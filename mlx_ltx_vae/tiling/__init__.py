"""Overlapping tiles of a clip, decoded or encoded one by one and blended where they overlap.

Sizes, positions and masks are pure Python; only `blend` needs MLX.
"""

from typing import TYPE_CHECKING

from ..errors import TilingError
from ..startup import lazy_names
from .config import PRESETS, SpatialTilingConfig, TemporalTilingConfig, TilingConfig, parse_tile, preset
from .layout import DimensionIntervals, split_in_spatial, split_in_temporal

if TYPE_CHECKING:
    from .blend import compute_trapezoidal_mask_1d, decode_with_tiling, map_spatial_slice, map_temporal_slice
else:
    _LAZY = ("compute_trapezoidal_mask_1d", "decode_with_tiling", "map_spatial_slice", "map_temporal_slice")
    __getattr__ = lazy_names(__name__, dict.fromkeys(_LAZY, ".blend"))

__all__ = [
    "PRESETS", "DimensionIntervals", "SpatialTilingConfig", "TemporalTilingConfig", "TilingConfig", "TilingError",
    "compute_trapezoidal_mask_1d", "decode_with_tiling", "map_spatial_slice", "map_temporal_slice", "parse_tile",
    "preset", "split_in_spatial", "split_in_temporal",
]  # fmt: skip
