"""What ffmpeg's log says of a video: imageio-ffmpeg brings no ffprobe along."""

import re
from dataclasses import dataclass
from fractions import Fraction

from ..errors import ReaderError
from ..frame_rate import parse_fps

_INPUT = re.compile(r"Input #0, (\S+), from ")
_DURATION = re.compile(r"Duration: (\d+):(\d\d):(\d\d\.\d+)")
_CHOSEN = re.compile(r"Stream #(0:\d+) -> #0:0")
_AVERAGE = re.compile(r", ([\d.]+)(k?) fps\b")
_NOMINAL = re.compile(r"config in time_base: \S+ frame_rate: (\d+)/(\d+)")
_FRAME = re.compile(r"n: +0 .* fmt:(\S+) .*\bs:(\d+)x(\d+)")
_MATRIX = re.compile(r"color_space:(\S+)")

# A nominal rate this much above the average is none: the frames of such a video come at irregular times, and what
# ffmpeg took for the rate is the clock that they are counted in, up to 1000 to a second, or that of their fields.
_MAX_NOMINAL = Fraction(3, 2)


@dataclass(frozen=True)
class VideoInfo:
    """What is known of a video before it is read.

    Attributes:
        size: `(width, height)` of a frame in pixels, after the rotation that the file asks for.
        fps: frames per second; None for stills.
        seconds: how long it is said to be, all streams of the file together; None where that is not said.
        pixel_format: ffmpeg's name for how pixels are stored.
        has_matrix: whether it is said which matrix made luma and chroma of the colours, or there is none.
    """

    size: tuple[int, int]
    fps: Fraction | None
    seconds: Fraction | None
    pixel_format: str
    has_matrix: bool


def parse_log(log: str, name: str) -> VideoInfo:
    """From what `describe` returns.

    Raises:
        ReaderError: naming the file, for what has no frames or is no video, and for a frame rate that cannot be.
    """
    demuxer = _INPUT.search(log)
    frame = _FRAME.search(log)
    if demuxer is None or frame is None:
        raise ReaderError(f"{name}: holds no frames.")
    if demuxer[1] == "tty":
        raise ReaderError(f"{name}: is text and no video.")
    is_still = demuxer[1] == "image2" or demuxer[1].endswith("_pipe")
    try:
        fps = None if is_still else _frame_rate(log)
    except ValueError as error:
        raise ReaderError(f"{name}: {error}") from error
    duration = _DURATION.search(log)
    matrix = _MATRIX.search(log, frame.end())
    return VideoInfo(
        size=(int(frame[2]), int(frame[3])),
        fps=fps,
        seconds=None if duration is None else _seconds(*duration.groups()),
        pixel_format=frame[1],
        has_matrix=matrix is not None and matrix[1] not in ("unknown", "reserved"),
    )


def _frame_rate(log: str) -> Fraction | None:
    """The nominal rate, exactly, unless only the average makes sense."""
    average = _average_rate(log)
    nominal = _NOMINAL.search(log)
    if nominal is None or "0" in nominal.groups():
        return average
    # As a decimal, as the containers that count in milliseconds say 19001/317 where 60000/1001 is meant.
    rate = int(nominal[1]) / int(nominal[2])
    return average if average is not None and rate > _MAX_NOMINAL * average else parse_fps(rate)


def _average_rate(log: str) -> Fraction | None:
    """Frames by seconds, which ffmpeg tells with two decimals, of the stream that it chose."""
    chosen = _CHOSEN.search(log)
    if chosen is None:
        return None
    stream = re.search(rf"Stream #{chosen[1]}\b.*: Video: (.*)", log)
    average = None if stream is None else _AVERAGE.search(stream[1])
    return None if average is None else parse_fps(float(average[1]) * (1000 if average[2] else 1))


def _seconds(hours: str, minutes: str, seconds: str) -> Fraction:
    return 3600 * int(hours) + 60 * int(minutes) + Fraction(seconds)
