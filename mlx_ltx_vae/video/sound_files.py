"""The sound of a video or of a sound file: its form, that in which an encoder stores it, and its samples."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from ..errors import LTXVAEError, ReaderError, WriterError, excerpt, warn
from ..files import explain_missing
from .ffmpeg import FfmpegReader, input_arguments, listing, read_log
from .sound import SAMPLE_RATES

#: A filter that puts silence in place of what is missing in front of sound that begins late, and in gaps. Not of those
#: under 0.02 s: the times of Ogg Vorbis are wrong by up to that.
FILL_GAPS = "aresample=async=1:min_hard_comp=0.02:first_pts=0"
_STREAM = re.compile(r"Stream #.*: Audio: (\w+).*?, (\d+) Hz, ([^,]+), (\w+)(?: \((\d+) bit\))?")
_START = re.compile(r"Duration: .*, start: (-?\d+\.\d+)")
_SHIFT = re.compile(r"demuxer\+ffmpeg -> .* off:(-?\d+) ")  # in microseconds
_COUNT = re.compile(r"(\d+) channels")
_PEAK = re.compile(r"Peak level dB: (-?\d+\.\d+)")
_FORMAT_BITS = {"u8": 8, "s16": 16, "s32": 32, "s64": 64, "flt": 32, "dbl": 64}
_MAX_PROBES = 32
_FLOAT_BYTES = 4
_PIECE = 2**15  # samples that are read at a time
_FILTERS = f"{FILL_GAPS},aformat=sample_fmts=flt:channel_layouts=mono|stereo"


@dataclass(frozen=True)
class SoundFormat:
    """The form of an audio stream: codec, layout and sample format by ffmpeg's names."""

    codec: str
    sample_rate: int
    layout: str
    sample_format: str
    bits: int  # of a sample

    @property
    def channels(self) -> int:
        known = _channels(self.layout)
        return known if isinstance(known, int) else len(known)

    @property
    def is_float(self) -> bool:
        return self.sample_format.startswith(("flt", "dbl"))

    @property
    def is_lossless(self) -> bool:
        rows = listing("-codecs", error=ReaderError)  # flags, name, description
        return any(row[1:2] == [self.codec] and row[0].endswith("S") for row in rows)

    def is_remixed(self, stored: "SoundFormat") -> bool:
        """Whether another format has other channels. Those at the sides may be those at the back."""
        own, other = _channels(self.layout), _channels(stored.layout)
        return self.channels != stored.channels if isinstance(own, int) or isinstance(other, int) else own != other


@dataclass(frozen=True)
class ProbedSound:
    """The first audio stream of a file, as it is and as an encoder stores it.

    `shift` is how many seconds later than ffmpeg says it begins.
    """

    source: SoundFormat
    stored: SoundFormat
    shift: Fraction


def probe_sound(path: str | os.PathLike, encode: Sequence[str], error: type[LTXVAEError] = WriterError) -> ProbedSound:
    """The sound of a file, for the arguments of an encoder. An `error` if ffmpeg cannot read or store it."""
    if not os.path.isfile(path):
        raise error(f"{excerpt(path, 200)}: {explain_missing(path, 'audio file')}")
    state = os.stat(path)
    return _probe(os.fspath(path), tuple(encode), error, (state.st_size, state.st_mtime_ns))  # type: ignore[arg-type]


@lru_cache(_MAX_PROBES)
def _probe(path: str, encode: tuple[str, ...], error: type[LTXVAEError], state: tuple[int, int]) -> ProbedSound:
    first = [*input_arguments(path), "-map", "0:a:0", "-frames:a", "1"]
    try:
        log = read_log(path, "audio", ["-debug_ts", *first, *encode], error)
    except error as problem:
        read_log(path, "audio", first, error)
        reason = str(problem).partition("ffmpeg can read: ")[2]
        raise error(
            f"{path}: its sound cannot be stored with this audio codec ({reason.rstrip('.')}); use another one."
        ) from problem
    before, _, after = log.partition("Output #0")
    source, stored = _parse(before), _parse(after)
    if source is None or stored is None:
        raise error(f"{path}: the format of its sound is not known; convert it with ffmpeg first.")
    if source.sample_rate not in SAMPLE_RATES:  # which only the file states
        limits = f"expected are {SAMPLE_RATES[0]} to {SAMPLE_RATES[-1]}"
        raise error(f"{path}: its sound has {source.sample_rate} samples per second; {limits}, so correct its header.")
    return ProbedSound(source, stored, _find_shift(log))


def _parse(log: str) -> SoundFormat | None:
    stream = _STREAM.search(log)
    if stream is None:
        return None
    codec, rate, layout, sample_format, bits = stream.groups()
    usual = _FORMAT_BITS.get(sample_format.removesuffix("p"), 32)
    return SoundFormat(codec, int(rate), layout, sample_format, int(bits) if bits else usual)


def find_shift(path: str | os.PathLike, stream: str) -> Fraction:
    """How many seconds later than ffmpeg says a stream of a file begins, by the times of the whole file.

    ffmpeg lets an MPEG-TS and the like begin with the stream that it reads. 0 for a file that cannot be read, which is
    an error where it is.
    """
    with suppress(ReaderError):
        first = ["-debug_ts", *input_arguments(path), "-map", stream, "-c", "copy", "-frames", "1"]
        return _find_shift(read_log(os.fspath(path), "stream", first, ReaderError))
    return Fraction(0)


def _find_shift(log: str) -> Fraction:
    start, shift = _START.search(log), _SHIFT.search(log)
    return Fraction(-int(shift[1]), 10**6) - Fraction(start[1]) if start and shift else Fraction(0)


def read_peak(path: str | os.PathLike) -> float:
    """The largest absolute sample of a file's sound, which is decoded; 1 is the largest that integers have."""
    level = ["-af", "astats=measure_perchannel=none:measure_overall=Peak_level"]
    arguments = [*input_arguments(path), "-map", "0:a:0", *level]
    peak = _PEAK.search(read_log(os.fspath(path), "audio", arguments, WriterError))
    return 10 ** (float(peak[1]) / 20) if peak else 0.0  # silence has -inf


def _channels(layout: str) -> frozenset[str] | int:
    """The channels of a layout, or only their number if they have no places."""
    counted = _COUNT.match(layout)
    if counted:
        return int(counted[1])
    rows = listing("-layouts", error=ReaderError)  # name, channels joined by +
    names = frozenset(next((row[1] for row in rows if row[:1] == [layout] and len(row) == 2), layout).split("+"))
    if names & {"BL", "BR"}:
        return names
    return frozenset({"SL": "BL", "SR": "BR"}.get(name, name) for name in names)


class SoundReader(Iterator[np.ndarray], AbstractContextManager["SoundReader"]):
    """The first audio stream of a file, in pieces (channels, n) float32. Closing it ends ffmpeg.

    `channels` is 1 or 2, since more become two, and `sample_rate` is that of the stream; both are 0 without sound.
    The first sample is at the time 0 of the file.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.name = os.fspath(path)
        self.channels = self.sample_rate = 0
        self._is_closed = True
        encode = ["-af", _FILTERS, "-c:a", "pcm_f32le"]
        try:
            found = probe_sound(path, encode, ReaderError)
        except ReaderError as error:
            if "contains no audio stream" not in str(error):
                raise
            return
        self.channels, self.sample_rate = found.stored.channels, found.stored.sample_rate
        shift = ["-itsoffset", f"{float(found.shift):.6f}"]
        arguments = [*shift, *input_arguments(path), "-map", "0:a:0", *encode, "-f", "f32le"]
        self._ffmpeg, self._is_closed = FfmpegReader(self.name, arguments), False

    def __next__(self) -> np.ndarray:
        """The next samples, at most 32768. A closed reader has no more."""
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
        """Pieces of so many samples together, from sample `start` on. Silence follows if there are less."""
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
            warn(f"{self.name}: parts of its sound are damaged; ffmpeg says: {reason}.")
