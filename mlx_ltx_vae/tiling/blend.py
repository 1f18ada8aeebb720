"""Run a network tile by tile and blend the results.

The masks of each axis add up to 1 (see `complementary`), so tiles are weighted and added without a division. Arrays
are channels-last (B, T, H, W, C), except in `decode_with_tiling`, whose callers use channels-first.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import count, product
from typing import Any

import mlx.core as mx

from ..backend.device import is_memory_short
from ..errors import DecodeError, LatentsError, PlanError, TilingError
from ..shapes import Interval, ScaleFactors
from .config import TilingConfig
from .layout import Mask, Tile, TileAxis, TileLayout, space_axis, tile_batches, time_axis, trapezoid

#: Function that returns the results (B, n, h, w, C) of tiles of equal shape, in a list that the caller empties.
RunTiles = Callable[[list[Tile]], list[mx.array]]

_TILES_PER_CACHE_CLEAR = 4


class SpatialBlender:
    """Masks that blend spatial tiles, which are numbered row by row, into frames."""

    def __init__(self, height: TileAxis, width: TileAxis, *, is_decode: bool) -> None:
        self._positions = list(product(height.blended(is_decode=is_decode), width.blended(is_decode=is_decode)))
        self._size = tuple(interval.end for interval in self._positions[-1])
        rows, columns = height.masks(is_decode=is_decode), width.masks(is_decode=is_decode)
        self._masks = list(product([_mask(row, 3) for row in rows], [_mask(column, 2) for column in columns]))

    def blend(self, parts: Iterator[tuple[int, mx.array]]) -> mx.array:
        """Blend all tiles of the same frames to frames (B, n, H, W, C) float32, evaluated.

        Each tile (B, n, h, w, C) has its number, and the order is free. No tile is kept while the next is computed.
        """
        index, part = next(parts)
        if len(self._positions) == 1:
            _check_shape(part, (*part.shape[:2], *self._size, part.shape[-1]), f"tile {index}")
            frames = part.astype(mx.float32)
            mx.eval(frames)
        else:
            frames = mx.zeros((*part.shape[:2], *self._size, part.shape[-1]))
            self._add(frames, index, part)
        del part
        for index, part in parts:
            self._add(frames, index, part)
            del part
        return frames

    def _add(self, frames: mx.array, index: int, part: mx.array) -> None:
        """Add a tile (B, n, h, w, C) to `frames` (B, n, H, W, C), which is changed in place and evaluated."""
        row, column = self._positions[index]
        _check_shape(part, (*frames.shape[:2], row.length, column.length, frames.shape[-1]), f"tile {index}")
        region = (slice(None), slice(None), row.as_slice, column.as_slice)
        masks = [mask for mask in self._masks[index] if mask is not None]
        if masks:  # multiplied again for each frame: stored, the products would be as large as a frame or larger
            _add_into(frames, region, part * math.prod(masks[1:], start=masks[0]))
        else:
            frames[region] = part
            mx.eval(frames)


def blend_tiles(
    run_tiles: RunTiles, layout: TileLayout, *, is_decode: bool, tile_batch_size: int = 1
) -> Generator[tuple[int, mx.array], None, None]:
    """Run a network tile by tile and yield blended results, once and in order, as soon as no later tile adds to them.

    Yields the index of the first position in time, and results (B, n, H, W, C) float32, n >= 1, evaluated, which may be
    a view of a larger array: copy them to keep them for long. Memory holds the results of one interval of time, its
    overlap with the previous interval, and one batch of tiles.
    """
    blender = SpatialBlender(layout.height, layout.width, is_decode=is_decode)
    intervals, final_counts = layout.time.blended(is_decode=is_decode), layout.time.final(is_decode=is_decode)
    masks = [_mask(mask, 4) for mask in layout.time.masks(is_decode=is_decode)]
    tile_counter = count(1)
    shared: list[mx.array] = []  # the weighted overlap with the next interval: one array or none
    for tiles, interval, mask, num_final in zip(layout.groups(), intervals, masks, final_counts, strict=True):
        frames = blender.blend(_run_batches(run_tiles, tiles, tile_batch_size, tile_counter))
        _check_shape(frames, (frames.shape[0], interval.length, *frames.shape[2:]), "a blended result")
        if mask is not None:
            frames = frames * mask
        if shared:
            earlier = shared.pop()
            _add_into(frames, (slice(None), slice(earlier.shape[1])), earlier)
            del earlier
        # Copy the rest and keep no name for the yielded array, so that its buffer can be freed during the next tiles.
        if num_final < frames.shape[1]:
            shared.append(mx.contiguous(frames[:, num_final:]))
        final = [frames[:, :num_final]]
        del frames
        mx.eval(final, shared)
        if num_final:
            yield interval.start, final.pop()
        final.clear()


def decode_with_tiling(
    decoder_fn: Callable[..., mx.array],
    latents: mx.array,
    tiling_config: TilingConfig | None,
    spatial_scale: int = 32,
    temporal_scale: int = 8,
    causal: bool = False,
    timestep: object = None,
    chunked_conv: bool = False,
    on_frames_ready: Callable[[mx.array, int], None] | None = None,
    *,
    keep_output: bool = True,
) -> Any:  # `mx.array | None` would make every caller check for `None`
    """Decode latents in tiles with any decoder.

    Args:
        decoder_fn: called as `decoder_fn(tile_latents, causal=causal, timestep=timestep, debug=False,
            chunked_conv=chunked_conv)` with latents (B, C, f, h, w). It returns pixels (B, 3, F, H, W) with
            F = 1 + temporal_scale * (f - 1).
        latents: (B, C, F', H', W').
        tiling_config: also of an app's class (see `TilingConfig.of`). `None` decodes everything as one tile.
        spatial_scale, temporal_scale: pixels per latent cell, along height and width, and frames per latent frame.
        on_frames_ready: called with frames (B, 3, n, H, W) and their start index as soon as they are final, once per
            frame and in order. An exception in it stops the decode and reaches the caller.
        keep_output: False keeps no frames for the result, so that memory does not grow with the clip.

    Returns:
        Pixels (B, 3, F, H, W) in the latents' dtype, blended in float32, or `None` if `keep_output` is False.

    Raises:
        LatentsError: for latents that do not have five axes, or are empty.
        PlanError: if neither `on_frames_ready` nor the result would get the frames.
        TilingError: for tile sizes or overlaps that are not whole latent cells.
        DecodeError: if `decoder_fn` returns the wrong shape.
    """
    if latents.ndim != 5 or 0 in latents.shape:
        raise LatentsError(
            f"latents of shape {latents.shape} cannot be decoded; expected a non-empty (B, C, F', H', W')."
        )
    if on_frames_ready is None and not keep_output:
        raise PlanError("keep_output=False discards every frame; pass on_frames_ready, or leave keep_output out.")
    scale = ScaleFactors(temporal_scale, spatial_scale, spatial_scale)
    config = TilingConfig() if tiling_config is None else TilingConfig.of(tiling_config)
    layout = TileLayout.make(config, latents.shape[2:], scale)
    decode = partial(decoder_fn, causal=causal, timestep=timestep, debug=False, chunked_conv=chunked_conv)
    return _join_tiles(decode, latents, layout, on_frames_ready, keep_output)


def decode_tiles(
    decode: Callable[[mx.array], mx.array], latents: mx.array, layout: TileLayout
) -> Generator[tuple[int, mx.array], None, None]:
    """Blend the pixels (B, 3, F, H, W) that `decode` returns for each tile of latents (B, C, F', H', W').

    Yields what `blend_tiles` yields.
    """

    def run_tiles(tiles: list[Tile]) -> list[mx.array]:
        (tile,) = tiles
        time, height, width = (interval.as_slice for interval in tile.latent)
        pixels = decode(latents[:, :, time, height, width])
        _check_shape(pixels, (latents.shape[0], 3, *tile.output_size), "a tile of pixels")
        return [pixels.transpose(0, 2, 3, 4, 1)]

    return blend_tiles(run_tiles, layout, is_decode=True)


def _join_tiles(
    decode: Callable[[mx.array], mx.array],
    latents: mx.array,
    layout: TileLayout,
    on_frames_ready: Callable[[mx.array, int], None] | None,
    keep_output: bool,
) -> mx.array | None:
    video = mx.zeros((len(latents), 3, *layout.size(is_decode=True)), latents.dtype) if keep_output else None
    # An exception keeps this stack frame alive: drop the video, and close the generator, which has arrays too.
    try:
        with closing(decode_tiles(decode, latents, layout)) as results:
            for start, pixels in results:
                frames = pixels.transpose(0, 4, 1, 2, 3).astype(latents.dtype)
                del pixels
                if video is not None:
                    video[:, :, start : start + frames.shape[2]] = frames
                    mx.eval(video)
                if on_frames_ready is not None:
                    on_frames_ready(frames, start)
                del frames
        return video
    finally:
        del video


def _run_batches(
    run_tiles: RunTiles, tiles: Sequence[Tile], tile_batch_size: int, tile_counter: Iterator[int]
) -> Iterator[tuple[int, mx.array]]:
    """Yield the index of each tile and its result, in batches; tile 0 is the first."""
    for batch in tile_batches(tiles, tile_batch_size):
        parts = run_tiles([tiles[index] for index in batch])
        for index in batch:
            yield index, parts.pop(0)
            if next(tile_counter) % _TILES_PER_CACHE_CLEAR == 0 or is_memory_short():
                mx.clear_cache()


def _mask(mask: Mask, num_axes: int) -> mx.array | None:
    """Return a mask along the first of some axes; the others have the length 1. `None` means 1 everywhere."""
    return None if {*mask} == {1.0} else mx.array(mask).reshape(-1, *[1] * (num_axes - 1))


def _add_into(frames: mx.array, region: tuple[slice, ...], addend: mx.array) -> None:
    """Compute `frames[region] += addend` without a copy of `frames`.

    It is evaluated in two steps, since `frames` cannot be written in place while a pending operation still reads it.
    """
    total = frames[region] + addend
    mx.eval(total)
    frames[region] = total
    mx.eval(frames)


def _check_shape(array: mx.array, expected: tuple[int, ...], label: str) -> None:
    if array.shape != expected:
        raise DecodeError(f"{label} has the shape {array.shape}, but {expected} was expected for this layout.")


def compute_trapezoidal_mask_1d(
    length: int, ramp_left: int, ramp_right: int, left_starts_from_0: bool = False
) -> mx.array:
    """Return a float32 mask (length,) that rises over `ramp_left` positions, stays at 1, and falls over `ramp_right`.

    Ramps longer than the mask are shortened to it, and negative ramps count as 0.
    """
    if length < 1:
        raise TilingError(f"a mask of length {length} has no positions; it must have at least 1.")
    return mx.array(trapezoid(length, max(ramp_left, 0), max(ramp_right, 0), from_zero=left_starts_from_0))


def map_spatial_slice(begin: int, end: int, left_ramp: int, right_ramp: int, scale: int) -> tuple[slice, mx.array]:
    """Return the pixels of an interval of latent cells, as a slice, and their mask, at `scale` pixels per cell."""
    return _slice_and_mask(space_axis([Interval(begin, end, left_ramp, right_ramp)], scale))


def map_temporal_slice(begin: int, end: int, left_ramp: int, right_ramp: int, scale: int) -> tuple[slice, mx.array]:
    """Return the frames of an interval of latent frames, as a slice, and their mask, at `scale` frames per latent."""
    return _slice_and_mask(time_axis([Interval(begin, end, left_ramp, right_ramp)], scale))


def _slice_and_mask(axis: TileAxis) -> tuple[slice, mx.array]:
    (interval,) = axis.pixels
    mask = compute_trapezoidal_mask_1d(interval.length, interval.left_ramp, interval.right_ramp, axis.from_zero)
    return interval.as_slice, mask
