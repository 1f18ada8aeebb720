"""Keyframes of a decode, from what callers give to the network's input."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple, cast

import mlx.core as mx

from ..backend.mlx_utils import take_joined, to_mlx
from ..errors import warn
from ..latents.keyframes import Keyframes, check_keyframes
from ..models.base import Decoder
from ..models.noise import Noise
from ..models.specs import NetworkSpec
from ..shapes import Axis, Grid, Interval
from ..tiling.layout import TileBox
from .frames import FrameChunk
from .sources import Latents, Source, as_latents


def usable_keyframes(decoder: Decoder, keyframes: Keyframes) -> Keyframes | None:
    """Check a caller's keyframes as latents are. Warns and returns `None` for a network that takes none."""
    check_keyframes(keyframes)
    if warning := decoder.spec.keyframe_warning:
        warn(warning)
    if decoder.spec.variant is None:
        return None
    return replace(keyframes, latents=cast(mx.array, as_latents(keyframes.latents)))


class KeyframeSource(Source):
    """Latents of a video with keyframe planes after the frames of each piece, which is not cut along time."""

    def __init__(self, video: Source, planes: Source) -> None:
        self._video, self._planes = video, planes
        self.batch, self.grid = video.batch, video.grid

    def pieces(self, axis: Axis, chunk: int) -> Iterator[mx.array]:
        axis, chunk = (Axis.HEIGHT, self.grid[1]) if axis is Axis.TIME else (axis, chunk)
        pieces = zip(self._video.pieces(axis, chunk), self._planes.pieces(axis, chunk), strict=True)
        return (mx.concatenate(list(pair), axis=Axis.TIME) for pair in pieces)


class PlaneSource(Source):
    """All results of a network's first layers, from which tiles with keyframe planes are cut.

    They come in order of rows, with `count` planes after the frames. `planes` are the indices of the planes of each
    interval of frames.
    """

    def __init__(
        self, source: Source, results: Iterator[mx.array], count: int, planes: Mapping[Interval, Sequence[int]]
    ) -> None:
        self.batch, self.grid = source.batch, source.grid
        self._results, self._count, self._planes = results, count, planes
        self._held: list[mx.array] = []

    def pieces(self, axis: Axis, chunk: int) -> Iterator[mx.array]:
        return self._results

    def tile_pieces(self, batches: Sequence[Sequence[TileBox]], chunk: int) -> list[Iterator[mx.array]]:
        self._held += self._results
        return [self._crops(boxes, chunk) for boxes in batches]

    def _crops(self, boxes: Sequence[TileBox], chunk: int) -> Iterator[mx.array]:
        for start in range(0, boxes[0][1].length, chunk):
            yield mx.concatenate([self._crop(box, start, chunk) for box in boxes])

    def _crop(self, box: TileBox, start: int, count: int) -> mx.array:
        """Return `count` rows of a box, or as many as it has left."""
        time, rows, columns = box
        start, end = rows.start + start, min(rows.start + start + count, rows.end)
        box_rows = take_joined([held[:, :, :, columns.as_slice] for held in self._held], Axis.HEIGHT, start, end)
        planes = mx.array([box_rows.shape[1] - self._count + plane for plane in self._planes[time]])
        return mx.concatenate([box_rows[:, time.as_slice], box_rows[:, planes]], axis=Axis.TIME)


class PaddedClip(NamedTuple):
    """Latents and keyframes with repeated edges, and where the video lies in what they decode to."""

    latents: mx.array
    keyframes: Keyframes
    start: Grid
    size: Grid

    def crop(self, chunks: Generator[FrameChunk, None, None]) -> Generator[FrameChunk, None, None]:
        """Yield the part of each chunk that belongs to the video."""
        (_, top, left), (frames, height, width) = self.start, self.size
        with closing(chunks):
            for chunk in chunks:
                if chunk.start < frames:
                    kept = chunk.frames[:, : frames - chunk.start, top : top + height, left : left + width]
                    yield replace(chunk, frames=kept)


def pad_as_noise(spec: NetworkSpec, latents: Latents, keyframes: Keyframes, noise: Noise) -> PaddedClip | None:
    """Pad a clip to the size of the first noise array (B, C, T, H, W). `None` means that the sizes are equal."""
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
    starts = [before * factor for (before, _), factor in zip(added, scale, strict=True)]
    return PaddedClip(padded, Keyframes(planes, keyframes.frames), (starts[0], starts[1], starts[2]), out)
