"""Properties of videos and pixel formats, parsed from ffmpeg's log, since imageio-ffmpeg installs no ffprobe."""

# PyAV has them as fields, but tells no damage: that is only in the log, which it collects for the whole process, and
# then hangs when a damaged video is closed while it is decoded by threads (18.1).

import re
from dataclasses import dataclass
from fractions import Fraction

from ..errors import ReaderError
from ..shapes import Size
from ..units import MAX_FPS, parse_fps
from .ffmpeg import listing, read_log
from .frame_format import HDR_TRANSFERS, FrameFormat, is_unknown

_FIRST_STREAM = "0:V:0"  # ffmpeg's name of the first video stream that is not a picture of a cover
_INPUT = re.compile(r"Input #0, (\S+), from ")
_DURATION = re.compile(r"Duration: (\d+):(\d\d):(\d\d\.\d+), start: (-?\d+\.\d+)")
_BRAND = re.compile(r" major_brand +: (\w+)")
_TRACK = re.compile(r"Stream #(0:\d+)\S*\(\w+\): Video: ")  # has a language, unlike a single picture
_TILES = re.compile(r"Stream group #\S+ Tile Grid:")
_CHOSEN = re.compile(r"Stream #(0:\d+) -> #0:0")
# Decoders of libvpx, which unlike ffmpeg's own also read transparency.
_ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
_FIELDS = re.compile(r"\b(top|bottom) (coded )?first\b")  # after the pixel format of an interlaced stream
_NOMINAL = re.compile(r"config in time_base: \S+ frame_rate: (\d+)/(\d+)")
_FRAME = re.compile(r"n: +0 .* fmt:(\S+) cl:(\S+) sar:(\d+)/(\d+) s:(\d+)x(\d+) i:(\S)")
_COLORS = re.compile(r"color_range:(\S+) color_space:(\S+) color_primaries:(\S+) color_trc:(\S+)")
_BROADCASTS = {"mpegts", "mpeg", "mpegvideo", "h264", "hevc", "vvc", "m4v", "dv"}  # formats, without an index
_COUNTED_FROM_ZERO = {"matroska,webm", "nut"}  # formats whose duration includes the time before the first frame
_WIDE_PRIMARIES = {"bt2020": "BT.2020", "smpte432": "Display P3", "smpte431": "DCI-P3", "smpte428": "XYZ"}
_GAMMA = re.compile(r"\] \[info\] gamma=(\d+)/(\d+)$", re.MULTILINE)
_ROTATION = re.compile(r"(?:Display Matrix|displaymatrix): rotation of (-?[\d.]+) degrees")

# A nominal rate above this multiple of the average is not a frame rate. Of a video with a variable rate ffmpeg reports
# the clock rate (up to 1000 per second), of an interlaced video the field rate.
_MAX_NOMINAL = Fraction(3, 2)

# Codecs of pictures, of which each may have another pixel format, with transparency or without.
_PICTURES = {"png", "apng", "webp", "webp_anim", "tiff", "bmp", "gif"}

# The gamma of a PNG that is close to sRGB, 1/2.2, and how close.
_USUAL_GAMMA, _GAMMA_TOLERANCE = 1 / 2.2, 0.02

# ffmpeg's filters that convert what is read as it is, see `VideoInfo.warnings`.
_TO_SDR = (
    "zscale=t=linear:npl=100,format=gbrpf32le,zscale=p=bt709,tonemap=hable:desat=0,"
    "zscale=t=bt709:m=bt709:r=tv,format=yuv420p"
)
_TO_BT709 = "zscale=pin={primaries}:tin={transfer}:p=709:t={target},format={pixel_format}"
_TO_SRGB = "lutrgb=" + ":".join(f"{color}='pow(val/maxval,{{power:.4f}})*maxval'" for color in "rgb")
_TO_SQUARE = "scale='trunc(iw*sar/2)*2':ih,setsar=1"


@dataclass(frozen=True)
class VideoInfo:
    """Properties of a video; codecs and streams by ffmpeg's names."""

    size: Size  # of a frame, after the rotation in the file's metadata
    rotation: float  # that rotation, in degrees
    pixel_shape: Fraction  # width by height of a pixel
    is_still: bool  # an image or a sequence of images, which have no times
    fps: Fraction | None  # None for stills, and if unknown
    is_variable: bool  # the frames come at irregular times, and `fps` is only their average rate
    seconds: Fraction | None  # the duration of the longest stream; None if unknown
    codec: str
    frames: FrameFormat  # of the first one
    gamma: float  # of a PNG: the power of light that its numbers are
    is_pictures: bool  # frames are coded as pictures that may have transparency if the first one has none
    is_interlaced: bool  # the stream or its first frame is marked so
    apart: tuple[str, str] | None  # the streams with its color and its transparency, if they are two

    def warnings(self, name: str) -> list[str]:
        """What looks wrong if the frames are read as they are, and how to convert the video: a sentence each."""
        found = []
        if self.frames.transfer in HDR_TRANSFERS:
            hdr = f"{name}: is HDR ({HDR_TRANSFERS[self.frames.transfer]}), and its colors are read as they are"
            found.append(f"{hdr}; tone-map it first: ffmpeg -i VIDEO -vf {_TO_SDR} NEW.")
        elif colors := self._unusual_colors():
            convert = _TO_BT709.format(
                primaries="bt709" if is_unknown(self.frames.primaries) else self.frames.primaries,
                transfer="bt709" if is_unknown(self.frames.transfer) else self.frames.transfer,
                target="iec61966-2-1" if self.frames.is_rgb else "709:m=709:r=limited",
                pixel_format="rgb24" if self.frames.is_rgb else "yuv420p",
            )
            found.append(
                f"{name}: has {colors}, and its colors are read as they are; convert it to BT.709 first: "
                f"ffmpeg -i VIDEO -vf {convert} NEW."
            )
        elif abs(self.gamma - _USUAL_GAMMA) > _GAMMA_TOLERANCE:
            gamma = f"{name}: has a gamma of {self.gamma:.4g}, and its colors are read as they are"
            convert = _TO_SRGB.format(power=_USUAL_GAMMA / self.gamma)
            found.append(f'{gamma}; convert it to sRGB first: ffmpeg -i VIDEO -vf "{convert}" NEW.')
        if self.pixel_shape != 1:
            shape = f"{self.pixel_shape.numerator}:{self.pixel_shape.denominator}"
            oblong = f"{name}: has pixels of {shape}, which are read as squares"
            found.append(f"{oblong}; scale it first: ffmpeg -i VIDEO -vf {_TO_SQUARE} NEW.")
        if self.is_interlaced:
            fields = f"{name}: is marked as interlaced, and both fields are read as one frame"
            found.append(f"{fields}; deinterlace it first: ffmpeg -i VIDEO -vf yadif NEW.")
        if self.apart is not None:
            join = f"-filter_complex '[{']['.join(self.apart)}]alphamerge' -c:v ffv1"
            found.append(f"{name}: its transparency is not read; join it first: ffmpeg -i VIDEO {join} NEW.mkv.")
        return found

    def _unusual_colors(self) -> str:
        """What the colors have that frames here do not have; "" for nothing."""
        primaries = _WIDE_PRIMARIES.get(self.frames.primaries)
        is_linear = self.frames.transfer == "linear" and self.gamma == _USUAL_GAMMA
        return " and ".join([*([f"{primaries} primaries"] if primaries else []), *["linear light"] * is_linear])


def probe(name: str, arguments: list[str]) -> tuple[list[str], str, VideoInfo, int]:
    """ffmpeg's arguments for an input, the stream to read, its properties, and how many errors ffmpeg may log."""
    log = _describe(name, arguments, _FIRST_STREAM)
    options, stream = _choose_stream(log)
    if options or stream != _FIRST_STREAM:
        arguments = [*options, *arguments]
        log = _describe(name, arguments, stream)
    info, num_errors = parse_log(log, name), 0
    demuxer = _INPUT.search(log)
    if "[error]" in log and demuxer is not None and demuxer[1] in _BROADCASTS:
        # A broadcast may start with pictures that depend on others which it does not have. Its errors until ffmpeg has
        # decoded a frame are always the same with one thread.
        arguments = ["-threads", "1", *arguments]
        first_frame = ["-debug_ts", *arguments, "-map", stream, "-frames:v", "1"]
        before, _, _ = read_log(name, "video", first_frame, ReaderError).partition("decoder -> ")
        num_errors = sum("[error]" in line for line in before.splitlines())
    return arguments, stream, info, num_errors


def _describe(name: str, input_arguments: list[str], stream: str) -> str:
    first_frame = ["-map", stream, "-vf", "showinfo=checksum=0,metadata=print:key=gamma", "-frames:v", "1"]
    return read_log(name, "video", [*input_arguments, *first_frame], ReaderError)


def parse_log(log: str, name: str) -> VideoInfo:
    """The properties in a log of `_describe`. Raises a `ReaderError` for what cannot be read as a video."""
    demuxer = _INPUT.search(log)
    frame = _FRAME.search(log)
    if demuxer is None or frame is None:
        raise ReaderError(f"{name}: contains no frames.")
    if demuxer[1] == "tty":
        raise ReaderError(f"{name}: is text, not a video.")
    if _TILES.search(log):
        raise ReaderError(f"{name}: is a picture in several tiles, which are not joined; convert it to PNG first.")
    is_picture = _brand(log) in ("avif", "heic", "heix", "mif1")
    is_still = is_picture or demuxer[1] == "image2" or demuxer[1].endswith("_pipe")
    try:
        fps = None if is_still else _frame_rate(log)
    except ValueError as error:
        raise ReaderError(f"{name}: {error}") from error
    codec = re.split(r"\W", _chosen_stream(log), maxsplit=1)[0]
    colors = _COLORS.search(log, frame.end())
    levels, matrix, primaries, transfer = colors.groups() if colors else ["unknown"] * 4
    pixel_format, site, shape, height, *size, field = frame.groups()
    rotation = _ROTATION.search(_chosen_stream(log, rest=True))
    return VideoInfo(
        size=(int(size[0]), int(size[1])),
        rotation=float(rotation[1]) if rotation else 0,
        pixel_shape=Fraction(int(shape) or 1, int(height)),
        is_still=is_still,
        fps=fps,
        is_variable=fps is not None and _rate("tbr", log) > _MAX_NOMINAL * fps,
        seconds=_seconds(log, demuxer[1]),
        codec=codec,
        frames=FrameFormat(pixel_format, levels, matrix, primaries, transfer, site),
        gamma=_gamma(log, transfer),
        is_pictures=codec in _PICTURES,
        apart=_apart(log),
        is_interlaced=field in "TB" or _FIELDS.search(_chosen_stream(log)) is not None,
    )


def _gamma(log: str, transfer: str) -> float:
    """The gamma that a PNG states in numbers only. A named transfer function counts more."""
    stated = _GAMMA.search(log)
    is_named = transfer not in ("bt470m", "bt470bg", "linear") and not is_unknown(transfer)
    return _USUAL_GAMMA if stated is None or is_named else int(stated[1]) / max(1, int(stated[2]))


def _choose_stream(log: str) -> tuple[list[str], str]:
    """Options for the input, which choose decoders that read the transparency of VP8 and VP9, and the stream."""
    if _brand(log) == "avis" and (track := _TRACK.search(log)):  # an AVIF sequence, which has its cover first
        return [], track[1]
    chosen = _CHOSEN.search(log)
    number = chosen[1] if chosen else ""
    codec = re.search(rf"Stream #{number}\b.*: Video: (vp[89])\b.*\n(?:(?!.* Stream #).*\n)*?.* alpha_mode +: 1\b", log)
    options = [f"-c:{number.removeprefix('0:')}", _ALPHA_DECODERS[codec[1]]] if codec else []
    return options, _FIRST_STREAM


def describe_pixel_format(name: str) -> tuple[int, bool]:
    """The largest number of bits per component of a pixel format, and whether its pixels can be transparent."""
    rows = listing("-pix_fmts", error=ReaderError)  # flags, name, components, bits per pixel, bits of each component
    flags, _, components, _, depths = next(row for row in rows if row[1:2] == [name])
    # 2 and 4 components are gray and color with alpha; the entries of a palette have alpha.
    return max(map(int, depths.split("-"))), components in ("2", "4") or "P" in flags


def _apart(log: str) -> tuple[str, str] | None:
    """The streams with the colors and the transparency of an AVIF, which follow each other."""
    chosen = _CHOSEN.search(log)
    if chosen is None or _brand(log) not in ("avif", "avis") or re.search(r" title +: Alpha\b", log) is None:
        return None
    return chosen[1], f"0:{int(chosen[1].removeprefix('0:')) + 1}"


def _brand(log: str) -> str:
    brand = _BRAND.search(log)
    return brand[1] if brand else ""


def _frame_rate(log: str) -> Fraction | None:
    average_rate = _rate("fps", log)
    # Of a stream whose length is unknown, such as DV, ffmpeg reports its clock.
    average = parse_fps(average_rate) if 0 < average_rate <= MAX_FPS else None
    nominal = _NOMINAL.search(log)
    if nominal is None or "0" in nominal.groups():
        return average
    # As a decimal, which `parse_fps` rounds: containers with millisecond clocks have 19001/317 for 60000/1001.
    rate = int(nominal[1]) / int(nominal[2])
    is_plausible = average is None or rate <= _MAX_NOMINAL * average
    return parse_fps(rate) if is_plausible else average


def _seconds(log: str, demuxer: str) -> Fraction | None:
    """The duration of the longest stream from its first frame on, if ffmpeg knows it."""
    duration = _DURATION.search(log)
    if duration is None:
        return None
    hours, minutes, seconds, start = duration.groups()
    end = 3600 * int(hours) + 60 * int(minutes) + Fraction(seconds)
    return end - Fraction(start) if demuxer in _COUNTED_FROM_ZERO and Fraction(start) < end else end


def _rate(kind: str, log: str) -> float:
    """The average rate ("fps") of the chosen stream, or the least with all its first times ("tbr"); 0 if unknown."""
    rate = re.search(rf", ([\d.]+)(k?) {kind}\b", _chosen_stream(log))
    return float(rate[1]) * (1000 if rate[2] else 1) if rate else 0


def _chosen_stream(log: str, *, rest: bool = False) -> str:
    """What ffmpeg says of the stream in one line, or in the lines behind it."""
    chosen = _CHOSEN.search(log)
    stream = chosen and re.search(rf"Stream #{chosen[1]}\b.*: Video: (.*)\n?((?:(?!.* Stream ).*\n)*)", log)
    return stream[2 if rest else 1] if stream else ""
