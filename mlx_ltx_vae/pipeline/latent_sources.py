"""Provides latents as the input of a decoder, piece by piece: from an array, a file, or arrays that arrive in time."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeGuard

import mlx.core as mx
import numpy as np

from ..backend.mlx_utils import count_nonfinite, evaluate, native_array, to_float, to_mlx
from ..errors import LatentsError
from ..latents.files import read_frames, sampled_frames
from ..latents.keyframes import Keyframes
from ..latents.statistics import frame_moments
from ..models.base import Decoder
from ..models.noise import Draws, LatentBox, Noise
from ..models.specs import NetworkSpec
from ..shapes import Axis, Grid
from ..tiling.layout import Interval, TileBox
from .postprocess import FrameChunk, FrameFlags
from .run import Source


class Latents(Protocol):
    """Latents (B, C, F', H', W') that are read in parts: an MLX or numpy array, or a mapped file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, index: tuple[slice, ...]) -> mx.array | np.ndarray: ...


#: What callers pass: all latents, or arrays along time as they become available.
LatentParts = Iterable[mx.array | np.ndarray]
LatentInput = Latents | LatentParts


class Magnitude:
    """The largest magnitude of all arrays so far, on the device. It outlives its decode, in an error's explanation."""

    def __init__(self) -> None:
        self._largest = mx.array(0.0)

    def update(self, array: mx.array) -> None:
        self._largest = mx.maximum(self._largest, mx.abs(array).max())
        mx.async_eval(self._largest)

    def value(self) -> float:
        return to_float(self._largest)


class LatentPreprocess:
    """Converts parts of the latents, which may be unnormalized, to the input of a decoder's first stage.

    `first_frame` is where the latents that are decoded begin in the whole latents. `largest` is their largest
    magnitude, normalized.
    """

    def __init__(self, decoder: Decoder, draws: Draws, *, unnormalized: bool, first_frame: int = 0) -> None:
        if unnormalized and decoder.statistics is None:
            raise LatentsError(
                "these latents are unnormalized, and this VAE has no statistics to normalize them; give normalized "
                "latents, without unnormalized=True."
            )
        self._decoder = decoder
        self._draws = draws
        self._first_frame = first_frame
        self._statistics = decoder.statistics if unnormalized else None
        self._is_constant = FrameFlags()
        self.largest = Magnitude()

    def __call__(self, latents: mx.array | np.ndarray, box: LatentBox) -> mx.array:
        """The input (B, n, h, w, C) for the part `box` of the whole latents, (B, C, n, h, w)."""
        latents = to_mlx(latents, "latents")
        # Parts that are constant, and differ, would make a picture that is not flat, which is no error either.
        is_constant = (latents == latents[:, :, :, :1, :1]).all(axis=(1, 3, 4)).any(axis=0)
        self._is_constant.update(box[0].start - self._first_frame, is_constant)
        if self._statistics is not None:
            latents = self._statistics.normalize(latents)
        self.largest.update(latents)
        return self._decoder.prepare(latents, self._draws.crop(box))

    def may_be_flat(self) -> mx.array:
        """A flag on the device for each frame, (F,): whether its latents are constant per channel."""
        is_constant, spec = self._is_constant.all(), self._decoder.spec
        first, others = mx.repeat(is_constant[:1], spec.first_frames), mx.repeat(is_constant[1:], spec.scale.time)
        return mx.concatenate([first, others])


class LatentSource(Source):
    """Whole latents as the input of a decoder, or some of their frames, or a band of their rows."""

    def __init__(
        self,
        latents: Latents,
        preprocess: LatentPreprocess,
        band: Interval | None = None,
        frames: Interval | None = None,
    ) -> None:
        self._latents = latents
        self._preprocess = preprocess
        self._first_row, last = (band.start, band.end) if band else (0, latents.shape[3])
        self.batch = latents.shape[0]
        self._first_frame, end = (frames.start, frames.end) if frames else (0, latents.shape[2])
        self.grid = (end - self._first_frame, last - self._first_row, latents.shape[4])

    def pieces(self, axis: Axis, chunk: int) -> Iterator[mx.array]:
        length = self.grid[axis.grid]
        for start in range(0, length, chunk):
            box = [slice(0, extent) for extent in self.grid]
            box[axis.grid] = slice(start, min(start + chunk, length))
            yield self._read(box[0], box[1], box[2])

    def tile_pieces(self, batches: Sequence[Sequence[TileBox]], chunk: int) -> list[Iterator[mx.array]]:
        return [self._crops(boxes, chunk) for boxes in batches]

    def _crops(self, boxes: Sequence[TileBox], chunk: int) -> Iterator[mx.array]:
        time = boxes[0][0]  # all boxes of a batch have the same
        for start in range(time.start, time.end, chunk):
            frames = slice(start, min(start + chunk, time.end))
            yield mx.concatenate([self._read(frames, rows.as_slice, columns.as_slice) for _, rows, columns in boxes])

    def _read(self, frames: slice, rows: slice, columns: slice) -> mx.array:
        frames = slice(frames.start + self._first_frame, frames.stop + self._first_frame)
        rows = slice(rows.start + self._first_row, rows.stop + self._first_row)
        return self._preprocess(self._latents[:, :, frames, rows, columns], (frames, rows, columns))


class KeyframeSource(Source):
    """Latents of a video with keyframe planes behind the frames of each piece, which is not cut along time."""

    def __init__(self, video: Source, planes: Source) -> None:
        self._video, self._planes = video, planes
        self.batch, self.grid = video.batch, video.grid

    def pieces(self, axis: Axis, chunk: int) -> Iterator[mx.array]:
        axis, chunk = (Axis.HEIGHT, self.grid[1]) if axis is Axis.TIME else (axis, chunk)
        pieces = zip(self._video.pieces(axis, chunk), self._planes.pieces(axis, chunk), strict=True)
        return (mx.concatenate(list(pair), axis=Axis.TIME) for pair in pieces)


class LatentStreamSource(Source):
    """Latents that arrive along time as arrays of `shape`, for any n, or a band of them. `grid` grows meanwhile."""

    def __init__(
        self,
        parts: LatentParts,
        shape: Sequence[int],
        moments: list[np.ndarray],
        preprocess: LatentPreprocess,
        band: Interval | None,
    ) -> None:
        """Make a source that adds the moments of a sample of the latents to `moments` as they arrive."""
        self._parts = parts
        self._moments = moments
        self._shape = shape
        self._preprocess = preprocess
        self._rows = band.as_slice if band else slice(0, shape[3])
        self.batch = shape[0]
        self.grid = (0, self._rows.stop - self._rows.start, shape[4])

    def pieces(self, axis: Axis, chunk: int) -> Iterator[mx.array]:
        for part in (native_array(part, "latents") for part in self._parts):
            check_part(part, self._shape)
            check_finite(part)
            self._moments += sample_moments(part)
            for start in range(0, part.shape[2], chunk):
                cut = part[:, :, start : start + chunk, self._rows]
                before, height, width = self.grid
                self.grid = (before + cut.shape[2], height, width)
                yield self._preprocess(cut, (slice(before, self.grid[0]), self._rows, slice(0, width)))


def sample_moments(latents: Latents) -> list[np.ndarray]:
    """The `frame_moments` of a few frames."""
    return list(map(frame_moments, read_frames(latents, sampled_frames(latents.shape[2]))))


def check_part(part: Any, shape: Sequence[int]) -> None:
    """Raise a `LatentsError` unless a part that arrives is an array, and of the first one's `shape` but for frames."""
    if getattr(part, "ndim", 0) != 5:
        given = tuple(part.shape) if hasattr(part, "shape") else type(part).__name__
        raise LatentsError(f"an iterator of latents gave {given}; expected arrays of five axes, (B, C, n, H', W').")
    found, expected = tuple(part.shape), tuple(shape)
    if (found[:2], found[3:]) != (expected[:2], expected[3:]):
        raise LatentsError(f"latents of shape {found} follow latents of {expected}; only the frames may differ.")


def check_finite(latents: mx.array | np.ndarray) -> None:
    """Evaluate latents, and raise a `LatentsError` if values are complex or not finite."""
    if "complex" in str(latents.dtype):
        raise LatentsError(f"latents are {latents.dtype}; expected float32, float16 or bfloat16.")
    if isinstance(latents, mx.array):
        evaluate("latents", latents)
        bad = count_nonfinite(latents)
    else:  # frame by frame, since the check copies
        try:
            bad = sum(int((~np.isfinite(latents[:, :, frame])).sum()) for frame in range(latents.shape[2]))
        except TypeError as error:
            raise LatentsError(f"latents are {latents.dtype}; expected float32, float16 or bfloat16.") from error
    if bad:
        raise LatentsError(f"{bad} of {latents.size} latent values are NaN or infinite.")


def as_latents(latents: Any) -> LatentInput:
    """What a caller passed as latents: an array or a mapped file, which are checked if in memory, or an iterable.

    They are read piece by piece, and the caller may assign to them meanwhile. So arrays of numpy are copied, except
    `np.memmap`, and those of MLX are taken by a second name, which an assignment to the first does not change.
    """
    if isinstance(latents, (mx.array, np.ndarray)):
        if latents.ndim == 5:  # otherwise the plan refuses it
            check_finite(latents)
        if isinstance(latents, np.memmap):
            return latents
        return latents.view(latents.dtype) if isinstance(latents, mx.array) else latents.copy()
    if hasattr(latents, "__array__"):  # of another library
        return as_latents(native_array(latents, "latents"))
    if is_whole(latents) or (isinstance(latents, Iterable) and not isinstance(latents, str)):
        return latents
    raise LatentsError(
        f"latents are {type(latents).__name__}; expected an array (B, C, F', H', W') or an iterator of them; for a "
        "file, pass what load_latents(path) returns first."
    )


def is_whole(latents: Any) -> TypeGuard[Latents]:
    """Whether latents are known from the start to the end, rather than arriving."""
    return hasattr(latents, "shape")


class PaddedClip(NamedTuple):
    """Latents and keyframes with repeated edges, and where the video lies in what they decode to."""

    latents: mx.array
    keyframes: Keyframes
    start: Grid
    size: Grid

    def crop(self, chunks: Generator[FrameChunk, None, None]) -> Generator[FrameChunk, None, None]:
        """The part of each chunk that belongs to the video."""
        (_, top, left), (frames, height, width) = self.start, self.size
        with closing(chunks):
            for chunk in chunks:
                if chunk.start < frames:
                    kept = chunk.frames[:, : frames - chunk.start, top : top + height, left : left + width]
                    yield replace(chunk, frames=kept)


def pad_as_noise(spec: NetworkSpec, latents: Latents, keyframes: Keyframes, noise: Noise) -> PaddedClip | None:
    """The clip padded as the first noise array (B, C, T, H, W) is; None if it has the size of the clip itself."""
    time, height, width = latents.shape[2:]
    added = [spec.added(axis, length) for axis, length in zip(Axis, (time, height, width), strict=True)]
    first = noise[0] if isinstance(noise, (list, tuple)) and noise else None
    if not any(map(sum, added)) or first is None or first.ndim != 5:
        return None
    out, scale = spec.out_grid((time, height, width)), spec.scale
    whole = [length + sum(more) * factor for length, more, factor in zip(out, added, scale, strict=True)]
    sizes = [(whole[0], whole[1] // side, whole[2] // side) for side in (1, spec.patch_size or 1)]
    if tuple(first.shape[2:]) not in sizes:
        return None
    padded = mx.pad(to_mlx(latents[:, :, :, :, :], "latents"), [(0, 0), (0, 0), *added], mode="edge")
    planes = mx.pad(to_mlx(keyframes.latents, "latents"), [(0, 0)] * 3 + added[1:], mode="edge")
    starts = [before * factor for (before, _), factor in zip(added, scale, strict=True)]
    return PaddedClip(padded, Keyframes(planes, keyframes.frames), (starts[0], starts[1], starts[2]), out)
