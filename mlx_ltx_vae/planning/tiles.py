"""The tiles of a clip: which it is cut into, and the layers that run on each. Pure arithmetic, no MLX."""

from collections.abc import Iterator
from typing import Any

from ..errors import TilingError
from ..models.input_shapes import least_cells
from ..models.specs import NetworkSpec
from ..shapes import Grid, ScaleFactors
from ..streaming.axis import Axis
from ..tiling.config import SpatialTilingConfig, TemporalTilingConfig, TilingConfig
from ..tiling.layout import Tile, TileLayout, fitting_presets
from .clip import Clip
from .receptive_field import needed

# Tiles to try if no exact plan fits: side lengths, largest first, and overlap, in latent cells.
_LAST_RESORT_TILES = (32, 24, 16, 12, 8, 6)
_LAST_RESORT_OVERLAP = 2


def make_layout(clip: Clip, tiling: TilingConfig) -> TileLayout:
    """The tiles of a clip; a `TilingError` if the network cannot be run on them."""
    spec, grid = clip.spec, clip.latent_shape.grid
    rules = spec.tiles
    if rules.start:
        scales = spec.before_tiles().scale, _tile_scale(spec)
        added = [spec.added(axis, grid[axis.grid]) for axis in Axis]
        layout = TileLayout.behind(tiling, grid, tiled_grid(clip), rules, scales, added)
    else:
        layout = TileLayout.make(tiling, grid, clip.scale, spec.first_frames if clip.is_decode else 1)
        if clip.is_decode:
            _check_windows(spec, layout)
    if clip.excerpt is not None and len(layout.time.latent) > 1:
        raise TilingError("tiles in time would cut some frames of a clip elsewhere; use tiles in space only.")
    return layout


def default_tiling(clip: Clip) -> TilingConfig:
    """The first preset that fits the network."""
    presets = fitting_presets(clip.spec.tiles, _tile_scale(clip.spec))
    return next(iter(presets.values()), TilingConfig.default())


def last_resort_tilings(clip: Clip) -> Iterator[TilingConfig]:
    """Tiles in space, from large to small, of at least two overlaps. Those that run in turns are cut in time too."""
    rules, scale = clip.spec.tiles, _tile_scale(clip.spec)
    frames, *least = (cells * factor for cells, factor in zip(rules.overlap, scale, strict=True))
    time = TemporalTilingConfig(2 * frames, frames) if rules.start and clip.excerpt is None else None
    factors = clip.scale[1:]
    overlaps = [max(_LAST_RESORT_OVERLAP * factor, enough) for factor, enough in zip(factors, least, strict=True)]
    for cells in _LAST_RESORT_TILES:
        sides = [(cells * factor, overlap) for factor, overlap in zip(factors, overlaps, strict=True)]
        if cells < max(clip.latent_shape.grid[1:]) and all(size >= 2 * overlap for size, overlap in sides):
            height, width = (SpatialTilingConfig(*side) for side in sides)
            yield TilingConfig(temporal_config=time, height_config=height, width_config=width)


def tile_spec(spec: NetworkSpec, layout: TileLayout, tile: Tile) -> NetworkSpec:
    """The layers that run on a tile."""
    is_first, is_last = _ends(layout, tile)
    keyframes = tuple(spec.keyframes[plane] for plane in tile.planes(spec.keyframes))
    if keyframes and spec.variant is not None:
        spec = spec.variant(spec.denoising_steps, keyframes, tile.pixels[0].start)
    return spec.of_tile(first=is_first, last=is_last)


def call_kind(spec: NetworkSpec, layout: TileLayout, call: tuple[int, Tile]) -> tuple[Any, ...]:
    """What calls have in common that take the same memory; a call is a number of tiles, and one of them."""
    count, tile = call
    return count, tile.input_size(spec.keyframes), tile.output_size, _ends(layout, tile)


def _ends(layout: TileLayout, tile: Tile) -> tuple[bool, bool]:
    time = tile.latent[0]
    return not time.start, time.end == layout.time.latent[-1].end


def tiled_grid(clip: Clip) -> Grid:
    """(T, H, W) of what is cut into tiles, without keyframe planes."""
    if not clip.spec.tiles.start:
        return clip.grid
    frames, height, width = clip.spec.before_tiles().out_grid(clip.grid)
    return frames - len(clip.spec.keyframes), height, width


def blended_frame(clip: Clip, layout: TileLayout) -> int:
    """Elements of one position in time of the whole batch that tiles are blended to, with the padding of a decode."""
    _, rows, columns = layout.blended(is_decode=clip.is_decode)
    return clip.batch * clip.spec.out_channels * rows.length * columns.length


def latents_of(clip: Clip, cells: int) -> int:
    """The latent frames that are required before there are so many cells of what is cut into tiles, along time."""
    if not clip.spec.tiles.start:
        return cells
    return min(clip.grid[0], needed(clip.spec.before_tiles(), Axis.TIME, cells))


def _tile_scale(spec: NetworkSpec) -> ScaleFactors:
    return spec.of_tile(first=True, last=True).scale


def _check_windows(spec: NetworkSpec, layout: TileLayout) -> None:
    """Check that no tile, such as a short last one, is shorter than the network's windows."""
    for axis, tiles in zip(Axis, (layout.time, layout.height, layout.width), strict=True):
        shortest, least = min(each.length for each in tiles.latent), least_cells(spec, axis)
        if shortest < least:
            raise TilingError(
                f"the shortest tile has {shortest} latent cells along one axis, and this VAE needs at least {least}; "
                "use other tile sizes, or mode exact."
            )
