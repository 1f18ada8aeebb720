"""Properties of videos and pixel formats, by what ffmpeg says, since imageio-ffmpeg installs no ffprobe.

Nothing is read from lines that have text of the file: see `describe`.
"""

# PyAV has them as fields, but tells no damage: that is only in the log, which it collects for the whole process, and
# then hangs when a damaged video is closed while it is decoded by threads (18.1).

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import takewhile
from pathlib import Path

from ..errors import ReaderError, quote
from ..frame_format import HDR_TRANSFERS, FrameFormat
from ..shapes import Size
from ..units import MAX_FPS, parse_fps
from .ffmpeg import MARK, Description, Packet, describe, listing, read_ends
from .filters import is_unknown
from .pictures import PictureInfo, is_png, read_picture, read_png_chunk

_FIRST_STREAM = "0:V:0"  # ffmpeg's name of the first video stream that is not a picture of a cover
_BRAND_END = 12  # bytes of a QuickTime file
_STILL_BRANDS = ("avif", "heic", "heix", "mif1")
# Decoders of libvpx, which unlike ffmpeg's own also read transparency.
_ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
_FIELDS = re.compile(r"\b(top|bottom) (coded )?first\b")  # after the pixel format of an interlaced stream
_NOMINAL = re.compile(r"config in time_base: (\S+), frame_rate: (\d+)/(\d+)")
_FRAME = re.compile(r"n: +0 pts: *(\S+) .* fmt:(\S+) cl:(\S+) sar:(\d+)/(\d+) s:(\d+)x(\d+) i:(\S)")
_COLORS = re.compile(r"color_range:(\S+) color_space:(\S+) color_primaries:(\S+) color_trc:(\S+)")
_DISPOSITION = re.compile(r" \(([a-z ]+)\)")
_DEFAULTS = {"default", "attached pic"}  # a cover is no default
_ROTATION = re.compile(r"(?:Display Matrix|displaymatrix): rotation of (-?[\d.]+) degrees")
_BROADCASTS = {"mpegts", "mpeg", "mpegvideo", "h264", "hevc", "vvc", "m4v", "dv"}  # formats, without an index
_WIDE_PRIMARIES = {"bt2020": "BT.2020", "smpte432": "Display P3", "smpte431": "DCI-P3", "smpte428": "XYZ"}
# Transfer functions that no display has, and the ones that ffmpeg takes from the gamma of a PNG.
_TRANSFERS = {
    "linear": "linear light", "bt470bg": "a gamma of 2.8", "smpte428": "a gamma of 2.6",
    "log100": "a logarithmic transfer function", "log316": "a logarithmic transfer function",
}  # fmt: skip
_OF_GAMMA = ("bt470m", "bt470bg", "linear")
_WITHOUT_ZSCALE = ("smpte428",)
_DOLBY_VISION = re.compile(r"DOVI configuration record: .*\bprofile: (\d+),.*\bcompatibility id: 0\b")
_ORIENTATIONS = (1, 8, 3, 6)  # of EXIF, by quarter turns counterclockwise
_TRIES = 3  # of a line of the log into which another thread has written

# A nominal rate above this multiple of the average is not a frame rate. Of a video with a variable rate ffmpeg reports
# the clock rate (up to 1000 per second), of an interlaced video the field rate.
_MAX_NOMINAL = Fraction(3, 2)

# Codecs of pictures. Each picture may have another pixel format, with transparency or without.
_PICTURES = {"png", "apng", "webp", "webp_anim", "tiff", "bmp", "gif"}

# The gamma of a PNG that is close to sRGB, 1/2.2, and how close.
_USUAL_GAMMA, _GAMMA_TOLERANCE = 1 / 2.2, 0.02
_GAMMA_UNIT = 100_000

# ffmpeg's filters that convert what is read as it is, see `VideoInfo.warnings`.
_TO_SDR = (
    "zscale=t=linear:npl=100,format=gbrpf32le,zscale=p=bt709,tonemap=hable:desat=0,"
    "zscale=t=bt709:m=bt709:r=tv,format=yuv420p"
)
_TO_BT709 = "zscale=pin={primaries}:tin={transfer}:p=709:t={target},format={pixel_format}"
_FROM_DOLBY_VISION = "libplacebo=colorspace=bt709:color_primaries=bt709:color_trc=bt709:format=yuv420p"
_TO_SRGB = "lutrgb=" + ":".join(f"{color}='pow(val/maxval,{{power:.4f}})*maxval'" for color in "rgb")
_TO_SQUARE = "scale='trunc(iw*sar/2)*2':ih,setsar=1"


@dataclass(frozen=True)
class VideoInfo:
    """Properties of a video; codecs and streams by ffmpeg's names."""

    size: Size  # of a frame, after the rotation in the file's metadata
    rotation: float  # that rotation, in degrees
    orientation: int  # that rotation, or the one of a picture, by the numbers of EXIF
    pixel_shape: Fraction  # width by height of a pixel
    is_still: bool  # an image or a sequence of images, which have no times
    fps: Fraction | None  # None for stills, and if unknown
    is_variable: bool  # the frames come at irregular times, and `fps` is only their average rate
    start: Fraction  # of the first frame, in seconds from the start of all streams
    seconds: Fraction | None  # from there to the end of the last frame; None for stills, and if unknown
    codec: str
    frames: FrameFormat  # of the first one
    gamma: float  # of a PNG: the power of light that its numbers are
    profile: str | None  # see `PictureInfo`
    dolby_vision: str  # its profile, if only Dolby's decoders know the colors
    default: int | None  # the number of another video stream, which the file marks as the default
    is_pictures: bool  # frames are coded as pictures that may have transparency if the first one has none
    is_interlaced: bool  # the stream or its first frame is marked so
    is_broadcast: bool  # its format has no index, and pictures may be missing anywhere
    apart: tuple[str, str] | None  # the streams with its color and its transparency, if they are two

    def warnings(self, name: str) -> list[str]:
        """Sentences that say what looks wrong if the frames are read as they are, and how to convert the video."""
        warnings, remark = [], "and its colors are read as they are"
        if self.dolby_vision:
            kind = f"is Dolby Vision of profile {self.dolby_vision}, {remark}; convert it first, with Vulkan"
            warnings.append(f"{kind}: ffmpeg -i VIDEO -vf {_FROM_DOLBY_VISION} NEW")
        elif self.frames.transfer in HDR_TRANSFERS:
            kind = f"is HDR ({HDR_TRANSFERS[self.frames.transfer]}), {remark}; tone-map it first"
            warnings.append(f"{kind}: ffmpeg -i VIDEO -vf {_TO_SDR} NEW")
        elif colors := self._unusual_colors():
            way = _TO_BT709.format(
                primaries="bt709" if is_unknown(self.frames.primaries) else self.frames.primaries,
                transfer="bt709" if is_unknown(self.frames.transfer) else self.frames.transfer,
                target="iec61966-2-1" if self.frames.is_rgb else "709:m=709:r=limited",
                pixel_format="rgb24" if self.frames.is_rgb else "yuv420p",
            )
            command = "" if self.frames.transfer in _WITHOUT_ZSCALE else f": ffmpeg -i VIDEO -vf {way} NEW"
            warnings.append(f"has {colors}, {remark}; convert it to BT.709 first{command}")
        elif self.profile:
            warnings.append(f"has the color profile {quote(self.profile)}, {remark}; convert it to sRGB first")
        elif self.profile is None and abs(self.gamma - _USUAL_GAMMA) > _GAMMA_TOLERANCE:
            convert = _TO_SRGB.format(power=_USUAL_GAMMA / self.gamma)
            gamma = f"has a gamma of {self.gamma:.4g}, {remark}; convert it to sRGB first"
            warnings.append(f'{gamma}: ffmpeg -i VIDEO -vf "{convert}" NEW')
        if self.pixel_shape != 1:
            oblong = f"has pixels of {self.pixel_shape.numerator}:{self.pixel_shape.denominator}"
            warnings.append(
                f"{oblong}, which are read as squares; scale it first: ffmpeg -i VIDEO -vf {_TO_SQUARE} NEW"
            )
        if self.is_interlaced:
            fields = "is marked as interlaced, and both fields are read as one frame; deinterlace it first"
            warnings.append(f"{fields}: ffmpeg -i VIDEO -vf yadif NEW")
        if self.default is not None:
            second = "has a second video stream, which it marks as the default, and the first is read; choose it first"
            warnings.append(f"{second}: ffmpeg -i VIDEO -map 0:v:{self.default} -c copy NEW")
        if self.apart is not None:
            join = f"-filter_complex '[{']['.join(self.apart)}]alphamerge' -c:v ffv1"
            warnings.append(f"its transparency is not read; join it first: ffmpeg -i VIDEO {join} NEW.mkv")
        return [f"{name}: {text}." for text in warnings]

    def _unusual_colors(self) -> str:
        """Return the property of the colors that frames here do not have; "" for none."""
        is_stated = self.gamma == _USUAL_GAMMA  # otherwise these are a number in a PNG
        transfer = None if self.frames.transfer in _OF_GAMMA and not is_stated else _TRANSFERS.get(self.frames.transfer)
        primaries = _WIDE_PRIMARIES.get(self.frames.primaries)
        return " and ".join([*([f"{primaries} primaries"] if primaries else []), *([transfer] if transfer else [])])


@dataclass(frozen=True)
class Stream:
    """A video stream, by the line in which ffmpeg describes it, and the lines of its side data."""

    line: str
    side_data: list[str]

    @property
    def codec(self) -> str:
        return re.split(r"\W", self.line, maxsplit=1)[0]

    @property
    def dispositions(self) -> set[str]:
        """Such as "default" and "attached pic"."""
        return set(_DISPOSITION.findall(self.line[self.line.rfind(",") :]))

    def rate(self, kind: str) -> float:
        """Return the average rate ("fps"), the least with all times ("tbr"), or the clock ("tbn"); 0 if unknown."""
        rate = re.search(rf", ([\d.]+)(k?) {kind}\b", self.line)
        return float(rate[1]) * (1000 if rate[2] else 1) if rate else 0


def probe(name: str, path: Path, arguments: list[str]) -> tuple[list[str], str, VideoInfo, int]:
    """ffmpeg's arguments for an input, the stream to read, its properties, and how many errors ffmpeg may log.

    `path` is the file, or the first of a sequence of images.
    """
    brand, stream = _read_brand(path), _FIRST_STREAM
    description, first, seconds = _describe(name, arguments, stream), None, None
    if brand == "avis":  # an AVIF sequence, which has its cover first, by a clock of one tick
        ticks = [other.rate("tbn") for other in find_streams(description)]
        stream = f"0:v:{next((index for index, tick in enumerate(ticks) if tick != 1), 0)}"
    options: list[str] = []
    codec, is_still = find_streams(description)[_index(description, stream)].codec, _is_still(description, brand)
    if not is_still:
        first, seconds = read_ends(name, arguments, stream)
        if first is not None and first.has_side_data and codec in _ALPHA_DECODERS:
            options = ["-c:V:0", _ALPHA_DECODERS[codec]]
    if options or stream != _FIRST_STREAM:
        arguments = [*options, *arguments]
        description = _describe(name, arguments, stream)
    picture = read_picture(path) if is_still or codec in _PICTURES else PictureInfo()
    info = parse_description(name, description, stream, brand, first, seconds, _read_gamma(path), picture)
    num_errors = 0
    if info.is_broadcast and _count_errors(description.log):
        # A broadcast may start with pictures that depend on others which it does not have. Its errors until ffmpeg has
        # decoded a frame are always the same with one thread.
        arguments = ["-threads", "1", *arguments]
        first_frame = ["-map", stream, "-frames:v", "1", "-f", "null"]
        log = _describe_once(name, ["-debug_ts", *arguments], stream, first_frame).log
        num_errors = _count_errors(takewhile(lambda line: "decoder -> " not in line, log))
    return arguments, stream, info, num_errors


def _describe(name: str, arguments: list[str], stream: str) -> Description:
    first_frame = ["-map", stream, "-vf", f"showinfo@{MARK}=checksum=0", "-frames:v", "1", "-f", "null"]
    for _ in range(_TRIES):
        description = _describe_once(name, arguments, stream, first_frame)
        was_filtered, *is_whole = (any(map(line.match, description.filtered)) for line in (_NOMINAL, _FRAME, _COLORS))
        if all(is_whole) or not was_filtered:
            break
    return description


def _describe_once(name: str, arguments: list[str], stream: str, output: list[str]) -> Description:
    description = describe(name, "video", arguments, stream, output, ReaderError)
    if description is None:
        raise ReaderError(f"{name}: contains no video stream.")
    return description


def _count_errors(log: Iterable[str]) -> int:
    return sum("[error]" in line for line in log)


def _read_brand(path: Path) -> str:
    """Return the kind of a QuickTime file, by its first bytes; "" for another file."""
    with suppress(OSError), path.open("rb") as file:
        start = file.read(_BRAND_END)
        if start[4:8] == b"ftyp":
            return start[8:].decode(errors="replace")
    return ""


def _read_gamma(path: Path) -> float:
    """Return the gamma that a PNG states, or else the usual one."""
    number = int.from_bytes(read_png_chunk(path, b"gAMA", 4), "big") if is_png(path) else 0
    return number / _GAMMA_UNIT if number else _USUAL_GAMMA


def _is_still(description: Description, brand: str) -> bool:
    return brand in _STILL_BRANDS or description.demuxer == "image2" or description.demuxer.endswith("_pipe")


def find_streams(description: Description) -> list[Stream]:
    """Return the video streams of an input."""
    lines = [(line.removeprefix("Video: "), side_data) for line, *side_data in description.streams if "Video: " in line]
    return [Stream(line, side_data) for line, side_data in lines]


def _index(description: Description, stream: str) -> int:
    """Return the index of a stream among the video streams, where only this one may be known."""
    streams = find_streams(description)
    if stream == _FIRST_STREAM:
        return next((index for index, entry in enumerate(streams) if "attached pic" not in entry.dispositions), 0)
    return min(int(stream.rpartition(":")[2]), len(streams) - 1)


def parse_description(
    name: str,
    description: Description,
    stream: str,
    brand: str,
    first: Packet | None,
    seconds: Fraction | None,
    gamma: float,
    picture: PictureInfo,
) -> VideoInfo:
    """Parse the properties of a stream. Raises a `ReaderError` for what cannot be read as a video."""
    streams, index = find_streams(description), _index(description, stream)
    frame = next(filter(None, map(_FRAME.match, description.filtered)), None)
    if frame is None:
        raise ReaderError(f"{name}: contains no frames.")
    if description.demuxer == "tty":
        raise ReaderError(f"{name}: is text, not a video.")
    chosen, is_still = streams[index], _is_still(description, brand)
    if "dependent" in chosen.dispositions:
        raise ReaderError(f"{name}: is a picture in several tiles, which are not joined; convert it to PNG first.")
    nominals = (line.groups() for line in map(_NOMINAL.match, description.filtered) if line)
    unit, *nominal = next(nominals, ("1", "0", "0"))
    average = chosen.rate("fps")
    if not average and first is not None and first.length and float(nominal[0]) == chosen.rate("tbn"):
        average = float(1 / first.length)  # of an animation of two pictures, ffmpeg reports the clock alone
    try:
        fps = None if is_still else _frame_rate(average, *map(int, nominal))
    except ValueError as error:
        raise ReaderError(f"{name}: {error}") from error
    colors = next((line.groups() for line in map(_COLORS.match, description.filtered) if line), ("unknown",) * 4)
    levels, matrix, primaries, transfer = colors
    time, pixel_format, site, shape, height, *size, field = frame.groups()
    turned = next((float(line[1]) for line in map(_ROTATION.match, chosen.side_data) if line), 0.0)
    dolby_vision = next((line[1] for line in map(_DOLBY_VISION.match, chosen.side_data) if line), "")
    kinds = [entry.dispositions for entry in streams]
    defaults = [
        number for number, kind in enumerate(kinds) if stream == _FIRST_STREAM and {"default"} == kind & _DEFAULTS
    ]
    # A named transfer function counts more than a gamma. These names say no more than the number.
    is_named = transfer not in _OF_GAMMA and not is_unknown(transfer)
    # Color and transparency follow each other.
    apart = streams[index + 1 : index + 2] if brand in ("avif", "avis") else []
    return VideoInfo(
        size=(int(size[0]), int(size[1])),
        rotation=turned,
        orientation=_ORIENTATIONS[round(turned / 90) % 4] if turned else picture.orientation,
        pixel_shape=Fraction(int(shape) or 1, int(height)),
        is_still=is_still,
        fps=fps,
        is_variable=fps is not None and chosen.rate("tbr") > _MAX_NOMINAL * fps,
        start=Fraction(0) if is_still or time == "NOPTS" else int(time) * Fraction(unit),
        seconds=seconds,
        codec=chosen.codec,
        frames=FrameFormat(pixel_format, levels, matrix, primaries, transfer, site),
        gamma=_USUAL_GAMMA if is_named else gamma,
        profile=picture.profile,
        dolby_vision=dolby_vision,
        default=defaults[0] if defaults and index not in defaults else None,
        is_pictures=chosen.codec in _PICTURES,
        apart=(f"0:v:{index}", f"0:v:{index + 1}") if any(map(_is_alpha, apart)) else None,
        is_interlaced=field in "TB" or _FIELDS.search(chosen.line) is not None,
        is_broadcast=description.demuxer in _BROADCASTS,
    )


def _is_alpha(stream: Stream) -> bool:
    return re.search(r", gray\w*[(,]", stream.line) is not None


def _frame_rate(average_rate: float, numerator: int, denominator: int) -> Fraction | None:
    """Return the nominal rate, a fraction, or the average if that is much lower. `None` means that both are unknown."""
    # Of a stream whose length is unknown, such as DV, ffmpeg reports its clock.
    average = parse_fps(average_rate) if 0 < average_rate <= MAX_FPS else None
    if not numerator or not denominator:
        return average
    # As a decimal, which `parse_fps` rounds: containers with millisecond clocks have 19001/317 for 60000/1001.
    rate = numerator / denominator
    is_plausible = average is None or rate <= _MAX_NOMINAL * average
    return parse_fps(rate) if is_plausible else average


def describe_pixel_format(name: str) -> tuple[int, bool]:
    """Return the largest number of bits per component of a pixel format, and whether its pixels can be transparent."""
    rows = listing("-pix_fmts", error=ReaderError)  # flags, name, components, bits per pixel, bits of each component
    flags, _, components, _, depths = next(row for row in rows if row[1:2] == [name])
    # 2 and 4 components are gray and color with alpha; the entries of a palette have alpha.
    return max(map(int, depths.split("-"))), components in ("2", "4") or "P" in flags
