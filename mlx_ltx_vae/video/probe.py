"""Properties of videos and pixel formats, parsed from ffmpeg's output, since imageio-ffmpeg installs no ffprobe."""

import re
from dataclasses import dataclass
from fractions import Fraction

from ..errors import ReaderError
from ..frame_rate import parse_fps
from .ffmpeg import listing

_INPUT = re.compile(r"Input #0, (\S+), from ")
_DURATION = re.compile(r"Duration: (\d+):(\d\d):(\d\d\.\d+)")
_CHOSEN = re.compile(r"Stream #(0:\d+) -> #0:0")
_AVERAGE = re.compile(r", ([\d.]+)(k?) fps\b")
_NOMINAL = re.compile(r"config in time_base: \S+ frame_rate: (\d+)/(\d+)")
_FRAME = re.compile(r"n: +0 .* fmt:(\S+) .*\bs:(\d+)x(\d+)")
_MATRIX = re.compile(r"color_space:(\S+)")

# A nominal rate above this multiple of the average is not a frame rate. Of a video with a variable rate ffmpeg reports
# the clock rate (up to 1000 per second), of an interlaced video the field rate.
_MAX_NOMINAL = Fraction(3, 2)


@dataclass(frozen=True)
class VideoInfo:
    """Properties of a video.

    Attributes:
        size: `(width, height)` of a frame in pixels, after the rotation in the file's metadata.
        fps: None for stills.
        seconds: the duration of the file (its longest stream); None if unknown.
        pixel_format: ffmpeg's name of it.
        has_matrix: whether the color matrix is tagged, or is not needed (RGB).
    """

    size: tuple[int, int]
    fps: Fraction | None
    seconds: Fraction | None
    pixel_format: str
    has_matrix: bool


def parse_log(log: str, name: str) -> VideoInfo:
    """The properties in a log that `describe` returned.

    Raises:
        ReaderError: for a file without frames, for text, and for an invalid frame rate.
    """
    demuxer = _INPUT.search(log)
    frame = _FRAME.search(log)
    if demuxer is None or frame is None:
        raise ReaderError(f"{name}: contains no frames.")
    if demuxer[1] == "tty":
        raise ReaderError(f"{name}: is text, not a video.")
    is_still = demuxer[1] == "image2" or demuxer[1].endswith("_pipe")
    try:
        fps = None if is_still else _frame_rate(log)
    except ValueError as error:
        raise ReaderError(f"{name}: {error}") from error
    matrix = _MATRIX.search(log, frame.end())
    return VideoInfo(
        size=(int(frame[2]), int(frame[3])),
        fps=fps,
        seconds=_seconds(log),
        pixel_format=frame[1],
        has_matrix=matrix is not None and matrix[1] not in ("unknown", "reserved"),
    )


def describe_pixel_format(name: str) -> tuple[int, bool]:
    """The largest number of bits per component of a pixel format, and whether its pixels can be transparent."""
    rows = listing("-pix_fmts", ReaderError)  # flags, name, components, bits per pixel, bits of each component
    flags, _, components, _, depths = next(row for row in rows if row[1:2] == [name])
    # 2 and 4 components are gray and color with alpha; the entries of a palette have alpha.
    return max(map(int, depths.split("-"))), components in ("2", "4") or "P" in flags


def _seconds(log: str) -> Fraction | None:
    duration = _DURATION.search(log)
    return duration and 3600 * int(duration[1]) + 60 * int(duration[2]) + Fraction(duration[3])


def _frame_rate(log: str) -> Fraction | None:
    """The nominal rate, exactly, unless only the average is plausible."""
    average = _average_rate(log)
    nominal = _NOMINAL.search(log)
    if nominal is None or "0" in nominal.groups():
        return average
    # As a decimal, which `parse_fps` rounds: containers with millisecond clocks have 19001/317 for 60000/1001.
    rate = int(nominal[1]) / int(nominal[2])
    return average if average is not None and rate > _MAX_NOMINAL * average else parse_fps(rate)


def _average_rate(log: str) -> Fraction | None:
    """The average rate of the chosen stream, which ffmpeg logs with two decimals."""
    chosen = _CHOSEN.search(log)
    stream = chosen and re.search(rf"Stream #{chosen[1]}\b.*: Video: (.*)", log)
    average = stream and _AVERAGE.search(stream[1])
    return average and parse_fps(float(average[1]) * (1000 if average[2] else 1))
