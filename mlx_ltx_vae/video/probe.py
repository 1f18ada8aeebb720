"""Properties of videos and pixel formats, by what ffmpeg says, since imageio-ffmpeg installs no ffprobe.

Nothing is read from lines that have text of the file: see `describe`.
"""

# PyAV has them as fields, but tells no damage: that is only in the log, which it collects for the whole process, and
# then hangs when a damaged video is closed while it is decoded by threads (18.1).

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from ..errors import ReaderError, quote
from ..frame_format import HDR_TRANSFERS, FrameFormat
from ..shapes import Size, format_size, is_possible_size
from ..units import MAX_FPS, parse_fps
from .ffmpeg import MARK, Description, Packet, describe, listing, read_length
from .pictures import read_picture

#: ffmpeg's name of the first video stream that is not a picture of a cover, which is read.
FIRST_STREAM = "0:V:0"
_BRAND_END = 12  # bytes of a QuickTime file
_SEQUENCE_BRAND = "avis"
_STILL_BRANDS = ("avif", "heic", "heix", "mif1")
_FIELDS = re.compile(r"\b(top|bottom) (coded )?first\b")  # after the pixel format of an interlaced stream
_NOMINAL = re.compile(r"config in time_base: (\S+), frame_rate: (\d+)/(\d+)")
_FRAME = re.compile(r"n: +0 pts: *(\S+) .* fmt:(\S+) cl:(\S+) sar:(\d+)/(\d+) s:(\d+)x(\d+) i:(\S)")
_COLORS = re.compile(r"color_range:(\S+) color_space:(\S+) color_primaries:(\S+) color_trc:(\S+)")
_CONTENT_PEAK = re.compile(r"  side data - Content light level metadata: MaxCLL=(\d+),")
_DISPLAY_PEAK = re.compile(r"  side data - Mastering display metadata: .* max_luminance=([\d.]+)$")
_DISPOSITION = re.compile(r" \(([a-z ]+)\)")
_ROTATION = re.compile(r"(?:Display Matrix|displaymatrix): rotation of (-?[\d.]+) degrees")
_WIDE_PRIMARIES = {"bt2020": "BT.2020", "smpte432": "Display P3", "smpte431": "DCI-P3", "smpte428": "XYZ"}
# Transfer functions that no display has.
_TRANSFERS = {
    "linear": "linear light", "bt470bg": "a gamma of 2.8", "smpte428": "a gamma of 2.6",
    "log100": "a logarithmic transfer function", "log316": "a logarithmic transfer function",
}  # fmt: skip
_WITHOUT_ZSCALE = ("smpte428",)
_ORIENTATIONS = (1, 8, 3, 6)  # of EXIF, by quarter turns counterclockwise
_TRIES = 3  # of a line of the log into which another thread has written

# A nominal rate above this multiple of the average is not a frame rate. Of a video with a variable rate ffmpeg reports
# the clock rate (up to 1000 per second), of an interlaced video the field rate.
_MAX_NOMINAL = Fraction(3, 2)

_TICK = Fraction(1, 100)  # of the clock of a GIF

# Codecs of pictures. Each picture may have another pixel format, with transparency or without.
_PICTURES = {"png", "apng", "webp", "webp_anim", "tiff", "bmp", "gif"}
_ANIMATIONS = {"apng", "gif", "webp_anim"}  # formats in which each picture has a time of its own


@dataclass(frozen=True)
class VideoInfo:
    """Properties of a video; codecs and streams by ffmpeg's names."""

    size: Size  # of a frame, after the rotation in the file's metadata
    rotation: float  # that rotation, in degrees
    orientation: int  # that rotation, or the one of a picture, by the numbers of EXIF
    pixel_shape: Fraction  # width by height of a pixel
    is_still: bool  # an image or a sequence of images, which have no times
    fps: Fraction | None  # None for stills, and if unknown
    is_variable: bool  # the frames come at irregular times; `fps` is their average rate, of an animation the usual one
    start: Fraction  # of the first frame, in seconds from the start of all streams
    seconds: Fraction | None  # from there to the end of the last frame; None for stills, and if unknown
    codec: str
    frames: FrameFormat  # of the first one
    peak: float | None  # the brightest light in cd/m2 that HDR states, or that its display had; None if it does not
    profile: str | None  # see `read_picture`
    is_pictures: bool  # frames are coded as pictures that may have transparency if the first one has none
    is_interlaced: bool  # the stream or its first frame is marked so

    @property
    def shown_size(self) -> Size:
        """Size of a frame with square pixels."""
        width, height = max(1, round(self.size[0] * self.pixel_shape)), self.size[1]
        return (width, height) if is_possible_size((width, height)) else self.size

    @property
    def colors(self) -> str:
        """Colors that are not BT.709, such as "HLG" or "Display P3"; "" for BT.709, and for what is close to it."""
        if hdr := HDR_TRANSFERS.get(self.frames.transfer):
            return hdr
        names = (_WIDE_PRIMARIES.get(self.frames.primaries), _TRANSFERS.get(self.frames.transfer))
        return " with ".join(filter(None, names))

    def changes(self) -> list[str]:
        """Return what is done to frames so that they are as a player shows them."""
        changes = [f"converted from {self.colors} to BT.709"] if self.has_known_colors and self.colors else []
        if self.shown_size != self.size:
            changes.append(f"scaled from {format_size(*self.size)} to square pixels ({format_size(*self.shown_size)})")
        return [*changes, *(["deinterlaced"] if self.is_interlaced else [])]

    @property
    def has_known_colors(self) -> bool:
        """Flag: ffmpeg can convert the colors."""
        return self.frames.transfer not in _WITHOUT_ZSCALE

    def warnings(self, name: str) -> list[str]:
        """Return sentences that say what looks wrong, since it cannot be converted."""
        warnings = []
        if self.colors and not self.has_known_colors:
            warnings.append(f"has {self.colors}, and its colors are read as they are; convert it to BT.709 first")
        elif self.profile:
            profile = f"has the color profile {quote(self.profile)}, and its colors are read as they are"
            warnings.append(f"{profile}; convert it to sRGB first")
        return [f"{name}: {text}." for text in warnings]


def probe(name: str, path: Path, arguments: list[str]) -> VideoInfo:
    """Return the properties of the video that ffmpeg's arguments name. `path` is the file, or the first of images."""
    brand, description = _read_brand(path), _describe(name, arguments)
    is_still = brand in _STILL_BRANDS or description.demuxer == "image2" or description.demuxer.endswith("_pipe")
    seconds, packets = (None, []) if is_still else read_length(name, arguments, FIRST_STREAM)
    pictures = packets if description.demuxer in _ANIMATIONS else []
    if len(pictures) == 1:  # its time, which GIF always has, is of no meaning
        is_still, seconds = True, None
    if brand == _SEQUENCE_BRAND:
        raise ReaderError(f"{name}: is an AVIF sequence, which is not read; convert it to a video first.")
    is_picture = is_still or _find_codec(_find_stream(description)[0]) in _PICTURES
    picture = read_picture(path) if is_picture else (1, None)
    info = parse_description(name, description, picture, is_still=is_still, seconds=seconds)
    return _with_usual_rate(info, pictures) if info.is_variable or info.fps is None else info


def _with_usual_rate(info: VideoInfo, pictures: list[Packet]) -> VideoInfo:
    """Return the properties with the rate of the most common time of pictures, the shortest if several are.

    The average would leave out most pictures before a long last one. Times that differ from it by a tick of a GIF's
    clock are those of the same rate: 15 a second are 0.07, 0.06 and 0.07 s.
    """
    counts = Counter(picture.length for picture in pictures)
    if len(pictures) < 2 or (usual := min(counts, key=lambda length: (-counts[length], length))) <= 0:
        return info
    near = [length for length in counts.elements() if abs(length - usual) <= min(_TICK, usual / 3)]
    fps = min(MAX_FPS, float(len(near) / sum(near, Fraction(0))))
    return replace(info, fps=parse_fps(f"{fps:.12f}"), is_variable=len(counts) > 1)


def _describe(name: str, arguments: list[str]) -> Description:
    first_frame = ["-map", FIRST_STREAM, "-vf", f"showinfo@{MARK}=checksum=0", "-frames:v", "1", "-f", "null"]
    for _ in range(_TRIES):
        description = _describe_once(name, arguments, first_frame)
        was_filtered, *is_whole = (any(map(line.match, description.filtered)) for line in (_NOMINAL, _FRAME, _COLORS))
        if all(is_whole) or not was_filtered:
            break
    return description


def _describe_once(name: str, arguments: list[str], output: list[str]) -> Description:
    description = describe(name, "video", arguments, FIRST_STREAM, output, ReaderError)
    if description is None:
        raise ReaderError(f"{name}: contains no video stream.")
    return description


def _read_brand(path: Path) -> str:
    """Return the kind of a QuickTime file, by its first bytes; "" for another file."""
    with suppress(OSError), path.open("rb") as file:
        start = file.read(_BRAND_END)
        if start[4:8] == b"ftyp":
            return start[8:].decode(errors="replace")
    return ""


def _find_stream(description: Description) -> list[str]:
    """Return the line of the stream that is read, and the lines of its side data."""
    streams = [
        [line.removeprefix("Video: "), *side_data] for line, *side_data in description.streams if "Video: " in line
    ]
    return next((stream for stream in streams if "attached pic" not in _find_dispositions(stream[0])), streams[0])


def _find_codec(stream: str) -> str:
    return re.split(r"\W", stream, maxsplit=1)[0]


def _find_dispositions(stream: str) -> set[str]:
    """Return such as "default" and "attached pic"."""
    return set(_DISPOSITION.findall(stream[stream.rfind(",") :]))


def _find_rate(stream: str, kind: str) -> float:
    """Return the average rate ("fps"), or the least with all times ("tbr"); 0 if it is unknown."""
    rate = re.search(rf", ([\d.]+)(k?) {kind}\b", stream)
    return float(rate[1]) * (1000 if rate[2] else 1) if rate else 0


def parse_description(
    name: str, description: Description, picture: tuple[int, str | None], *, is_still: bool, seconds: Fraction | None
) -> VideoInfo:
    """Parse the properties of a stream. Raises a `ReaderError` for what cannot be read as a video.

    `picture` is what `read_picture` returns.
    """
    frame = next(filter(None, map(_FRAME.match, description.filtered)), None)
    if frame is None:
        raise ReaderError(f"{name}: contains no frames.")
    if description.demuxer == "tty":
        raise ReaderError(f"{name}: is text, not a video.")
    stream, *side_data = _find_stream(description)
    if "dependent" in _find_dispositions(stream):
        raise ReaderError(f"{name}: is a picture in several tiles, which are not joined; convert it to PNG first.")
    nominals = (line.groups() for line in map(_NOMINAL.match, description.filtered) if line)
    unit, *nominal = next(nominals, ("1", "0", "0"))
    average = _find_rate(stream, "fps")
    try:
        fps = None if is_still else _frame_rate(average, *map(int, nominal))
    except ValueError as error:
        raise ReaderError(f"{name}: {error}") from error
    colors = next((line.groups() for line in map(_COLORS.match, description.filtered) if line), ("unknown",) * 4)
    levels, matrix, primaries, transfer = colors
    time, pixel_format, site, shape, height, *size, field = frame.groups()
    turned = next((float(line[1]) for line in map(_ROTATION.match, side_data) if line), 0.0)
    codec, (orientation, profile) = _find_codec(stream), picture
    return VideoInfo(
        size=(int(size[0]), int(size[1])),
        rotation=turned,
        orientation=_ORIENTATIONS[round(turned / 90) % 4] if turned else orientation,
        pixel_shape=Fraction(int(shape) or 1, int(height)),
        is_still=is_still,
        fps=fps,
        is_variable=fps is not None and _find_rate(stream, "tbr") > _MAX_NOMINAL * fps,
        start=Fraction(0) if is_still or time == "NOPTS" else int(time) * Fraction(unit),
        seconds=seconds,
        codec=codec,
        frames=FrameFormat(pixel_format, levels, matrix, primaries, transfer, site),
        peak=_find_peak(description.filtered),
        profile=profile,
        is_pictures=codec in _PICTURES,
        is_interlaced=field in "TB" or _FIELDS.search(stream) is not None,
    )


def _find_peak(lines: list[str]) -> float | None:
    """Return the brightest light of the content, or else of the display on which it was mastered; 0 is unknown."""
    matches = (pattern.match(line) for pattern in (_CONTENT_PEAK, _DISPLAY_PEAK) for line in lines)
    return next((peak for match in matches if match and (peak := float(match[1]))), None)


def _frame_rate(average_rate: float, numerator: int, denominator: int) -> Fraction | None:
    """Return the nominal rate, a fraction, or the average if that is much lower. `None` means that both are unknown."""
    # Of a stream whose length is unknown, such as DV, ffmpeg reports its clock.
    average = parse_fps(average_rate) if 0 < average_rate <= MAX_FPS else None
    if not numerator or not denominator:
        return average
    # As a decimal, which `parse_fps` rounds: containers with millisecond clocks have 19001/317 for 60000/1001.
    rate = numerator / denominator
    if average is None and rate >= MAX_FPS:  # the clock of an animation of two pictures
        return None
    is_plausible = average is None or rate <= _MAX_NOMINAL * average
    return parse_fps(rate) if is_plausible else average


def describe_pixel_format(name: str) -> tuple[int, bool]:
    """Return the largest number of bits per component of a pixel format, and whether its pixels can be transparent."""
    rows = listing("-pix_fmts", error=ReaderError)  # flags, name, components, bits per pixel, bits of each component
    flags, _, components, _, depths = next(row for row in rows if row[1:2] == [name])
    # 2 and 4 components are gray and color with alpha; the entries of a palette have alpha.
    return max(map(int, depths.split("-"))), components in ("2", "4") or "P" in flags
