"""The ffmpeg filters that convert frames from one `FrameFormat` to another.

The filter is zscale. swscale, which ffmpeg inserts by default, treats 8 and 16 bits as one scale shifted by 8 (white is
65280 or 65535), which is off by 0.39 %, and places chroma half a sample off.
"""

import re
from dataclasses import replace

from ..errors import LTXVAEError, WriterError
from ..frame_format import RGB8, FrameFormat
from ..shapes import Size
from .ffmpeg import listing

#: ffmpeg's names of the matrices that zscale knows.
MATRICES = frozenset(
    ("bt709", "fcc", "bt470bg", "smpte170m", "smpte240m", "ycgco", "bt2020nc", "bt2020c", "chroma-derived-nc")
    + ("chroma-derived-c", "ictcp", "gbr")
)
_MATRICES = {"bt2020": "bt2020nc"}  # of files with these primaries; of all others BT.709
_LIGHT_OPTION = "-content_light"
# The brightest pixel, and the brightest frame on average, in cd/m2. The frames are not known when the file is begun, so
# these are the most that PQ has, and what masters commonly state.
_LIGHT_LEVELS = "10000,400"


def check_zscale(error: type[LTXVAEError]) -> None:
    """Raise an `error` if this ffmpeg cannot convert frames."""
    if all(row[1:2] != ["zscale"] for row in listing("-filters", error=error)):  # type: ignore[arg-type]  # hashable
        raise error(
            "this ffmpeg was built without zscale, which converts colors; use the one of imageio-ffmpeg (unset "
            "IMAGEIO_FFMPEG_EXE)."
        )


def content_light_arguments(frames: FrameFormat) -> list[str]:
    """Return ffmpeg's arguments before the input of frames: the content light level of PQ."""
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
    """Return how files store frames with a pixel format: in limited range, with chroma as H.264 and HEVC have it.

    Chroma of HDR in 4:2:0 is in the center, as in the reference.
    """
    stored = replace(frames, pixel_format=pixel_format)
    if stored.is_rgb:
        return stored
    levels = "pc" if pixel_format.startswith("yuvj") else "tv"
    site = "center" if frames.is_hdr and re.search("420|p010", pixel_format) else stored.site
    return replace(stored, levels=levels, matrix=_MATRICES.get(frames.primaries, "bt709"), site=site)


def conversion(source: FrameFormat, target: FrameFormat, size: Size, colors: str = "") -> list[str]:
    """Return ffmpeg's filters from one format to another, for frames `(width, height)`.

    Matrix, levels, depth and chroma site are converted; primaries and transfer function stay what they are, unless
    `colors` has options of zscale for them. What the source has as "input" is what each frame says.
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
    convert = "zscale=" + ":".join(
        [*(f"{name}={value}" for name, value in settings.items()), *([colors] if colors else [])]
    )
    formats = [f"format={pixel_format}" for pixel_format in dict.fromkeys((target.planar, target.pixel_format))]
    if source.is_rgb and target.site == "center":
        # zscale has no filter for the mean of 2x2 pixels. swscale is exact between depths of limited range.
        formats[0] = f"format=yuv444p16le,scale=flags=area+accurate_rnd,{formats[0]}"
    before, after = _whole_chroma(source, target, size)
    return [*before, convert, formats[0], *after, *formats[1:]]


def to_bt709(source: FrameFormat, target: FrameFormat, size: Size) -> list[str]:
    """Return ffmpeg's filters from frames of other colors to a target in RGB, whose primaries are BT.709.

    RGB gets the transfer function of sRGB, and other frames that of BT.709.
    """
    curve = "iec61966-2-1" if source.is_rgb else "bt709"
    primaries, transfer = ("bt709" if is_unknown(name) else name for name in (source.primaries, source.transfer))
    colors = f"primariesin={primaries}:transferin={transfer}:primaries=bt709:transfer={curve}"
    return conversion(source, target, size, colors)


def tags(target: FrameFormat) -> str:
    """Return the filter that tags frames. Output options such as -color_primaries lose to "unknown" of the frames."""
    matrix = "" if target.is_rgb else f":colorspace={target.matrix}"
    colors = f"color_primaries={target.primaries}:color_trc={target.transfer}"
    return f"setparams=range={target.levels}{matrix}:{colors}"


def _whole_chroma(source: FrameFormat, target: FrameFormat, size: Size) -> tuple[list[str], list[str]]:
    """Return filters before and after zscale, which takes no part of a chroma sample, as odd sizes have."""
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
        full_crop = crop.format(width + right, height + bottom)
        grow = [f"format={source.planar},tile={tiles}:nb_frames=1:padding={multiple - 1},{full_crop}"]
    return grow, [crop.format(width, height)]
