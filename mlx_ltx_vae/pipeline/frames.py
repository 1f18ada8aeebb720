"""Check of a decoder's output, and its conversion to frames for sinks: levels, further steps, and HDR."""

import errno
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import get_args

import imageio.v3 as iio
import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..backend.device import explained_device_errors
from ..backend.mlx_utils import count_nonfinite, dtype_name, from_numpy, named_parameters, to_bool, to_float, to_list
from ..errors import DecodeError, PlanError, WriterError, option, quote, suggest, warn
from ..files import writing_to
from ..frame_format import RGB8, RGB16, FrameFormat, FrameOutput, FrameStep
from ..hdr import Primaries, to_codes, to_hlg, to_linear, to_pq, to_sdr
from ..models.base import Network
from ..planning.memory import FRAMES_PER_CONVERSION
from ..process import uninterrupted
from ..shapes import Axis, format_size
from ..units import ExrSpaceName, HDRInput, SignalName, Transfer, expand_path, format_bytes
from ..video.exr import EXR_SPACES
from ..video.sink import HDRFrames, Sink, SinkOptions

_FRAMES_AT_ONCE = 8
_ZEROS_AT_ONCE = 2**20  # bytes

# numpy has no bfloat16, so the bits are stored as unsigned integers.
_BITS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}


class FrameBuffer(AbstractContextManager["FrameBuffer"]):
    """Context manager that stores frames (B, F, H, W, 3) in a mapped file without a name in the temporary folder."""

    def __init__(self, shape: tuple[int, ...], dtype: mx.Dtype) -> None:
        self._dtype = dtype
        size = math.prod(shape) * dtype.size
        try:
            # The file has no name, so that it is deleted even if the process is killed.
            with uninterrupted():
                self._file = tempfile.TemporaryFile(prefix="mlx_ltx_vae-")  # noqa: SIM115
            with ExitStack() as stack:
                stack.callback(self._file.close)
                _reserve(self._file.fileno(), size)
                self._frames = np.memmap(self._file, np.dtype(f"u{dtype.size}"), "r+", shape=shape)
                stack.pop_all()
        except OSError as error:
            raise PlanError(
                f"decoding by rows or columns keeps {format_bytes(size)} of frames in "
                f"{tempfile.tempdir or 'the folder for temporary files'}, which cannot hold them "
                f"({error.strerror or error}); set TMPDIR to a larger disk, or decode with order time."
            ) from error

    def write(self, part: mx.array, axis: Axis, start: int) -> None:
        """Store a part of every frame, (B, F, h, w, 3), at index `start` along `axis`."""
        index = [slice(None)] * part.ndim
        index[axis] = slice(start, start + part.shape[axis])
        self._frames[tuple(index)] = np.asarray(part.view(_BITS[self._dtype.size]))

    def read(self) -> Iterator[mx.array]:
        """Yield the stored frames in order, a few at a time: (B, n, H, W, 3)."""
        for start in range(0, self._frames.shape[1], _FRAMES_AT_ONCE):
            bits = mx.array(np.array(self._frames[:, start : start + _FRAMES_AT_ONCE]))
            yield bits.view(self._dtype)

    def __exit__(self, *_: object) -> None:
        del self._frames
        self._file.close()


def _reserve(descriptor: int, size: int) -> None:
    """Extend an empty file to a size in bytes, with all its blocks on the disk, or raise an `OSError`.

    A mapped file whose blocks are missing when the disk is full ends the process with SIGBUS.
    """
    free = shutil.disk_usage(descriptor).free  # the folder may be gone
    if size > free:  # do not fill the disk first
        raise OSError(errno.ENOSPC, f"{format_bytes(free)} left")
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    zeros = memoryview(bytes(_ZEROS_AT_ONCE))  # macOS
    while size:
        size -= os.write(descriptor, zeros[:size])


_NOT_FINITE = "the decoded pixels are not finite"
_FLAT = "the decoded pixels are one flat patch everywhere"
_SILENT_FAILURE = "a convolution on this device failed silently; try another dtype, or mode exact with a chunk of 1."

_MAX_PARTS = 64  # of flags, so that a long clip does not hold many small arrays
_SHORT_PIECE = 2 * FRAMES_PER_CONVERSION
_NEARLY_BLACK = 0.95  # of 1: a flat frame of larger magnitude is black or white
_PLAUSIBLE = 1e3  # normalized latents of a model stay below a tenth of this

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
        frames = frames.reshape(pixels.shape)
    frames = frames * scale
    return (frames if target.is_float else mx.clip(mx.round(frames), 0, target.peak)).astype(mlx_dtype(target))


def _apply(step: FrameStep, frames: mx.array, target: FrameFormat) -> mx.array:
    result = step.apply(frames, target)
    if result.shape != frames.shape or result.dtype != mx.float32:
        actual, expected = f"{dtype_name(result.dtype)} {result.shape}", f"float32 {frames.shape}"
        raise DecodeError(f"a step of the frames returned {actual}; expected frames as it was given: {expected}.")
    return result


def to_format_in_parts(pixels: mx.array, target: FrameFormat, steps: Sequence[FrameStep] = ()) -> mx.array:
    """Convert a long chunk as `to_format` does, but evaluated part by part, which takes less memory."""
    if pixels.shape[1] <= FRAMES_PER_CONVERSION:
        return to_format(pixels, target, steps)
    frames = mx.zeros(pixels.shape, mlx_dtype(target))
    for start in range(0, pixels.shape[1], FRAMES_PER_CONVERSION):
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
            iio.imwrite(expand_path(path, WriterError), self.to_uint8()[index], plugin="pillow")

    def _repr_png_(self) -> bytes:
        """Return the first frame, which notebooks show."""
        return iio.imwrite("<bytes>", self.to_uint8().reshape(-1, *self.frames.shape[2:])[0], extension=".png")

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
                raise DecodeError(f"{_NOT_FINITE}: {self.explain()}" if self.explain else f"{_NOT_FINITE}.")

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


class FrameFlags:
    """Flag per frame on the device: the logical and over all pieces that have the frame."""

    def __init__(self) -> None:
        self._parts: list[mx.array] = []
        self._length = 0

    def update(self, start: int, flags: mx.array) -> None:
        """Add the flags (n,) of the frames from `start` on. `start` is at most the number of frames so far."""
        num_existing = min(self._length - start, flags.shape[0])
        if num_existing > 0:
            joined = self.all()
            joined[start : start + num_existing] = joined[start : start + num_existing] & flags[:num_existing]
            self._parts, flags = [joined], flags[num_existing:]
        self._parts.append(flags)
        self._length += flags.shape[0]
        if len(self._parts) > _MAX_PARTS:
            self._parts = [self.all()]
        mx.async_eval(self._parts[-2:])

    def all(self) -> mx.array:
        """Return the flags of all frames so far, (F,) bool."""
        return mx.concatenate(self._parts)


@dataclass(eq=False)
class OutputCheck:
    """Check that a decoder's output is finite, and that no frame is the same patch everywhere.

    If a convolution silently returns zeros (a known failure of GPU kernels on huge inputs), only the last bias remains,
    which is identical in every patch. A real picture never repeats bit for bit, unless its latents are constant, or it
    is black or white.
    """

    patch_size: int | None  # see `NetworkSpec`
    may_be_flat: Callable[[], mx.array]  # called at the end: for each frame, (F,), whether its latents are constant
    explain: Callable[[], str]  # why pixels are not finite
    find_cause: Callable[[], str | None]  # why pixels are flat, if it is not the device
    # Combines flags with processes that compute other parts of the frames, if there are any.
    combine: Callable[[mx.array], mx.array] | None = None
    _is_flat: FrameFlags = field(default_factory=FrameFlags, init=False)
    _has_two_patches: bool = field(default=False, init=False)  # two patches could differ; a single patch tells nothing
    # The first frame of a piece, and its first patch of each frame.
    _corner: tuple[int, mx.array] | None = field(default=None, init=False)
    _is_finite: mx.array = field(default_factory=lambda: mx.array(True), init=False)

    @property
    def is_finite(self) -> mx.array:
        """Flag on the device: whether all pixels so far are finite."""
        return self._combined(self._is_finite)

    def _combined(self, flags: mx.array) -> mx.array:
        return flags if self.combine is None else self.combine(flags)

    def update(self, frames: mx.array, start: int) -> None:
        """Check a piece (B, n, h, w, 3) of the frames from `start` on. A long one is checked part by part at once.

        Pieces of the same frames have the same `start`, and whole patches.
        """
        count = frames.shape[1]
        is_same = None  # with an earlier piece of the same frames
        if step := self.patch_size:
            corner = mx.contiguous(frames[:, :, :step, :step])
            if self._corner is not None and self._corner[0] == start:
                is_same = (corner == self._corner[1]).all(axis=(2, 3, 4)).any(axis=0)
                self._has_two_patches = True
            else:
                self._corner = start, corner
                mx.async_eval(corner)  # unevaluated, it keeps the piece alive
            self._has_two_patches |= max(frames.shape[2:4]) > step
        for first in range(0, count, FRAMES_PER_CONVERSION):
            part = slice(first, first + FRAMES_PER_CONVERSION)
            self._update(frames[:, part], start + first, None if is_same is None else is_same[part])
            if count > _SHORT_PIECE:
                mx.eval(self._is_finite)

    def _update(self, frames: mx.array, start: int, is_same: mx.array | None) -> None:
        if step := self.patch_size:
            pixel_axes, top = (2, 3, 4), frames[:, :, :step]
            down = (frames[:, :, step:] == frames[:, :, :-step]).all(axis=pixel_axes)
            # If all rows of patches are equal, the first row decides.
            across = (top[:, :, :, step:] == top[:, :, :, :-step]).all(axis=pixel_axes)
            is_visible = (mx.abs(top[:, :, :, :step]) < _NEARLY_BLACK).any(axis=pixel_axes)
            is_flat = (down & across & is_visible).any(axis=0)
            self._is_flat.update(start, is_flat if is_same is None else is_flat & is_same)
        self._is_finite = self._is_finite & _are_finite(frames)
        mx.async_eval(self._is_finite)

    def close(self) -> None:
        """Wait for all checks; raise `DecodeError` if one has failed."""
        of_frames = [self._is_flat.all() & self._has_two_patches, self.may_be_flat()] if self.patch_size else []
        flags = mx.concatenate([self._is_finite[None], *of_frames])
        is_finite, *flat_flags = to_list(self._combined(flags))
        if not is_finite:
            raise DecodeError(f"{_NOT_FINITE}: {self.explain()}")
        count = len(flat_flags) // 2
        flat = [frame for frame in range(count) if flat_flags[frame] and not flat_flags[count + frame]]
        if flat:
            where = f"{len(flat)} of the frames {flat[0]} to {flat[-1]} of {count}"
            problem = _FLAT if len(flat) == count else f"{where} are one flat patch, and their latents are not constant"
            raise DecodeError(f"{problem}: {self.find_cause() or _SILENT_FAILURE}")


@mx.compile
def _are_finite(frames: mx.array) -> mx.array:
    return mx.isfinite(frames).all()


def find_cause(network: Network, name: str, largest: float | None = None) -> str | None:
    """Explain a useless output of a network by its weights or its latents, or return `None`. May be slow.

    `name` is "encoder" or "decoder", and `largest` the largest magnitude of the latents, normalized.
    """
    parameters = named_parameters(network) if isinstance(network, nn.Module) else {}
    for key, weight in parameters.items():
        if count := count_nonfinite(weight):
            return f"NaN weights in {name}.{key} ({count} of {weight.size}); load the checkpoint again."
    if largest is not None and largest > _PLAUSIBLE:
        return (
            f"the latents reach {largest:.3g}, and a model's stay below {_PLAUSIBLE / 10:g} when they are "
            "normalized; check the program that made them."
        )
    return None


def explain_not_finite(network: Network, name: str, largest: float | None = None) -> str:
    """Return why a network's output is not finite, and what to do. Arguments are as for `find_cause`."""
    if cause := find_cause(network, name, largest):
        return cause
    if network.dtype == mx.float32:
        return f"the {name} overflowed in float32, which no trained weights do; download the checkpoint again."
    return f"the {name} overflowed in {dtype_name(network.dtype)}; try dtype float32."


_SIGNALS = {"hlg": to_hlg, "pq": to_pq}
_TRANSFERS = {"hlg": "arib-std-b67", "pq": "smpte2084"}  # by ffmpeg's names
_PRIMARIES: dict[str, Primaries] = {"srgb": "rec709", "srgb_linear": "rec709", "acescg": "acescg"}
_MAX_EXPOSURE = 20  # stops, beyond which all is black or white
_NUM_PARTS = 8  # of a conversion, which takes up to 14 arrays of the size of a part
_STEP_BYTES = 36  # per pixel: its result, and these arrays


@dataclass(frozen=True)
class HDROptions:
    """Options for the output of HDR latents.

    Attributes:
        transfer: the curve that encodes the pixels: "acescct" for LTX-2.5, "logc3" for the HDR LoRA of LTX-2.3.
        signal: the signal of videos and of all other outputs except EXR: "hlg", "pq" or "sdr".
        exposure: exposure in stops, for "sdr".
        exr: a folder for additional EXR images. `None` writes none.
        exr_space: the color space of EXR images: light with the primaries of sRGB or of ACEScg ("acescg"), or codes
            ("acescct").

    Raises:
        WriterError: for unknown names, an exposure out of range, or an exposure of a signal that takes none.
    """

    transfer: Transfer
    signal: SignalName = "hlg"
    exposure: float = 0
    exr: str | os.PathLike | None = None
    exr_space: ExrSpaceName = "srgb"

    def __post_init__(self) -> None:
        allowed_types = {"transfer": Transfer, "signal": SignalName, "exr_space": ExrSpaceName}
        for name, kind in allowed_types.items():
            value, names = getattr(self, name), get_args(kind)
            if value not in names:
                hint = suggest(value, names) if isinstance(value, str) else ""
                raise WriterError(f"HDR: {name} is {quote(value)}{hint}; expected one of {', '.join(names)}.")
        if not abs(self.exposure) <= _MAX_EXPOSURE:
            raise WriterError(f"HDR: an exposure of {self.exposure} stops is not within {_MAX_EXPOSURE} of 0.")
        if self.exposure and self.signal != "sdr":
            rule = option("an exposure is for the signal sdr", "--exposure is for --hdr-output sdr")
            raise WriterError(f"HDR: {rule}, not {self.signal}, which keeps the light.")

    def choose_frames(self, options: SinkOptions, *, is_exr: bool = False) -> SinkOptions:
        """Return the options of an output with HDR frames. An SDR signal keeps the format that the options had.

        With `is_exr` the output is EXR, whatever its name.
        """

        def step(target: str, exposure: float = 0) -> FrameStep:
            return FrameStep(_Convert(self.transfer, target, exposure), _STEP_BYTES)

        output, sdr = options.frames, step("sdr", self.exposure)
        frames = FrameOutput(output.format, (sdr, *output.steps))
        if self.signal != "sdr":
            format = FrameFormat(RGB16.pixel_format, primaries="bt2020", transfer=_TRANSFERS[self.signal])
            frames = FrameOutput(format, (step(self.signal), *output.steps))
        light = FrameOutput(EXR_SPACES[self.exr_space].format, (step(self.exr_space),))
        folder = None if self.exr is None else expand_path(self.exr, WriterError)
        return replace(
            options, frames=light if is_exr else frames, hdr=HDRFrames(light, FrameOutput(RGB8, (sdr,)), folder)
        )


#: Argument `hdr` of `decode_to_file`: options, or the curve alone. `None` means that the latents are not HDR.
HDR = HDROptions | Transfer | None


def choose_hdr(options: SinkOptions, hdr: HDR, dtype: mx.Dtype) -> SinkOptions:
    """Return the options of an output, with HDR frames if `hdr` is set. Warns if the VAE's dtype is not float32."""
    if hdr is None:
        return options
    if dtype != mx.float32:
        name = dtype_name(dtype)
        warn(f"HDR is decoded in {name}, which shows as bands; load the VAE with dtype float32.")
    return (hdr if isinstance(hdr, HDROptions) else HDROptions(hdr)).choose_frames(options)


# A frozen dataclass, so that outputs with the same frames are equal, and the frames are computed once.
@dataclass(frozen=True)
class _Convert:
    """Conversion of codes to a signal or to pixels of EXR images, part by part, which takes less memory."""

    transfer: Transfer
    target: str  # a `SignalName` or an `ExrSpaceName`
    exposure: float = 0

    def __call__(self, frames: mx.array, _: FrameFormat) -> mx.array:
        pixels = frames.reshape(-1, 3)
        converted = mx.zeros(pixels.shape)
        length = -(-pixels.shape[0] // _NUM_PARTS)
        for start in range(0, pixels.shape[0], length):
            part = slice(start, start + length)
            converted[part] = self._convert(pixels[part])
            mx.eval(converted)
        return converted.reshape(frames.shape)

    def _convert(self, codes: mx.array) -> mx.array:
        if self.target == self.transfer:
            return mx.clip(codes, 0, 1)
        if self.target == "acescct":
            return to_codes(to_linear(codes, self.transfer, "acescg"), "acescct", "acescg")
        light = to_linear(codes, self.transfer, _PRIMARIES.get(self.target, "rec709"))
        if self.target == "sdr":
            return to_sdr(light, self.exposure)
        return _SIGNALS[self.target](light) if self.target in _SIGNALS else light


def to_encoder_pixels(frames: np.ndarray, meaning: HDRInput) -> mx.array:
    """Convert the frames (n, H, W, 3) of EXR images to the pixels (1, 3, n, H, W) in [-1, 1] that LTX-2.5 encodes."""
    light = from_numpy(frames)
    codes = mx.clip(light, 0, 1) if meaning == "acescct" else to_codes(light, "acescct", _PRIMARIES[meaning])
    return (2 * codes - 1)[None].transpose(0, 4, 1, 2, 3)
