"""Meaning of the numbers in frames, and the ffmpeg filters that convert frames from one meaning to another.

The filter is zscale. swscale, which ffmpeg inserts by default, treats 8 and 16 bits as one scale shifted by 8 (white is
65280 or 65535), which is off by 0.39 %, and places chroma half a sample off.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import LTXVAEError, WriterError, quote
from ..shapes import Size
from .ffmpeg import listing

#: ffmpeg's names of the matrices that zscale knows.
MATRICES = frozenset(
    ("bt709", "fcc", "bt470bg", "smpte170m", "smpte240m", "ycgco", "bt2020nc", "bt2020c", "chroma-derived-nc")
    + ("chroma-derived-c", "ictcp", "gbr")
)
# Formats that only repack another one, which zscale has.
_REPACKED = {
    "nv12": "yuv420p", "nv21": "yuv420p", "p010le": "yuv420p10le", "nv16": "yuv422p", "nv20le": "yuv422p10le",
    "bgr0": "gbrp", "bgra": "gbrap", "rgb24": "gbrp", "rgb48le": "gbrp16le", "rgba64le": "gbrap16le",
}  # fmt: skip
_RGB = re.compile("[0ax]?(2?rgb|bgr)|gbr|pal8")  # how the names of pixel formats without a matrix start
# Of frames as arrays: the dtype, and the largest number, which is white.
_ARRAYS = {
    "rgb24": (np.uint8, 255), "rgb48le": (np.uint16, 65535), "rgbf16le": (np.float16, 1), "rgbf32le": (np.float32, 1)
}  # fmt: skip
_MATRICES = {"bt2020": "bt2020nc"}  # of files with these primaries; of all others BT.709
HDR_TRANSFERS = {"smpte2084": "PQ", "arib-std-b67": "HLG"}
_LIGHT_OPTION = "-content_light"
# The brightest pixel, and the brightest frame on average, in cd/m2. The frames are not known when the file is begun, so
# these are the most that PQ has, and what masters commonly state.
_LIGHT_LEVELS = "10000,400"


@dataclass(frozen=True)
class FrameFormat:
    """Meaning of the numbers in frames, by ffmpeg's names.

    Attributes:
        pixel_format: the components, their order, bits and subsampling. Of arrays (n, H, W, 3): "rgb24" (uint8),
            "rgb48le" (uint16), "rgbf16le" or "rgbf32le" (floats, with white at 1 and no limits).
        levels: "pc" if black and white are the least and the largest number; "tv" for 16 to 235 of 255.
        matrix: between RGB and luma and chroma; "gbr" for RGB.
        site: of a chroma sample among its luma samples: "left" (in the middle of the left ones), "topleft", "center".
    """

    pixel_format: str
    levels: str = "pc"
    matrix: str = "gbr"
    primaries: str = "bt709"
    transfer: str = "bt709"
    site: str = "left"

    @property
    def dtype(self) -> np.dtype:
        """The dtype of frames as arrays."""
        return np.dtype(_ARRAYS[self.pixel_format][0])

    @property
    def peak(self) -> int:
        """White, in frames as arrays."""
        return _ARRAYS[self.pixel_format][1]

    @property
    def is_float(self) -> bool:
        """True if frames as arrays are floats."""
        return self.dtype.kind == "f"

    @property
    def bit_depth(self) -> int:
        """The bit depth of a video with these frames."""
        return 8 if self.pixel_format == "rgb24" else 10

    @property
    def is_hdr(self) -> bool:
        """True if they are HLG or PQ."""
        return self.transfer in HDR_TRANSFERS

    @property
    def planar(self) -> str:
        """The pixel format with a plane for each component, which zscale takes."""
        return _REPACKED.get(self.pixel_format, self.pixel_format)

    @property
    def is_rgb(self) -> bool:
        return _RGB.match(self.pixel_format) is not None


#: Frames as arrays: full-range RGB.
RGB8, RGB16 = FrameFormat("rgb24"), FrameFormat("rgb48le")
#: By the bit depth that users choose. 10 bits come as 16, and use all of them.
_BY_DEPTH = {8: RGB8, 10: RGB16}


def frame_format(bit_depth: int, error: type[LTXVAEError], name: str | None = None) -> FrameFormat:
    """The format of frames with a bit depth that a user chose. Raises an `error`, about what has this name."""
    if bit_depth not in tuple(_BY_DEPTH):
        start = "" if name is None else f"{name}: "
        raise error(f"{start}a bit depth of {quote(bit_depth)} is not supported; use 8 or 10.")
    return _BY_DEPTH[bit_depth]


@dataclass(frozen=True)
class FrameStep:
    """A change of frames on the device, between the decoder and their conversion to a format.

    Attributes:
        apply: called with frames (n, H, W, 3), float32 RGB in which black is 0 and white is 1, with values outside
            where the decoder has them, and with the format that they are converted to. n is at most 8 for each video
            of a batch. Returns such frames.
        pixel_bytes: what `apply` takes at its peak for each pixel, beside the 12 bytes of its argument and as many of
            its result, which the plan counts with it. The default is for two more arrays of this size.
    """

    apply: Callable[[Any, FrameFormat], Any]
    pixel_bytes: int = 24


@dataclass(frozen=True)
class FrameOutput:
    """Processing of a decoder's frames: the steps that change them, in order, and their format."""

    format: FrameFormat = RGB8
    steps: tuple[FrameStep, ...] = ()


def common_format(outputs: Iterable[FrameOutput]) -> FrameFormat | None:
    """The levels to which a decode can convert parts of frames as they come; None if outputs need floats."""
    distinct = set(outputs)
    if len(distinct) != 1:
        return None
    output = distinct.pop()
    return None if output.steps or output.format.is_float else output.format


def check_zscale(error: type[LTXVAEError]) -> None:
    """Raise an `error` if this ffmpeg cannot convert frames."""
    if all(row[1:2] != ["zscale"] for row in listing("-filters", error=error)):  # type: ignore[arg-type]  # hashable
        raise error(
            "this ffmpeg was built without zscale, which converts colors; use the one of imageio-ffmpeg (unset "
            "IMAGEIO_FFMPEG_EXE)."
        )


def content_light_arguments(frames: FrameFormat) -> list[str]:
    """ffmpeg's arguments before the input of frames: the content light level of PQ."""
    return [_LIGHT_OPTION, _LIGHT_LEVELS] if frames.transfer == "smpte2084" else []


def check_content_light(frames: FrameFormat) -> None:
    """Raise a `WriterError` if this ffmpeg cannot state the content light level that frames need."""
    if content_light_arguments(frames) and all(
        not row[:1] or not row[0].startswith(_LIGHT_OPTION) for row in listing("-h", "long", error=WriterError)
    ):
        raise WriterError(
            "this ffmpeg cannot state the light level of PQ (it has no -content_light); use the one of imageio-ffmpeg "
            "(unset IMAGEIO_FFMPEG_EXE)."
        )


def is_unknown(name: str) -> bool:
    """Return whether a file leaves it unstated."""
    return name in ("unknown", "unspecified", "reserved")


def file_format(pixel_format: str, frames: FrameFormat = RGB8) -> FrameFormat:
    """How files store frames with a pixel format: their colors, in limited range, chroma as H.264 and HEVC have it.

    Chroma of HDR in 4:2:0 is in the center, as in the reference.
    """
    stored = replace(frames, pixel_format=pixel_format)
    if stored.is_rgb:
        return stored
    levels = "pc" if pixel_format.startswith("yuvj") else "tv"
    site = "center" if frames.is_hdr and re.search("420|p010", pixel_format) else stored.site
    return replace(stored, levels=levels, matrix=_MATRICES.get(frames.primaries, "bt709"), site=site)


def conversion(source: FrameFormat, target: FrameFormat, size: Size) -> list[str]:
    """ffmpeg's filters from one format to another, for frames `(width, height)`.

    Matrix, levels, depth and chroma site are converted; primaries and transfer function stay what they are. What the
    source has as "input" is what each frame says.
    """
    settings = {
        "matrixin": source.matrix,
        "rangein": source.levels,
        "chromalin": source.site,
        "matrix": target.matrix,
        "range": target.levels,
        "chromal": target.site,
        "filter": "bicubic",
    }
    convert = "zscale=" + ":".join(f"{name}={value}" for name, value in settings.items())
    formats = [f"format={each}" for each in dict.fromkeys((target.planar, target.pixel_format))]
    if source.is_rgb and target.site == "center":
        # zscale has no filter for the mean of 2x2 pixels. swscale is exact between depths of limited range.
        formats[0] = f"format=yuv444p16le,scale=flags=area+accurate_rnd,{formats[0]}"
    before, after = _whole_chroma(source, target, size)
    return [*before, convert, formats[0], *after, *formats[1:]]


def tags(target: FrameFormat) -> str:
    """The filter that tags frames: an output option such as -color_primaries loses to "unknown" of the frames."""
    matrix = "" if target.is_rgb else f":colorspace={target.matrix}"
    colors = f"color_primaries={target.primaries}:color_trc={target.transfer}"
    return f"setparams=range={target.levels}{matrix}:{colors}"


def _whole_chroma(source: FrameFormat, target: FrameFormat, size: Size) -> tuple[list[str], list[str]]:
    """Filters before and after zscale, which takes no part of a chroma sample, as odd sizes have."""
    multiple = 4 if re.search("41[01]", source.pixel_format + target.pixel_format) else 2
    width, height = size
    right, bottom = -width % multiple, -height % multiple
    if not right and not bottom:
        return [], []
    crop = "crop={}:{}:0:0:exact=1"
    if source.is_rgb:  # the last pixels are repeated
        grow = [f"pad={width + right}:{height + bottom}", f"fillborders=right={right}:bottom={bottom}:mode=smear"]
    else:
        # The only filter that keeps the last chroma samples of an odd frame: others cut or stretch them. It draws an
        # empty tile beside the frame, after a gap that completes the chroma sample; what is empty is cut off again.
        tiles = f"{1 + (right > 0)}x{1 + (bottom > 0)}"
        whole = crop.format(width + right, height + bottom)
        grow = [f"format={source.planar},tile={tiles}:nb_frames=1:padding={multiple - 1},{whole}"]
    return grow, [crop.format(width, height)]
