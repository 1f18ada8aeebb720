"""The tiles that a clip is cut into, the layers that run on each, and the peak memory. No MLX."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..backend.machine import FLOAT32_BYTES
from ..errors import TilingError
from ..networks.specs import NetworkSpec, least_cells
from ..shapes import Axis, Grid, ScaleFactors
from ..tiling.config import SpatialTilingConfig, TemporalTilingConfig, TilingConfig
from ..tiling.layout import Tile, TileLayout, fitting_presets
from .clip import Clip, needed
from .memory import FRAMES_PER_CONVERSION, Memory, StreamRun, layer_pieces, stream_memory

# Tiles to try if no exact plan fits: side lengths, largest first, and overlap, in latent cells.
_LAST_RESORT_TILES = (32, 24, 16, 12, 8, 6)
_LAST_RESORT_OVERLAP = 2


def make_layout(clip: Clip, tiling: TilingConfig) -> TileLayout:
    """Return the tiles of a clip; raise `TilingError` if the network cannot run on them."""
    spec, grid = clip.spec, clip.latent_shape.grid
    rules = spec.tiles
    if rules.start:
        scales = spec.before_tiles().scale, _tile_scale(spec)
        added = [spec.added(axis, grid[axis.grid]) for axis in Axis]
        layout = TileLayout.behind(tiling, grid, tiled_grid(clip), rules, scales, added)
    else:
        layout = TileLayout.make(tiling, grid, spec.scale, spec.first_frames if clip.is_decode else 1)
        if clip.is_decode:
            _check_windows(spec, layout)
    if not clip.has_all_latents and len(layout.time.latent) > 1:
        raise TilingError("tiles in time would cut some frames of a clip elsewhere; use tiles in space only.")
    return layout


def default_tiling(clip: Clip) -> TilingConfig:
    """Return the first preset that fits the network."""
    presets = fitting_presets(clip.spec.tiles, _tile_scale(clip.spec))
    return next(iter(presets.values()), TilingConfig.default())


def last_resort_tilings(clip: Clip) -> Iterator[TilingConfig]:
    """Yield tiles in space, from large to small, of at least two overlaps. Some networks' are cut in time too."""
    rules, scale = clip.spec.tiles, _tile_scale(clip.spec)
    frames, *least = (cells * factor for cells, factor in zip(rules.overlap, scale, strict=True))
    time = TemporalTilingConfig(2 * frames, frames) if rules.start and clip.has_all_latents else None
    factors = clip.spec.scale[1:]
    overlaps = [max(_LAST_RESORT_OVERLAP * factor, enough) for factor, enough in zip(factors, least, strict=True)]
    for cells in _LAST_RESORT_TILES:
        sides = [(cells * factor, overlap) for factor, overlap in zip(factors, overlaps, strict=True)]
        if cells < max(clip.latent_shape.grid[1:]) and all(size >= 2 * overlap for size, overlap in sides):
            height, width = (SpatialTilingConfig(*side) for side in sides)
            yield TilingConfig(temporal_config=time, height_config=height, width_config=width)


def tile_spec(spec: NetworkSpec, layout: TileLayout, tile: Tile) -> NetworkSpec:
    """Return the layers that run on a tile."""
    is_first, is_last = _ends(layout, tile)
    keyframes = tuple(spec.keyframes[plane] for plane in tile.planes(spec.keyframes))
    if keyframes and spec.variant is not None:
        spec = spec.variant(spec.denoising_steps, keyframes, tile.pixels[0].start)
    return spec.of_tile(is_first=is_first, is_last=is_last)


def call_kind(spec: NetworkSpec, layout: TileLayout, call: tuple[int, Tile]) -> tuple[Any, ...]:
    """Return the properties of a call on which its memory depends. A call is a number of tiles, and one of them."""
    count, tile = call
    return count, tile.input_size(spec.keyframes), tile.output_size, _ends(layout, tile)


def _ends(layout: TileLayout, tile: Tile) -> tuple[bool, bool]:
    time = tile.latent[0]
    return not time.start, time.end == layout.time.latent[-1].end


def tiled_grid(clip: Clip) -> Grid:
    """Return (T, H, W) of the array that is cut into tiles, without keyframe planes."""
    if not clip.spec.tiles.start:
        return clip.grid
    frames, height, width = clip.spec.before_tiles().out_grid(clip.grid)
    return frames - len(clip.spec.keyframes), height, width


def blended_frame(clip: Clip, layout: TileLayout) -> int:
    """Return the number of elements of one blended position in time, for the whole batch, with a decode's padding."""
    _, height, width = layout.size(is_decode=clip.is_decode)
    return clip.batch * clip.spec.out_channels * height * width


def latents_of(clip: Clip, cells: int) -> int:
    """Return the latent frames that are required before this many cells of the tiled layer's input exist along time."""
    if not clip.spec.tiles.start:
        return cells
    return min(clip.grid[0], needed(clip.spec.before_tiles(), Axis.TIME, cells))


def _tile_scale(spec: NetworkSpec) -> ScaleFactors:
    return spec.of_tile(is_first=True, is_last=True).scale


def _check_windows(spec: NetworkSpec, layout: TileLayout) -> None:
    """Check that no tile, such as a short last one, is shorter than the network's windows."""
    for axis, tiles in zip(Axis, (layout.time, layout.height, layout.width), strict=True):
        shortest, least = min(interval.length for interval in tiles.latent), least_cells(spec, axis)
        if shortest < least:
            raise TilingError(
                f"the shortest tile has {shortest} latent cells along one axis, and this VAE needs at least {least}; "
                "use other tile sizes, or mode exact."
            )


_MARGIN = 1.05  # for uncounted memory: small arrays, rounding of allocations to pages


def tiled_memory(
    clip: Clip, layout: TileLayout, calls: Sequence[tuple[int, Tile]], run: StreamRun, chunk: int
) -> Memory:
    """Return the peak memory of a tiled run, without MLX's buffer cache.

    Args:
        calls: for each run of the network, the number of tiles and one of them.
        run: the parameters that all tiles share; `pieces` is ignored.
    """

    def stream(count: int, tile: Tile) -> Memory:
        grid, steps = clip.boxes(tile)[0], (run.steps or ())[layout.start :]
        tile_run = replace(run, pieces=clip.pieces(grid[run.axis.grid], chunk * layout.rate), steps=steps)
        return stream_memory(tile_spec(clip.spec, layout, tile), grid, count * clip.batch, tile_run)

    kinds = {call_kind(clip.spec, layout, call): call for call in calls}
    memories = {kind: stream(*call) for kind, call in kinds.items()}
    if layout.is_streamed:
        return _side_by_side(clip, calls, [memories[call_kind(clip.spec, layout, call)] for call in calls], run, chunk)
    largest = max(memories.values(), key=lambda memory: memory.active)
    memory = _one_by_one(clip, layout, calls, largest, run, chunk)
    return _with_whole_layers(clip, layout, memory, run, chunk) if layout.start else memory


def _with_whole_layers(clip: Clip, layout: TileLayout, tiles: Memory, run: StreamRun, chunk: int) -> Memory:
    """Add the stream of the layers that run on the whole clip, and their results for an interval of time."""
    first_layers = clip.spec.before_tiles()
    steps = (run.steps or ())[: layout.start]
    pieces = clip.pieces(clip.grid[run.axis.grid], chunk)
    memory = stream_memory(first_layers, clip.grid, clip.batch, replace(run, pieces=pieces, steps=steps))
    frames, height, width = first_layers.out_grid(clip.grid)
    longest = max(span.length for span in layout.time.latent)
    if not clip.spec.keyframes:  # with keyframes, the first layers finish before the tiles start
        frames = min(frames, longest + chunk * layout.rate)
    cells = frames * height * width
    held = clip.batch * cells * first_layers.out_channels * run.machine.itemsize
    return Memory(
        weights=clip.spec.num_weights * run.machine.itemsize,
        inputs=clip.input_bytes(run.machine.itemsize, chunk),
        caches=memory.idle_caches + math.ceil(_MARGIN * held),
        work=max(tiles.work, memory.caches + memory.work - memory.idle_caches),
    )


def _side_by_side(
    clip: Clip, calls: Sequence[tuple[int, Tile]], memories: Sequence[Memory], run: StreamRun, chunk: int
) -> Memory:
    """Return the memory of tiles in space only: each call is a stream, and all streams are interleaved."""
    itemsize = run.machine.itemsize
    sizes = [math.prod(clip.boxes(tile)[0][1:]) for _, tile in calls]
    crops = sum(count * size for (count, _), size in zip(calls, sizes, strict=True))
    # The frames that the last layer returns are blended together.
    *_, results = layer_pieces(clip.spec, clip.grid, replace(run, pieces=clip.pieces(clip.grid[0], chunk)))
    elements = max(results) * clip.out_frame
    frames, frame_positions = elements * FLOAT32_BYTES, math.prod(clip.grid[1:])
    is_alone = sum(count for count, _ in calls) == 1  # a single tile is only converted to float32
    # All tiles wait until the last one is blended, which needs the frames, a weighted tile, and its sum with them.
    tiles = 0 if is_alone and itemsize == FLOAT32_BYTES else elements * itemsize * crops // frame_positions
    blending = frames + (0 if is_alone else 2 * frames * max(sizes) // frame_positions)
    held = elements * clip.value_bytes(itemsize)  # previous frames, which the consumer still holds
    largest = max(memories, key=lambda memory: memory.caches + memory.work - memory.idle_caches)
    caches = largest.caches + sum(memory.idle_caches for memory in memories) - largest.idle_caches
    inputs = clip.input_bytes(itemsize, chunk, frame_size=crops)
    piece_bytes = 0 if clip.is_decode or clip.joined else clip.piece_bytes(itemsize, chunk)
    work = max(held + max(largest.work, blending) + tiles, held + 3 * frames, piece_bytes)
    return Memory(largest.weights, inputs, math.ceil(_MARGIN * caches), math.ceil(_MARGIN * work))


def _one_by_one(
    clip: Clip, layout: TileLayout, calls: Sequence[tuple[int, Tile]], largest: Memory, run: StreamRun, chunk: int
) -> Memory:
    """Return the memory of tiles in time too: one batch runs at a time, and one time interval is blended at a time."""
    itemsize = run.machine.itemsize
    spans = layout.time.blended(is_decode=clip.is_decode)
    groups = list(layout.groups())
    is_single = len(groups[0]) == 1  # one tile covers a whole time interval
    position = clip.batch * clip.spec.out_channels
    tile = position * max(math.prod(clip.boxes(tile)[1]) for tile in groups[0] + groups[-1]) * FLOAT32_BYTES
    tiles = max(count for count, _ in calls) * tile // FLOAT32_BYTES * itemsize
    elements = blended_frame(clip, layout)
    frame = elements * FLOAT32_BYTES
    group = frame * max(span.length for span in spans)
    overlaps = [before.end - after.start for before, after in zip(spans, spans[1:], strict=False)]
    shared = frame * max(overlaps, default=0)
    gathered = 0 if is_single else group
    running = largest.caches + largest.work + tiles + gathered
    # The pieces of the tiles and the tiles; with several tiles, also a weighted tile and its sum with the accumulator.
    # A single tile is its interval, and is converted to float32 if needed. Several intervals take a weighted copy and
    # the overlap.
    in_float32 = group if itemsize != FLOAT32_BYTES else 0
    joining = 2 * tiles + (in_float32 if is_single else gathered + 2 * tile)
    weighting = group * min(2, len(spans)) + shared
    # The output is a part of its interval. It is checked, and converted to levels a few frames at a time, or to the
    # network's dtype all at once after the check.
    final = max(layout.time.final(is_decode=clip.is_decode))
    value_bytes = clip.value_bytes(itemsize)
    copied = 0 if value_bytes == FLOAT32_BYTES else value_bytes
    num_at_once = min(final, FRAMES_PER_CONVERSION)
    at_once = num_at_once * (2 * FLOAT32_BYTES + 2) + (num_at_once if clip.format is None else final) * copied
    leaving = group + elements * max(at_once, copied * final)
    # The consumer may still hold the previous frames, which are a view of their interval unless they were copied.
    held = elements * copied * final or group
    held = held if len(spans) > 1 else 0
    work = shared + held + max(running, joining, weighting, leaving)
    crops = max(count * math.prod(clip.boxes(tile)[0][1:]) for count, tile in calls)
    inputs = clip.input_bytes(itemsize, chunk, frame_size=crops)
    return Memory(largest.weights, inputs, 0, math.ceil(_MARGIN * work))
