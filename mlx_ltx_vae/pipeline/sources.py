"""Provides the input of a run piece by piece: latents of an array, a file or an iterator, or results of layers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import tee
from math import prod
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx
import numpy as np

from ..backend.device import evaluate
from ..backend.machine import VALUES_AT_ONCE
from ..backend.mlx_utils import count_nonfinite, native_array, take_joined, to_float, to_mlx
from ..errors import LatentsError, option, warn
from ..networks.base import Decoder, Statistics
from ..networks.noise import Draws, LatentBox
from ..networks.specs import NetworkSpec
from ..shapes import Axis, Grid, Interval, sampled_frames
from ..tiling.layout import TileBox
from .output_check import FrameFlags

_LEAST_STD = 1e-3  # of a channel that is not constant
_MUCH_NEARER = 0.5  # ratio of two distances
# Normalized latents have a standard deviation near 1 in every channel; in a plain or still clip some are smaller.
_MIN_USUAL_STD, _MAX_USUAL_STD = 1 / 3, 3.0
_LEAST_VALUES = 32  # of a channel: a corner of a clip varies less


#: Yields the pieces of a batch of boxes of equal shape along time, so many positions at a time. A piece starts with all
#: items of the first box.
Crops = Callable[[Sequence[TileBox], int], Iterator[mx.array]]


@dataclass(frozen=True)
class Source:
    """Input of a run.

    Attributes:
        grid: extents in time, height and width. The time is 0 for latents that arrive, whose number is not known.
        pieces: yields the input in order along an axis, so many positions at a time, as arrays (B, T, H, W, C).
        crops: reads tiles. `None` cuts them from pieces of full frames; the boxes must then span the input in time.
    """

    batch: int
    grid: Grid
    pieces: Callable[[Axis, int], Iterator[mx.array]]
    crops: Crops | None = None

    def tile_pieces(self, batches: Sequence[Sequence[TileBox]], chunk: int) -> list[Iterator[mx.array]]:
        """Return an iterator as `crops` does for each batch of boxes. The iterators are advanced in turns."""
        if self.crops is not None:
            return [self.crops(boxes, chunk) for boxes in batches]
        copies = tee(self.pieces(Axis.TIME, chunk), len(batches))
        return [map(partial(crop_space, boxes=boxes), copy) for copy, boxes in zip(copies, batches, strict=True)]


def crop_space(frames: mx.array | np.ndarray, boxes: Sequence[TileBox]) -> mx.array:
    """Crop (B, n, H, W, C) to the rows and columns of some boxes. The batch starts with all items of the first box."""
    crops = (frames[:, :, rows.as_slice, columns.as_slice] for _, rows, columns in boxes)
    return mx.concatenate([to_mlx(crop, "frames") for crop in crops])


def layer_crops(results: Iterator[mx.array]) -> Crops:
    """Return the crops of tiles from the results of a network's first layers, in the order of their frames.

    Positions before the current tiles are dropped.
    """
    held: list[mx.array] = []
    held_start = held_end = 0

    def crops(boxes: Sequence[TileBox], chunk: int) -> Iterator[mx.array]:
        nonlocal held_start, held_end
        time = boxes[0][0]  # the same in all boxes of a batch
        while held and held_start + held[0].shape[1] <= time.start:
            held_start += held.pop(0).shape[1]
        while held_end < time.end:
            held.append(next(results))
            held_end += held[-1].shape[1]
        first, end = time.start - held_start, time.end - held_start
        for start in range(first, end, chunk):
            yield crop_space(take_joined(held, Axis.TIME, start, min(start + chunk, end)), boxes)

    return crops


@runtime_checkable
class Latents(Protocol):
    """Latents (B, C, F', H', W') that are all available: an MLX or numpy array, or a mapped file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, index: tuple[slice, ...]) -> mx.array | np.ndarray: ...


#: Latents that callers pass: all of them, or arrays along time as they become available.
LatentParts = Iterable[mx.array | np.ndarray]
LatentInput = Latents | LatentParts


class LatentRecord:
    """Record of a decode's latents so far, on the device: which are constant, and their largest magnitude.

    Errors use it after the decode. `first_frame` is the number of the first latent frame that is decoded.
    """

    def __init__(self, first_frame: int = 0) -> None:
        self._first_frame = first_frame
        self._is_constant = FrameFlags()
        self._largest = mx.array(0.0)

    def add(self, latents: mx.array, normalized: mx.array, first_frame: int) -> None:
        """Add latents (B, C, n, h, w) as they were given, which may be unnormalized, and normalized."""
        # Constant parts that differ from each other make a picture that is not flat, which is not an error either.
        is_constant = (latents == latents[:, :, :, :1, :1]).all(axis=(1, 3, 4)).any(axis=0)
        self._is_constant.update(first_frame - self._first_frame, is_constant)
        self._largest = mx.maximum(self._largest, mx.abs(normalized).max())
        mx.async_eval(self._largest)

    @property
    def num_frames(self) -> int:
        """Number of latent frames."""
        return self._is_constant.length

    @property
    def largest(self) -> float:
        """Largest magnitude of the normalized latents."""
        return to_float(self._largest)

    def may_be_flat(self, spec: NetworkSpec) -> mx.array:
        """Return a flag on the device for each frame, (F,): its latents are constant per channel."""
        is_constant = self._is_constant.all()
        first_frames = mx.repeat(is_constant[:1], spec.first_frames)
        return mx.concatenate([first_frames, mx.repeat(is_constant[1:], spec.scale.time)])


#: Converts latents (B, C, n, h, w) to the input (B, n, h, w, C) of a decoder's first stage. The box is their place in
#: all latents.
LatentPreprocess = Callable[[mx.array | np.ndarray, LatentBox], mx.array]


def preprocess_latents(decoder: Decoder, draws: Draws, record: LatentRecord, *, unnormalized: bool) -> LatentPreprocess:
    """Return the conversion of latents to a decoder's input. It adds them to the record."""
    if unnormalized and decoder.statistics is None:
        raise LatentsError(
            "these latents are unnormalized, and this VAE has no statistics to normalize them; give normalized "
            "latents, without unnormalized=True."
        )
    statistics = decoder.statistics if unnormalized else None

    def preprocess(latents: mx.array | np.ndarray, box: LatentBox) -> mx.array:
        latents = to_mlx(latents, "latents")
        normalized = latents if statistics is None else statistics.normalize(latents)
        record.add(latents, normalized, box[0].start)
        return decoder.prepare(normalized, draws.crop(box))

    return preprocess


def latent_source(latents: Latents, preprocess: LatentPreprocess, frames: Interval | None = None) -> Source:
    """Return latents as the input of a decoder, or some of their frames."""
    batch, _, length, height, width = latents.shape
    first_frame, end_frame = (frames.start, frames.end) if frames else (0, length)
    grid = (end_frame - first_frame, height, width)

    def read(time: slice, rows: slice, columns: slice) -> mx.array:
        time = slice(time.start + first_frame, time.stop + first_frame)
        return preprocess(latents[:, :, time, rows, columns], (time, rows, columns))

    def pieces(axis: Axis, chunk: int) -> Iterator[mx.array]:
        box = [slice(0, extent) for extent in grid]
        for start in range(0, grid[axis.grid], chunk):
            box[axis.grid] = slice(start, min(start + chunk, grid[axis.grid]))
            yield read(*box)

    def crops(boxes: Sequence[TileBox], chunk: int) -> Iterator[mx.array]:
        span = boxes[0][0]  # the same in all boxes of a batch
        for start in range(span.start, span.end, chunk):
            time = slice(start, min(start + chunk, span.end))
            yield mx.concatenate([read(time, rows.as_slice, columns.as_slice) for _, rows, columns in boxes])

    return Source(batch, grid, pieces, crops)


def arriving_source(
    parts: LatentParts, shape: Sequence[int], moments: list[np.ndarray], preprocess: LatentPreprocess
) -> Source:
    """Return latents that arrive along time: arrays of `shape` with any number of frames.

    The moments of a sample of the latents are added to `moments` as they arrive.
    """
    batch, _, _, height, width = shape

    def pieces(_: Axis, chunk: int) -> Iterator[mx.array]:
        end_frame = 0
        for part in (native_array(part, "latents") for part in parts):
            check_part(part, shape)
            check_finite(part)
            moments.extend(sample_moments(part))
            for start in range(0, part.shape[2], chunk):
                piece = part[:, :, start : start + chunk]
                first_frame, end_frame = end_frame, end_frame + piece.shape[2]
                yield preprocess(piece, (slice(first_frame, end_frame), slice(0, height), slice(0, width)))

    return Source(batch, (0, height, width), pieces)


def sample_moments(latents: Latents) -> list[np.ndarray]:
    """Return the `frame_moments` of a few frames."""
    return list(map(frame_moments, read_frames(latents, sampled_frames(latents.shape[2]))))


def read_frames(latents: Latents, frames: Iterable[int]) -> Iterator[mx.array]:
    """Yield some latent frames of an array or `MappedLatents` (B, C, F', H', W'), float32 (B, C, 1, H', W')."""
    for frame in frames:
        yield to_mlx(latents[(slice(None), slice(None), slice(frame, frame + 1))], "latents").astype(mx.float32)


def warn_of_unusual(
    moments: Sequence[np.ndarray],
    shape: Sequence[int],
    statistics: Statistics | None,
    latents: object,
    unnormalized: bool,
) -> None:
    """Warn if the moments of a sample of latents with this shape are unusual for a model's latents."""
    means, stds = join_moments(moments)
    if unnormalized and statistics is not None:
        mean, std = (np.array(values.astype(mx.float32)) for values in statistics)
        means, stds = (means - mean) / std, stds / std
    num_values = len(moments) * shape[0] * shape[3] * shape[4]
    was_unnormalized = unnormalized or getattr(latents, "was_unnormalized", False)
    if notice := find_notice(means, stds, num_values, statistics, was_unnormalized=was_unnormalized):
        warn(f"{getattr(latents, 'source', 'latents')}: {notice}")


def check_part(part: Any, shape: Sequence[int]) -> None:
    """Raise a `LatentsError` unless an arriving part is an array of the first part's `shape`, except for the frames."""
    if getattr(part, "ndim", 0) != 5:
        kind = tuple(part.shape) if hasattr(part, "shape") else type(part).__name__
        raise LatentsError(f"an iterator of latents gave {kind}; expected arrays of five axes, (B, C, n, H', W').")
    part_shape, expected = tuple(part.shape), tuple(shape)
    if (part_shape[:2], part_shape[3:]) != (expected[:2], expected[3:]):
        raise LatentsError(f"latents of shape {part_shape} follow latents of {expected}; only the frames may differ.")


def check_values(latents: Latents, frames: Interval | None = None, name: str = "") -> None:
    """Run `check_finite` on all latents, or on some frames of a file, which is read in parts."""
    if isinstance(latents, mx.array) or hasattr(latents, "__array__"):
        check_finite(native_array(latents, "latents"), name)
        return
    first, end = (frames.start, frames.end) if frames else (0, latents.shape[2])
    step = max(1, VALUES_AT_ONCE * latents.shape[2] // prod(latents.shape))
    for start in range(first, end, step):
        check_finite(native_array(latents[:, :, start : min(start + step, end)], "latents"), name)


def check_finite(latents: mx.array | np.ndarray, name: str = "") -> None:
    """Evaluate latents; raise a `LatentsError` with their name if values are complex or not finite."""
    if "complex" in str(latents.dtype):
        raise LatentsError(f"latents are {latents.dtype}; expected float32, float16 or bfloat16.")
    if isinstance(latents, mx.array):
        evaluate("latents", latents)
        num_invalid = count_nonfinite(latents)
    else:  # frame by frame, since the check copies
        try:
            num_invalid = sum(int((~np.isfinite(latents[:, :, frame])).sum()) for frame in range(latents.shape[2]))
        except TypeError as error:
            raise LatentsError(f"latents are {latents.dtype}; expected float32, float16 or bfloat16.") from error
    if num_invalid:
        raise LatentsError(f"{name and f'{name}: '}{num_invalid} of {latents.size} latent values are NaN or infinite.")


def as_latents(latents: Any) -> LatentInput:
    """Return a caller's latents, an array, a mapped file or an iterable, after checks of the values in memory.

    Latents are read piece by piece, and the caller may assign to them meanwhile. So numpy arrays are copied, except
    `np.memmap`, and MLX arrays become a view, which does not change if the caller assigns to the array.
    """
    if isinstance(latents, (mx.array, np.ndarray)):
        if latents.ndim == 5:  # the plan refuses other arrays
            check_finite(latents)
        if isinstance(latents, np.memmap):
            return latents
        return latents.view(latents.dtype) if isinstance(latents, mx.array) else latents.copy()
    if hasattr(latents, "__array__"):  # of another library
        return as_latents(native_array(latents, "latents"))
    if isinstance(latents, (Latents, Iterable)) and not isinstance(latents, str):
        parts: Sequence[Any] = latents if isinstance(latents, Sequence) else ()
        for part in parts:
            check_part(part, getattr(parts[0], "shape", ()))
            check_finite(native_array(part, "latents"))
        return latents
    raise LatentsError(
        f"latents are {type(latents).__name__}; expected an array (B, C, F', H', W') or an iterator of them; for a "
        "file, pass what load_latents(path) returns first."
    )


def frame_moments(values: mx.array) -> np.ndarray:
    """Return means and variances of the channels of a latent frame (B, C, 1, H', W'): (2, C) float64."""
    # In float64, where no square of a float32 is infinite. Channel by channel, since float64 takes twice the memory.
    channels = (channel.astype(np.float64) for channel in np.moveaxis(np.array(values), 1, 0))
    return np.array([(channel.mean(), channel.var()) for channel in channels]).T


def join_moments(frames: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations (C,) of all latent frames together, from their `frame_moments`."""
    means, variances = np.moveaxis(np.array(frames), 1, 0)
    return means.mean(axis=0), np.sqrt(variances.mean(axis=0) + means.var(axis=0))


def count_unusual(stds: np.ndarray) -> int:
    """Return the number of channels whose standard deviation is far from 1."""
    return int(((stds < _MIN_USUAL_STD) | (stds > _MAX_USUAL_STD)).sum())


def are_unusual(stds: np.ndarray, num_values: int) -> bool:
    """Return whether most channels, of `num_values` each, are constant, or have a standard deviation far from 1."""
    is_constant = num_values > 1 and 2 * int((stds < _LEAST_STD).sum()) > len(stds)
    return is_constant or (num_values >= _LEAST_VALUES and 2 * count_unusual(stds) > len(stds))


def find_notice(
    means: np.ndarray,
    stds: np.ndarray,
    num_values: int,
    statistics: tuple[mx.array, mx.array] | None,
    *,
    was_unnormalized: bool,
) -> str | None:
    """Return a warning about latents with these moments of their normalized channels, or `None` if they are usual.

    `statistics` are the VAE's. `was_unnormalized` is True if the caller said that the latents are unnormalized.
    """
    flag = option("unnormalized=True", "--unnormalized")
    if not means.any() and not stds.any():
        return "every value is 0: the generation failed, and the video has one color; generate them again."
    if statistics is not None:
        mean, std = (np.array(array.astype(mx.float32)) for array in statistics)
        near = _MUCH_NEARER * _distance(means, stds, 0, 1)
        # -mean / std and 1 / std are the moments of normalized latents that are normalized again.
        if was_unnormalized and _distance(means, stds, -mean / std, 1 / std) < near:
            return f"the channels have the statistics of normalized latents; if the picture is wrong, leave out {flag}."
        if not was_unnormalized and _distance(means, stds, mean, std) < near:
            return f"the channels have the statistics of unnormalized latents; if the picture is wrong, add {flag}."
    if are_unusual(stds, num_values):
        return (
            "most channels have a standard deviation far from 1: perhaps they are not normalized, or are of a plain, "
            "still clip; if the picture is wrong, check the program that made them."
        )
    return None


def _distance(means: np.ndarray, stds: np.ndarray, mean: np.ndarray | int, std: np.ndarray | int) -> float:
    """Return the distance of moments of channels from a mean and a std."""
    return float((np.abs(means - mean) / std + np.abs(np.log(np.maximum(stds, _LEAST_STD) / std))).mean())
