"""HDR latents: options of their outputs, and the conversion of codes to signals, EXR images and an encoder's input."""

import os
from dataclasses import dataclass, replace
from functools import cache
from typing import get_args

import mlx.core as mx
import numpy as np

from ..backend.mlx_utils import dtype_name, from_numpy
from ..errors import WriterError, option, quote, suggest, warn
from ..files import expand_path
from ..frame_format import RGB8, RGB16, FrameFormat, FrameOutput, FrameStep
from ..hdr import Primaries, to_codes, to_hlg, to_linear, to_pq, to_sdr
from ..options import ExrSpaceName, HDRInput, OutputOptions, SignalName, Transfer
from ..video.exr import EXR_SPACES

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

    def choose_frames(self, options: OutputOptions, *, is_exr: bool = False) -> OutputOptions:
        """Return the options of an output with HDR frames. An SDR signal keeps the format that the options had.

        With `is_exr` the output is EXR, whatever its name.
        """
        output, sdr = options.frames, _step(self.transfer, "sdr", self.exposure)
        frames = FrameOutput(output.format, (sdr, *output.steps))
        if self.signal != "sdr":
            format = FrameFormat(RGB16.pixel_format, primaries="bt2020", transfer=_TRANSFERS[self.signal])
            frames = FrameOutput(format, (_step(self.transfer, self.signal), *output.steps))
        light = FrameOutput(EXR_SPACES[self.exr_space], (_step(self.transfer, self.exr_space),))
        folder = None if self.exr is None else expand_path(self.exr, WriterError)
        return replace(
            options,
            frames=light if is_exr else frames,
            exr=light,
            exr_folder=folder,
            sheet_frames=FrameOutput(RGB8, (sdr,)),
        )


#: Argument `hdr` of `decode_to_file`: options, or the curve alone. `None` means that the latents are not HDR.
HDR = HDROptions | Transfer | None


def choose_hdr(options: OutputOptions, hdr: HDR, dtype: mx.Dtype) -> OutputOptions:
    """Return the options of an output, with HDR frames if `hdr` is set. Warns if the VAE's dtype is not float32."""
    if hdr is None:
        return options
    if dtype != mx.float32:
        name = dtype_name(dtype)
        warn(f"HDR is decoded in {name}, which shows as bands; load the VAE with dtype float32.")
    return (hdr if isinstance(hdr, HDROptions) else HDROptions(hdr)).choose_frames(options)


@cache  # so that outputs with the same frames are equal, and the frames are computed once
def _step(transfer: Transfer, target: str, exposure: float = 0) -> FrameStep:
    """Return the step that converts codes to a `SignalName` or an `ExrSpaceName`, part by part to take less memory."""

    def apply(frames: mx.array, _: FrameFormat) -> mx.array:
        pixels = frames.reshape(-1, 3)
        converted = mx.zeros(pixels.shape)
        length = -(-pixels.shape[0] // _NUM_PARTS)
        for start in range(0, pixels.shape[0], length):
            part = slice(start, start + length)
            converted[part] = _convert(pixels[part], transfer, target, exposure)
            mx.eval(converted)
        return converted.reshape(frames.shape)

    return FrameStep(apply, _STEP_BYTES)


def _convert(codes: mx.array, transfer: Transfer, target: str, exposure: float) -> mx.array:
    if target == transfer:
        return mx.clip(codes, 0, 1)
    if target == "acescct":
        return to_codes(to_linear(codes, transfer, "acescg"), "acescct", "acescg")
    light = to_linear(codes, transfer, _PRIMARIES.get(target, "rec709"))
    if target == "sdr":
        return to_sdr(light, exposure)
    return _SIGNALS[target](light) if target in _SIGNALS else light


def to_encoder_pixels(frames: np.ndarray, meaning: HDRInput) -> mx.array:
    """Convert the frames (n, H, W, 3) of EXR images to the pixels (1, 3, n, H, W) in [-1, 1] that LTX-2.5 encodes."""
    light = from_numpy(frames)
    codes = mx.clip(light, 0, 1) if meaning == "acescct" else to_codes(light, "acescct", _PRIMARIES[meaning])
    return (2 * codes - 1)[None].transpose(0, 4, 1, 2, 3)
