"""Frames of a decode: chunks as they come, their conversion to what sinks take, and frames that are scaled down."""

import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import mlx.core as mx
import numpy as np
from PIL import Image

from ..backend.device import explained_device_errors
from ..backend.mlx_utils import dtype_name, to_bool, to_float
from ..errors import DecodeError, WriterError
from ..files import expand_path, writing_to
from ..frame_format import RGB8, RGB16, FrameFormat, FrameOutput, FrameStep
from ..planning.memory import FRAMES_PER_CONVERSION
from ..shapes import fit_within, format_size
from ..video.sink import Sink

NOT_FINITE = "the decoded pixels are not finite"
_PLAIN_SPREAD = 2.01 / 255  # of the distance from black to white
_PEAKS = {mx.uint8: 255, mx.uint16: 65535}  # of levels

#: Called with frames (B, 3, n, H, W) and the index of the first one.
OnFramesReady = Callable[[mx.array, int], object]


def mlx_dtype(frames: FrameFormat) -> mx.Dtype:
    """Return the dtype of frames as MLX arrays."""
    return getattr(mx, frames.dtype.name)


def to_format(pixels: mx.array, target: FrameFormat, steps: Sequence[FrameStep] = ()) -> mx.array:
    """Convert pixels (B, n, H, W, 3) in [-1, 1]: to integer levels, rounded and clipped, or to floats with white at 1.

    `steps` take whole frames.
    """
    # Convert to float32 first: bfloat16 has 8 bits of precision and would lose half of the levels.
    frames, scale = pixels.astype(mx.float32) + 1, target.peak / 2
    if steps:
        frames, scale = (frames / 2).flatten(0, 1), target.peak
        for step in steps:
            frames = _apply(step, frames, target)
        frames = frames.reshape(*pixels.shape[:2], *frames.shape[1:])
    frames = frames * scale
    return (frames if target.is_float else mx.clip(mx.round(frames), 0, target.peak)).astype(mlx_dtype(target))


def _apply(step: FrameStep, frames: mx.array, target: FrameFormat) -> mx.array:
    result = step.apply(frames, target)
    count, height, width, channels = frames.shape
    width, height = step.resize((width, height))
    if result.shape != (count, height, width, channels) or result.dtype != mx.float32:
        actual, expected = f"{dtype_name(result.dtype)} {result.shape}", f"float32 {(count, height, width, channels)}"
        raise DecodeError(f"a step of the frames returned {actual}; expected frames as it was given: {expected}.")
    return result


def to_format_in_parts(pixels: mx.array, target: FrameFormat, steps: Sequence[FrameStep] = ()) -> mx.array:
    """Convert a long chunk as `to_format` does, but evaluated part by part, which takes less memory."""
    if pixels.shape[1] <= FRAMES_PER_CONVERSION:
        return to_format(pixels, target, steps)
    batch, count, height, width, channels = pixels.shape
    width, height = FrameOutput(target, tuple(steps)).resize((width, height))
    frames = mx.zeros((batch, count, height, width, channels), mlx_dtype(target))
    for start in range(0, count, FRAMES_PER_CONVERSION):
        part = slice(start, start + FRAMES_PER_CONVERSION)
        frames[:, part] = to_format(pixels[:, part], target, steps)
        mx.eval(frames)
    return frames


@dataclass(frozen=True)
class FrameChunk:
    """Consecutive final frames. Its meaning does not depend on the plan.

    Attributes:
        start: the index of the first frame in the video.
        frames: (B, n, H, W, 3): floats approximately in [-1, 1], in the network's dtype; or integer levels, if the
            stream has a bit depth or a format of levels.
        is_finite: a flag on the device: whether all pixels decoded so far are finite. `None` if not checked.
        explain: returns why they are not finite, for the error.
    """

    start: int
    frames: mx.array
    is_finite: mx.array | None = None
    explain: Callable[[], str] | None = None

    @property
    def pixels(self) -> mx.array:
        """Frames as (B, 3, n, H, W), approximately in [-1, 1]. Levels are converted to float32."""
        pixels = self._pixels.transpose(0, 4, 1, 2, 3)
        mx.async_eval(pixels)  # so that another thread can use them
        return pixels

    def to_uint8(self) -> np.ndarray:
        """Return the frames as uint8, converted on the device: round((x + 1) * 127.5). Raises what `check` raises.

        Returns:
            (n, H, W, 3) for a single video, (B, n, H, W, 3) for a batch of several.
        """
        return self.to_frames(FrameOutput(RGB8))

    def to_uint16(self) -> np.ndarray:
        """Return the frames as `to_uint8` does, but as full-range uint16, for sinks with more than 8 bits."""
        return self.to_frames(FrameOutput(RGB16))

    @explained_device_errors()
    def to_frames(self, output: FrameOutput) -> np.ndarray:
        """Return the frames as `to_uint8` does, but in any format for sinks, after the steps of `output`."""
        frames, target = self.frames, output.format
        peak = _PEAKS.get(frames.dtype)
        if peak is None or target.is_float or output.steps:
            frames = to_format_in_parts(self._pixels, target, output.steps)
        elif peak != target.peak:
            frames = mx.round(frames.astype(mx.float32) * (target.peak / peak)).astype(mlx_dtype(target))
        array = np.asarray(frames[0] if frames.shape[0] == 1 else frames)
        self.check()
        return array

    def is_plain(self) -> bool:
        """Return whether every frame is one color, within two of 255 levels."""
        peak = _PEAKS.get(self.frames.dtype)
        low, high = (-1, 1) if peak is None else (0, peak)
        limits = self.frames.max(axis=(2, 3)), self.frames.min(axis=(2, 3))
        most, least = (mx.clip(limit.astype(mx.float32), low, high) for limit in limits)
        return to_float((most - least).max()) <= _PLAIN_SPREAD * (high - low)

    def save(self, path: str | os.PathLike, index: int = 0) -> None:
        """Write one frame of a single video as a picture, in the format of the ending: .png, .jpg, ...

        Raises:
            WriterError: if it cannot be written.
        """
        with writing_to(path, Exception):
            Image.fromarray(self.to_uint8()[index]).save(expand_path(path, WriterError))

    def _repr_png_(self) -> bytes:
        """Return the first frame, which notebooks show."""
        png = io.BytesIO()
        Image.fromarray(self.to_uint8().reshape(-1, *self.frames.shape[2:])[0]).save(png, "png")
        return png.getvalue()

    def __repr__(self) -> str:
        _, count, height, width, _ = self.frames.shape
        frames = f"frame {self.start}" if count == 1 else f"frames {self.start} to {self.start + count - 1}"
        return f"FrameChunk({frames}, {format_size(width, height)}, {dtype_name(self.frames.dtype)})"

    def check(self) -> None:
        """Check that the frames are finite. This evaluates them, so call it where they are read anyway.

        Raises:
            DecodeError: if they are not finite.
            DeviceError: if the device runs out of memory, or is stopped.
        """
        with explained_device_errors():
            if self.is_finite is not None and not to_bool(self.is_finite):
                raise DecodeError(f"{NOT_FINITE}: {self.explain()}" if self.explain else f"{NOT_FINITE}.")

    @property
    def _pixels(self) -> mx.array:
        """Frames in [-1, 1]."""
        peak = _PEAKS.get(self.frames.dtype)
        return self.frames if peak is None else self.frames.astype(mx.float32) * (2 / peak) - 1


def write_chunk(chunk: FrameChunk, sinks: Mapping[Sink, FrameOutput]) -> None:
    """Write a chunk to sinks, each with its frames, converted once for sinks with the same format."""
    for output in dict.fromkeys(sinks.values()):
        frames = chunk.to_frames(output)
        for sink in (sink for sink, sink_output in sinks.items() if sink_output == output):
            sink.write(frames)


@cache  # so that outputs with the same frames are equal, and the frames are computed once
def scaling_step(max_size: int) -> FrameStep:
    """Return the step that scales frames down until no side is longer than `max_size` pixels."""

    def apply(frames: mx.array, _: FrameFormat) -> mx.array:
        count, height, width, channels = frames.shape
        new_width, new_height = fit_within((width, height), max_size)
        if (new_width, new_height) == (width, height):
            return frames
        rows, columns = mx.array(scaling_weights(height, new_height)), mx.array(scaling_weights(width, new_width))
        scaled = (rows @ frames.reshape(count, height, width * channels)).reshape(count, new_height, width, channels)
        return (columns @ scaled.reshape(-1, width, channels)).reshape(count, new_height, new_width, channels)

    return FrameStep(apply, resize=lambda size: fit_within(size, max_size))


def scaling_weights(length: int, new_length: int) -> np.ndarray:
    """Return the weights (new_length, length), float32, of positions in each scaled one: a triangle of two new ones."""
    ratio = length / new_length
    centers = (np.arange(new_length) + 0.5) * ratio
    distances = np.abs(np.arange(length) + 0.5 - centers[:, None]) / ratio
    weights = np.maximum(0, 1 - distances)
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)
