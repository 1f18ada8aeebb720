"""What a run in overlapping tiles holds at its peak. Pure arithmetic, no MLX."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ..machine import FLOAT32_BYTES
from ..tiling.layout import Tile, TileLayout
from .clip import Clip
from .memory import Memory, StreamRun, stream_memory

_MARGIN = 1.03  # for what is not counted: small arrays, rounding of allocations to pages


def tiled_memory(
    clip: Clip, layout: TileLayout, calls: Sequence[tuple[int, Tile]], run: StreamRun, chunk: int
) -> Memory:
    """The estimate, without MLX's buffer cache.

    Args:
        calls: per run of the network, how many tiles, and one of them.
        run: how each of them streams, whatever its length.
        chunk: positions of a tile that enter at once.
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
    """Tiles cut in space alone: each is a stream of its own, and all run side by side."""
    # As many whole frames are blended at once as the last layer hands on.
    frames = 1 if run.steps is None else run.steps[-1]
    work = max(tile.work for tile in tiles) + 4 * frames * clip.out_frame * FLOAT32_BYTES
    inputs = clip.input_bytes(run.machine.itemsize, chunk)
    return Memory(tiles[0].weights, inputs, sum(tile.caches for tile in tiles), work)


def _one_by_one(
    clip: Clip,
    layout: TileLayout,
    calls: Sequence[tuple[int, Tile]],
    largest: Memory,
    run: StreamRun,
    chunk: int,
) -> Memory:
    """Tiles cut in time too: one batch of them runs at a time, and one interval of time is blended."""
    itemsize = run.machine.itemsize
    time = (layout.decoded() if clip.is_decode else layout.encoded())[0]
    spans = time.intervals
    groups = list(layout.groups())
    is_single = len(groups[0]) == 1  # one tile is a whole interval of time
    position = clip.batch * clip.spec.out_channels
    tile = position * max(math.prod(clip.boxes(tile)[1]) for tile in groups[0] + groups[-1]) * FLOAT32_BYTES
    tiles = max(count for count, _ in calls) * tile // FLOAT32_BYTES * itemsize
    frame = clip.out_frame * FLOAT32_BYTES
    group = frame * max(span.length for span in spans)
    shared = frame * max(before.end - after.start for before, after in zip(spans, spans[1:], strict=False))
    gathered = 0 if is_single else group
    running = largest.caches + largest.work + tiles + gathered
    # The pieces of the tiles and the tiles; where there are several, also one weighted, and added to what is there.
    joining = 2 * tiles + (0 if is_single else gathered + 2 * tile)
    # What leaves is a part of its interval, and is turned into levels.
    converted = FLOAT32_BYTES + 1 + (itemsize + FLOAT32_BYTES if itemsize != FLOAT32_BYTES else 0)
    leaving = group + clip.out_frame * max(time.final()) * converted
    work = shared + max(running, joining, group + shared, leaving)
    crops = max(count * math.prod(clip.boxes(tile)[0][1:]) for count, tile in calls)
    inputs = clip.input_bytes(itemsize, chunk, crops)
    return Memory(largest.weights, inputs, 0, math.ceil(_MARGIN * work))
