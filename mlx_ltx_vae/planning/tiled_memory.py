"""Estimates the peak memory of a run in overlapping tiles. Pure arithmetic, no MLX."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ..backend.machine import FLOAT32_BYTES
from ..tiling.layout import Tile, TileLayout
from .clip import Clip
from .memory import Memory, StreamRun, layer_pieces, stream_memory

#: Frames that are converted to levels at once.
FRAMES_PER_CONVERSION = 8

_MARGIN = 1.05  # for uncounted memory: small arrays, rounding of allocations to pages


def tiled_memory(
    clip: Clip, layout: TileLayout, calls: Sequence[tuple[int, Tile]], run: StreamRun, chunk: int
) -> Memory:
    """The peak memory of a tiled run, without MLX's buffer cache.

    Args:
        calls: for each run of the network, the number of tiles and one of them.
        run: what all tiles share; `pieces` is ignored.
    """

    def stream(count: int, tile: Tile) -> Memory:
        grid = clip.boxes(tile)[0]
        pieces = replace(run, pieces=clip.pieces(grid[0], chunk))
        return stream_memory(clip.spec, grid, count * clip.batch, pieces)

    by_size = {(count, clip.boxes(tile)): (count, tile) for count, tile in calls}
    memories = {size: stream(*call) for size, call in by_size.items()}
    if len(layout.time.latent) == 1:
        return _side_by_side(clip, [memories[count, clip.boxes(tile)] for count, tile in calls], run, chunk)
    largest = max(memories.values(), key=lambda memory: memory.active)
    return _one_by_one(clip, layout, calls, largest, run, chunk)


def _side_by_side(clip: Clip, tiles: Sequence[Memory], run: StreamRun, chunk: int) -> Memory:
    """Tiles in space only: each is a separate stream, and all streams are interleaved."""
    # The number of frames that are blended at once is that of the last layer's output.
    *_, results = layer_pieces(clip.spec, clip.grid, replace(run, pieces=clip.pieces(clip.grid[0], chunk)))
    frames = max(results) * clip.out_frame * FLOAT32_BYTES
    is_alone = len(tiles) == 1  # and then only converted to float32
    # The other tiles' frames wait while a tile runs. Then there are all tiles, a weighted one, and two sums.
    waiting = 0 if is_alone and run.machine.itemsize == FLOAT32_BYTES else frames
    largest = max(tiles, key=lambda tile: tile.caches + tile.work - tile.idle_caches)
    caches = largest.caches + sum(tile.idle_caches for tile in tiles) - largest.idle_caches
    inputs = clip.input_bytes(run.machine.itemsize, chunk)
    work = max(largest.work + waiting, 4 * frames)
    return Memory(largest.weights, inputs, math.ceil(_MARGIN * caches), math.ceil(_MARGIN * work))


def _one_by_one(
    clip: Clip,
    layout: TileLayout,
    calls: Sequence[tuple[int, Tile]],
    largest: Memory,
    run: StreamRun,
    chunk: int,
) -> Memory:
    """Tiles in time as well: one batch of tiles runs at a time, and one time interval is blended at a time."""
    itemsize = run.machine.itemsize
    time = layout.time.blended(is_decode=clip.is_decode)
    spans = time.intervals
    groups = list(layout.groups())
    is_single = len(groups[0]) == 1  # one tile covers a whole time interval
    position = clip.batch * clip.spec.out_channels
    tile = position * max(math.prod(clip.boxes(tile)[1]) for tile in groups[0] + groups[-1]) * FLOAT32_BYTES
    tiles = max(count for count, _ in calls) * tile // FLOAT32_BYTES * itemsize
    frame = clip.out_frame * FLOAT32_BYTES
    group = frame * max(span.length for span in spans)
    shared = frame * max(before.end - after.start for before, after in zip(spans, spans[1:], strict=False))
    gathered = 0 if is_single else group
    running = largest.caches + largest.work + tiles + gathered
    # The pieces of the tiles and the tiles; with several tiles, also a weighted tile and its sum with the accumulator.
    joining = 2 * tiles + (0 if is_single else gathered + 2 * tile)
    # The output is a part of its interval. It is converted to two bytes: levels, or the network's dtype.
    final = max(time.final())
    converted = 2 * final + min(final, FRAMES_PER_CONVERSION) * (2 * FLOAT32_BYTES + 2)
    leaving = group + clip.out_frame * converted
    # The consumer may still refer to the frames before.
    level = itemsize if clip.bit_depth is None else -(-clip.bit_depth // 8)
    held = clip.out_frame * final * level if len(spans) > 1 else 0
    work = shared + held + max(running, joining, group + shared, leaving)
    crops = max(count * math.prod(clip.boxes(tile)[0][1:]) for count, tile in calls)
    inputs = clip.input_bytes(itemsize, chunk, frame_size=crops)
    return Memory(largest.weights, inputs, 0, math.ceil(_MARGIN * work))
