"""The audio of a video or of an audio file: its form, and its samples."""

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from ..errors import LTXVAEError, ReaderError, excerpt, warn
from ..files import explain_missing
from .ffmpeg import FfmpegProcess, describe, input_arguments, listing, parse_packets, read_times

#: Samples per second. A small file that states fewer would become hours of audio.
SAMPLE_RATES = range(1000, 768_001)
#: A filter that fills with silence what is missing before audio that begins late, and in gaps. Not those
#: under 0.02 s: the times of Ogg Vorbis are wrong by up to that.
FILL_GAPS = "aresample=async=1:min_hard_comp=0.02:first_pts=0"
_FIRST_STREAM = "0:a:0"
_STREAM = re.compile(r"Audio: (\w+).*?, (\d+) Hz, ([^,]+), (\w+)(?: \((\d+) bit\))?")
_COUNT = re.compile(r"(\d+) channels(?: \(([A-Z0-9+]+)\))?")
_FORMAT_BITS = {"u8": 8, "s16": 16, "s32": 32, "s64": 64, "flt": 32, "dbl": 64}
_MAX_PROBES = 32
_FLOAT_BYTES = 4
_PIECE = 2**15  # samples that are read at a time
_FILTERS = f"{FILL_GAPS},aformat=sample_fmts=flt:channel_layouts=mono|stereo"


@dataclass(frozen=True)
class AudioFormat:
    """Form of an audio stream."""

    codec: str  # by ffmpeg's name
    sample_rate: int
    layout: str  # of its channels, by ffmpeg's name
    bits: int  # of a sample

    @property
    def channels(self) -> int:
        counted = _COUNT.match(self.layout)  # those that ffmpeg has no name for
        return int(counted[1]) if counted else len(channel_places(self.layout))

    @property
    def is_lossless(self) -> bool:
        rows = listing("-codecs", error=ReaderError)  # flags, name, description
        return any(row[1:2] == [self.codec] and row[0].endswith("S") for row in rows)


def find_audio(path: str | os.PathLike, error: type[LTXVAEError]) -> tuple[AudioFormat, Fraction] | None:
    """Find the first audio stream of a file, and its shift. `None` without one. Raises `error` if it cannot be read.

    The shift is how many seconds later it begins than ffmpeg says where it reads nothing else, as of an MPEG-TS.
    """
    if not os.path.isfile(path):
        raise error(f"{excerpt(path, 200)}: {explain_missing(path, 'audio file')}")
    state = os.stat(path)
    return _find(os.fspath(path), error, (state.st_size, state.st_mtime_ns))  # type: ignore[arg-type]


@lru_cache(_MAX_PROBES)
def _find(path: str, error: type[LTXVAEError], _: tuple[int, int]) -> tuple[AudioFormat, Fraction] | None:
    first_packet = ["-map", _FIRST_STREAM, "-c", "copy", "-frames", "1", "-f", "framecrc"]
    arguments = input_arguments(path)
    description = describe(path, "audio", arguments, _FIRST_STREAM, first_packet, error)
    if description is None:
        return None
    source = next((stream for line, *_ in description.streams if (stream := _parse(line))), None)
    if source is None:
        raise error(f"{path}: the format of its audio is not known; convert it with ffmpeg first.")
    if source.sample_rate not in SAMPLE_RATES:  # which only the file states
        limits = f"expected are {SAMPLE_RATES[0]} to {SAMPLE_RATES[-1]}"
        raise error(f"{path}: its audio has {source.sample_rate} samples per second; {limits}, so correct its header.")
    begins = [packet.time for packet in parse_packets(description.output)] or [Fraction(0)]
    alone = read_times([*arguments, *first_packet[:-2]])[0] if begins != [0] else begins
    return source, begins[0] - alone[0] if alone else Fraction(0)


def _parse(line: str) -> AudioFormat | None:
    stream = _STREAM.match(line)
    if stream is None:
        return None
    codec, rate, layout, sample_format, bits = stream.groups()
    usual = _FORMAT_BITS.get(sample_format.removesuffix("p"), 32)
    return AudioFormat(codec, int(rate), layout, int(bits) if bits else usual)


def channel_places(layout: str) -> list[str]:
    """Return the places of a layout's channels, such as FL and SR; none if they are not known."""
    counted = _COUNT.match(layout)
    if counted:  # "6 channels (FL+FR+BL+BR+FLC+FRC)"
        return counted[2].split("+") if counted[2] else []
    rows = listing("-layouts", error=ReaderError)  # name, channels joined by +
    channels = next((row[1] for row in rows if row[:1] == [layout] and len(row) == 2), layout)
    return channels.split("+")


class AudioReader(Iterator[np.ndarray], AbstractContextManager["AudioReader"]):
    """First audio stream of a file, in pieces (channels, n) float32. Closing it ends ffmpeg.

    `channels` is 1 or 2, since more become two, and `sample_rate` is the stream's; both are 0 without audio.
    The first sample is at the time 0 of the file.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.name = os.fspath(path)
        self.channels = self.sample_rate = 0
        self._is_closed = True
        audio = find_audio(path, ReaderError)
        if audio is None:
            return
        source, shift = audio
        self.channels, self.sample_rate = min(2, source.channels), source.sample_rate
        decode = ["-map", _FIRST_STREAM, "-af", _FILTERS, "-c:a", "pcm_f32le", "-f", "f32le"]
        arguments = ["-itsoffset", f"{float(shift):.6f}", *input_arguments(path), *decode]
        self._ffmpeg, self._is_closed = FfmpegProcess(self.name, arguments), False

    def __next__(self) -> np.ndarray:
        """Return the next samples, at most 32768. A closed reader has no more."""
        if self._is_closed:
            raise StopIteration
        samples = np.empty((_PIECE, self.channels), "<f4")
        try:
            count = self._ffmpeg.read_into(samples.data.cast("B")) // (_FLOAT_BYTES * self.channels)
            if not count:
                self._end()
                raise StopIteration
        except BaseException:  # the end, an error, Ctrl-C
            self.close()
            raise
        return np.ascontiguousarray(samples[:count].T)

    def cut(self, start: int, length: int) -> Iterator[np.ndarray]:
        """Yield pieces of this many samples together, from sample `start` on. Silence follows if there are less."""
        skipped, left = start, length
        for samples in self:
            part = samples[:, skipped : skipped + left]
            skipped -= min(skipped, samples.shape[1])
            left -= part.shape[1]
            yield part
            if not left:
                return
        for start in range(0, left, _PIECE):
            yield np.zeros((self.channels, min(_PIECE, left - start)), np.float32)

    def close(self) -> None:
        """Stop reading. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._ffmpeg.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self) -> None:
        """Wait for ffmpeg. An error if it has failed, and a warning if parts were damaged."""
        code, reason = self._ffmpeg.wait()
        if code:
            raise ReaderError(f"{self.name}: contains no audio that ffmpeg can read: {reason}.")
        if not code and reason:
            warn(f"{self.name}: parts of its audio are damaged; ffmpeg says: {reason}.")
