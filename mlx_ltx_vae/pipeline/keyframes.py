"""Keyframes of a decode, from what callers give to the network's input."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import cast

import mlx.core as mx

from ..backend.mlx_utils import take_joined, to_mlx
from ..errors import warn
from ..latents.keyframes import Keyframes, check_keyframes
from ..networks.specs import NetworkSpec
from ..options import Noise
from ..shapes import Axis, Grid, Interval
from ..tiling.layout import TileBox
from .frames import FrameChunk
from .sources import Crops, Latents, Source, as_latents


def usable_keyframes(decoder: NetworkSpec, keyframes: Keyframes) -> Keyframes | None:
    """Check a caller's keyframes as latents are. Warns and returns `None` for a network that takes none."""
    check_keyframes(keyframes)
    if warning := decoder.keyframe_warning:
        warn(warning)
    if decoder.variant is None:
        return None
    return replace(keyframes, latents=cast(mx.array, as_latents(keyframes.latents)))


def add_planes(video: Source, planes: Source) -> Source:
    """Return a video with keyframe planes after the frames of each piece, which is not cut along time."""

    def pieces(axis: Axis, chunk: int) -> Iterator[mx.array]:
        axis, chunk = (Axis.HEIGHT, video.grid[1]) if axis is Axis.TIME else (axis, chunk)
        pairs = zip(video.pieces(axis, chunk), planes.pieces(axis, chunk), strict=True)
        return (mx.concatenate(list(pair), axis=Axis.TIME) for pair in pairs)

    return Source(video.batch, video.grid, pieces)


def plane_crops(results: Iterator[mx.array], count: int, planes: Mapping[Interval, Sequence[int]]) -> Crops:
    """Return the crops of tiles with keyframe planes from all results of a network's first layers.

    These come in order of rows, with `count` planes after the frames. `planes` are the indices of the planes of each
    interval of frames.
    """
    held: list[mx.array] = []

    def crop(box: TileBox, start: int, end: int) -> mx.array:
        time, rows, columns = box
        parts = [result[:, :, :, columns.as_slice] for result in held]
        box_rows = take_joined(parts, Axis.HEIGHT, rows.start + start, min(rows.start + end, rows.end))
        indices = mx.array([box_rows.shape[1] - count + plane for plane in planes[time]])
        return mx.concatenate([box_rows[:, time.as_slice], box_rows[:, indices]], axis=Axis.TIME)

    def crops(boxes: Sequence[TileBox], chunk: int) -> Iterator[mx.array]:
        held.extend(results)
        for start in range(0, boxes[0][1].length, chunk):
            yield mx.concatenate([crop(box, start, start + chunk) for box in boxes])

    return crops


def pad_as_noise(
    spec: NetworkSpec, latents: Latents, keyframes: Keyframes, noise: Noise
) -> tuple[mx.array, Keyframes, tuple[int, int]] | None:
    """Pad a clip to the size of the first noise array (B, C, T, H, W) by repeating edges.

    Returns its latents, its keyframes, and the first row and column of the video in what it decodes to; `None` if the
    sizes are equal.
    """
    time, height, width = latents.shape[2:]
    added = [spec.added(axis, length) for axis, length in zip(Axis, (time, height, width), strict=True)]
    first = noise[0] if isinstance(noise, (list, tuple)) and noise else None
    if not any(map(sum, added)) or first is None or first.ndim != 5:
        return None
    out, scale = spec.out_grid((time, height, width)), spec.scale
    extents = [length + sum(more) * factor for length, more, factor in zip(out, added, scale, strict=True)]
    sizes = [(extents[0], extents[1] // side, extents[2] // side) for side in (1, spec.patch_size or 1)]
    if tuple(first.shape[2:]) not in sizes:
        return None
    padded = mx.pad(to_mlx(latents[:, :, :, :, :], "latents"), [(0, 0), (0, 0), *added], mode="edge")
    planes = mx.pad(to_mlx(keyframes.latents, "latents"), [(0, 0)] * 3 + added[1:], mode="edge")
    _, top, left = (before * factor for (before, _), factor in zip(added, scale, strict=True))
    return padded, Keyframes(planes, keyframes.frames), (top, left)


def crop_chunks(
    chunks: Generator[FrameChunk, None, None], corner: tuple[int, int], size: Grid
) -> Generator[FrameChunk, None, None]:
    """Yield the part of each chunk of a padded clip that belongs to the video of this size."""
    (top, left), (frames, height, width) = corner, size
    with closing(chunks):
        for chunk in chunks:
            if chunk.start < frames:
                kept = chunk.frames[:, : frames - chunk.start, top : top + height, left : left + width]
                yield replace(chunk, frames=kept)
