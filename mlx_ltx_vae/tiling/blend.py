"""Running a network tile by tile and blending the results: the one file of this room that computes with MLX.

What is blended are pixels where tiles are decoded, and latents where they are encoded. Masks are complementary on each
axis (see `masks.complementary`), so tiles are weighted and added, and nothing is divided. Arrays are channels-last
(B, T, H, W, C), except in `decode_with_tiling`, whose callers have channels first.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import mlx.core as mx

from ..errors import DecodeError, LatentsError
from .batches import tile_batches
from .config import TilingConfig
from .layout import BlendAxis, Tile, TileLayout
from .masks import Mask

_TILES_PER_CACHE_CLEAR = 4


class SpatialBlender:
    """Puts spatial tiles together to whole frames. Holds nothing but masks, so one serves any number of calls.

    Tiles are counted with rows outermost, then columns.

    Args:
        rows: height, as the tiles cut it.
        columns: likewise width.
    """

    def __init__(self, rows: BlendAxis, columns: BlendAxis) -> None:
        self.size = (rows.length, columns.length)
        self._places = [(row, column) for row in rows.intervals for column in columns.intervals]
        down = [_axis_weights(mask, (-1, 1, 1)) for mask in rows.masks]
        across = [_axis_weights(mask, (1, -1, 1)) for mask in columns.masks]
        self._weights = [_plane_weights(row, column) for row in down for column in across]

    def blend(self, parts: Sequence[mx.array]) -> mx.array:
        """Put together the tiles of the same frames.

        Args:
            parts: every tile in order, (B, n, h, w, C).

        Returns:
            (B, n, H, W, C) float32.

        Raises:
            DecodeError: for another number of tiles, or tiles of other shapes.
        """
        if len(parts) != len(self._places):
            raise DecodeError(f"{len(parts)} tiles were given, and {len(self._places)} make up a frame.")
        frames = self.blank(parts[0])
        for index, part in enumerate(parts):
            self.add(frames, index, part)
        return frames

    def blank(self, part: mx.array) -> mx.array:
        """Frames (B, n, H, W, C) float32 to add tiles to, for tiles (B, n, h, w, C) such as `part`."""
        return mx.zeros((*part.shape[:2], *self.size, part.shape[-1]))

    def add(self, frames: mx.array, index: int, part: mx.array) -> None:
        """Add one tile (B, n, h, w, C) to `frames` (B, n, H, W, C), which are changed in place and evaluated.

        Raises:
            DecodeError: for a tile of another shape.
        """
        row, column = self._places[index]
        expected = (*frames.shape[:2], row.length, column.length, frames.shape[-1])
        _check_shape(part, expected, f"tile {index}")
        where = (slice(None), slice(None), row.as_slice, column.as_slice)
        weights = self._weights[index]
        if weights is None:
            frames[where] = part
            mx.eval(frames)
        else:
            _add_into(frames, where, part * weights)


def blend_tiles(
    run_tiles: Callable[[list[Tile]], list[mx.array]],
    layout: TileLayout,
    axes: tuple[BlendAxis, BlendAxis, BlendAxis],
    *,
    tile_batch_size: int = 1,
) -> Iterator[tuple[int, mx.array]]:
    """Run a network tile by tile, handing its results over as soon as no later tile reaches them.

    Alive are the results of one interval of time, what the one before it shares with it, and one batch of tiles. An
    iterator that is closed, or dropped after an exception, leaves nothing behind.

    Args:
        run_tiles: gives the results (B, n, h, w, C) of some tiles of equal shape.
        layout: the tiles.
        axes: time, height and width of the results: `layout.decoded()` or `layout.encoded()`.
        tile_batch_size: at most so many tiles go to `run_tiles` at a time.

    Yields:
        The index of the first position in time, and results (B, n, H, W, C) float32, evaluated: each once, in order,
        n >= 1. They may be a view of a larger array: copy what is kept for long.

    Raises:
        DecodeError: for a tile of another shape.
    """
    time, rows, columns = axes
    blender = SpatialBlender(rows, columns)
    masks = [_axis_weights(mask, (-1, 1, 1, 1)) for mask in time.masks]
    shared: list[mx.array] = []  # what earlier intervals share with the next one, weighted: one array or none
    done = 0
    for tiles, interval, mask, count in zip(layout.groups(), time.intervals, masks, time.final(), strict=True):
        frames = _run_group(run_tiles, tiles, interval.length, blender, tile_batch_size, done)
        done += len(tiles)
        if mask is not None:
            frames = frames * mask
        if shared:
            earlier = shared.pop()
            _add_into(frames, (slice(None), slice(earlier.shape[1])), earlier)
            del earlier
        # A copy of the rest, and no name for what is handed over: so it can be freed while the next tiles are run.
        if count < frames.shape[1]:
            shared.append(mx.contiguous(frames[:, count:]))
        box = [frames[:, :count]]
        del frames
        mx.eval(box, shared)
        if count:
            yield interval.start, box.pop()
        box.clear()


def decode_with_tiling(
    decoder_fn: Callable[..., mx.array],
    latents: mx.array,
    tiling_config: TilingConfig | None,
    spatial_scale: int = 32,
    temporal_scale: int = 8,
    causal: bool = False,
    timestep: Any = None,
    chunked_conv: bool = False,
    on_frames_ready: Callable[[mx.array, int], None] | None = None,
) -> mx.array | None:
    """Decode latents in tiles with a decoder of one's own.

    Args:
        decoder_fn: called as `decoder_fn(tile_latents, causal=causal, timestep=timestep, debug=False,
            chunked_conv=chunked_conv)` with latents (B, C, f, h, w); returns pixels (B, 3, F, H, W) with
            F = 1 + temporal_scale * (f - 1).
        latents: (B, C, F', H', W').
        tiling_config: how to cut them; None for one tile.
        spatial_scale: pixels per latent cell.
        temporal_scale: frames per latent frame.
        causal: handed to `decoder_fn`, as are timestep and chunked_conv.
        timestep: see causal.
        chunked_conv: see causal.
        on_frames_ready: called with (frames (B, 3, n, H, W), start index) as frames become final, each once and in
            order. An exception in it stops the decode and reaches the caller.

    Returns:
        Pixels (B, 3, F, H, W) in the latents' dtype (blended in float32); None with `on_frames_ready`, which has had
        them.

    Raises:
        LatentsError: for latents of another number of axes, or empty ones.
        TilingError: for tiles that are not whole latent cells.
        DecodeError: for a tile that comes back with another shape.
    """
    if latents.ndim != 5 or 0 in latents.shape:
        raise LatentsError(f"latents have the shape {latents.shape}; expected are five axes (B, C, F', H', W').")
    config = TilingConfig() if tiling_config is None else tiling_config
    layout = TileLayout.make(config, latents.shape[2:], spatial_scale=spatial_scale, temporal_scale=temporal_scale)

    def decode_tiles(tiles: list[Tile]) -> list[mx.array]:
        (tile,) = tiles
        tile_latents = latents[(slice(None), slice(None), *tile.latent_slices)]
        pixels = decoder_fn(tile_latents, causal=causal, timestep=timestep, debug=False, chunked_conv=chunked_conv)
        expected = (latents.shape[0], 3, *tile.output_size)
        _check_shape(pixels, expected, f"a tile of latents of the shape {tile_latents.shape}")
        return [pixels.transpose(0, 2, 3, 4, 1)]

    video = None
    if on_frames_ready is None:
        size = (layout.time.length, layout.height.length, layout.width.length)
        video = mx.zeros((latents.shape[0], 3, *size), latents.dtype)
    # Closed, not just dropped: a caller that keeps the exception would keep the generator and its arrays with it.
    with closing(blend_tiles(decode_tiles, layout, layout.decoded())) as stream:
        for start, frames in stream:
            chunk = frames.transpose(0, 4, 1, 2, 3).astype(latents.dtype)
            del frames
            if on_frames_ready is not None:
                on_frames_ready(chunk, start)
            else:
                video[:, :, start : start + chunk.shape[2]] = chunk
                mx.eval(video)
            del chunk
    return video


def _run_group(
    run_tiles: Callable[[list[Tile]], list[mx.array]],
    tiles: Sequence[Tile],
    length: int,
    blender: SpatialBlender,
    tile_batch_size: int,
    done: int,
) -> mx.array:
    """The results (B, n, H, W, C) float32 of one interval of time, evaluated, before they fade.

    Args:
        run_tiles: see `blend_tiles`.
        tiles: all of the interval, in order.
        length: n.
        blender: for height and width.
        tile_batch_size: see `blend_tiles`.
        done: how many tiles of the clip have been run before.
    """
    frames: mx.array | None = None
    for batch in tile_batches(tiles, tile_batch_size):
        parts = run_tiles([tiles[index] for index in batch])
        for index in batch:
            part = parts.pop(0)
            _check_shape(part, (part.shape[0], length, *part.shape[2:]), f"tile {index} of its frames")
            if len(tiles) == 1:
                _check_shape(part, (*part.shape[:2], *blender.size, part.shape[-1]), f"tile {index} of its frames")
                frames = part.astype(mx.float32)
                mx.eval(frames)
            else:
                frames = blender.blank(part) if frames is None else frames
                blender.add(frames, index, part)
            del part
            done += 1
            if done % _TILES_PER_CACHE_CLEAR == 0 or _is_memory_short():
                mx.clear_cache()
    return frames


def _is_memory_short() -> bool:
    """Whether what is in use and what MLX keeps for later are together more than Metal recommends."""
    recommended = mx.device_info().get("max_recommended_working_set_size")
    return bool(recommended) and mx.get_active_memory() + mx.get_cache_memory() > recommended


def _axis_weights(mask: Mask, shape: tuple[int, ...]) -> mx.array | None:
    """A mask as a float32 array of `shape`; None where it is 1 everywhere and there is nothing to weight."""
    return None if all(weight == 1 for weight in mask) else mx.array(mask, dtype=mx.float32).reshape(shape)


def _plane_weights(down: mx.array | None, across: mx.array | None) -> mx.array | None:
    """The weights (h, w, 1) of a tile from those along height and width; None where all are 1."""
    if down is None or across is None:
        return down if across is None else across
    return down * across


def _add_into(frames: mx.array, where: tuple[slice, ...], addend: mx.array) -> None:
    """`frames[where] += addend`, without a copy of `frames`.

    Evaluated in two steps: while the read of a part is under way, the whole cannot be written in place.
    """
    total = frames[where] + addend
    mx.eval(total)
    frames[where] = total
    mx.eval(frames)


def _check_shape(array: mx.array, expected: tuple[int, ...], what: str) -> None:
    if array.shape != expected:
        raise DecodeError(f"{what} was decoded to the shape {array.shape}, and {expected} was expected.")
