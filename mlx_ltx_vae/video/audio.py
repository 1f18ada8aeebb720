"""Audio of files: what is read of it, the track beside the frames of a video, the pipe to ffmpeg, and .wav files."""

import io
import os
import re
import sys
import wave
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LTXVAEError, ReaderError, WriterError, excerpt, option, warn
from ..files import PartFile, expand_path, explain_missing, writing_to
from ..process import close_in_children
from .ffmpeg import FfmpegProcess, describe, input_arguments, listing, make_pipe, parse_packets, read_times
from .sink import FrameQueue
from .streams import write_all

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

#: The channels of all audio here.
CHANNELS = 2
#: Stands for the pipe among ffmpeg's arguments.
AUDIO_INPUT = "<the audio>"
#: Seconds by which audio may end before the picture, or after it: less than two latents.
SLACK = Fraction(6, 100)
_MAX_EXCESS = 10  # seconds after the picture that are counted, for the error: an iterator may have no end
_MAX_EMPTY = 10_000  # chunks without samples in a row
_SAMPLE_BYTES = 3  # of a .wav file
_SCALE = 2**23  # as ffmpeg's: 1 is one step above the largest level
_MAX_WAV_BYTES = 2**32 - 2**10  # of a .wav file
_LEAD = 1  # seconds of audio that are given to ffmpeg ahead of the picture

#: Arrays (2, n) or (1, 2, n), or chunks of an `AudioStream`; or one such array.
Audio = Iterable[Any]


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
    return _find_audio(os.fspath(path), error, (state.st_size, state.st_mtime_ns))  # type: ignore[arg-type]


@lru_cache(_MAX_PROBES)
def _find_audio(path: str, error: type[LTXVAEError], _: tuple[int, int]) -> tuple[AudioFormat, Fraction] | None:
    first_packet = ["-map", _FIRST_STREAM, "-c", "copy", "-frames", "1", "-f", "framecrc"]
    arguments = input_arguments(path)
    description = describe(path, "audio", arguments, _FIRST_STREAM, first_packet, error)
    if description is None:
        return None
    source = next((stream for line, *_ in description.streams if (stream := _parse_stream(line))), None)
    if source is None:
        raise error(f"{path}: the format of its audio is not known; convert it with ffmpeg first.")
    if source.sample_rate not in SAMPLE_RATES:  # which only the file states
        limits = f"expected are {SAMPLE_RATES[0]} to {SAMPLE_RATES[-1]}"
        raise error(f"{path}: its audio has {source.sample_rate} samples per second; {limits}, so correct its header.")
    begins = [packet.time for packet in parse_packets(description.output)] or [Fraction(0)]
    alone = read_times([*arguments, *first_packet[:-2]])[0] if begins != [0] else begins
    return source, begins[0] - alone[0] if alone else Fraction(0)


def _parse_stream(line: str) -> AudioFormat | None:
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
        if reason:
            warn(f"{self.name}: parts of its audio are damaged; ffmpeg says: {reason}.")


def find_sample_rate(name: str, audio: object, sample_rate: int | None) -> int:
    """Return the rate of the options, or the rate of an `AudioStream`."""
    rate = getattr(audio, "sample_rate", None) if sample_rate is None else sample_rate
    if isinstance(rate, bool) or not isinstance(rate, int) or rate not in SAMPLE_RATES:
        limits = f"a whole number from {SAMPLE_RATES[0]} to {SAMPLE_RATES[-1]}"
        raise WriterError(f"{name}: audio needs its sample rate as {limits}, not {rate!r}; add sample_rate=.")
    return rate


def each_chunk(name: str, audio: Audio) -> Iterator[np.ndarray]:
    """Yield (n, 2) float32 of each chunk that has samples. Raises a `WriterError` for anything but audio."""
    num_empty = 0
    for chunk in [audio] if hasattr(audio, "shape") else audio:
        waveform = getattr(chunk, "waveform", chunk)
        try:
            samples = np.asarray(waveform)
        except (TypeError, ValueError, RuntimeError):  # such as bfloat16, which numpy does not have
            samples = np.empty(0, object)
        if samples.ndim == 3 and len(samples) == 1:
            samples = samples[0]
        if samples.dtype.kind != "f" or samples.ndim != 2 or samples.shape[0] != CHANNELS:
            kind = f"{getattr(waveform, 'dtype', type(waveform).__name__)} {tuple(getattr(waveform, 'shape', ()))}"
            raise WriterError(f"{name}: takes audio (2, n) of one video, floats in [-1, 1], not {kind}.")
        if not np.isfinite(samples).all():
            raise WriterError(f"{name}: the audio has values that are NaN or infinite.")
        num_empty = 0 if samples.size else num_empty + 1
        if num_empty > _MAX_EMPTY:
            raise WriterError(f"{name}: the audio goes on without samples; end its iterator, or give chunks of some.")
        if samples.size:
            yield np.ascontiguousarray(samples.T, np.float32)


class AudioTrack:
    """Takes chunks of audio as they are needed, and makes them as long as the picture.

    Audio that ends a little before the picture is padded with silence; audio that ends a little after it is cut.
    With `cuts`, audio of any greater length is cut too.
    """

    def __init__(
        self, name: str, chunks: Audio, sample_rate: int, fps: Fraction, num_frames: int | None, *, cuts: bool
    ) -> None:
        self._name, self._rate, self._fps, self._cuts = name, sample_rate, fps, cuts
        self._audio = chunks
        self._chunks = each_chunk(name, chunks)
        self._expected = getattr(chunks, "num_samples", None)
        self._num_frames = num_frames
        self._samples = 0  # that the chunks had so far
        self._num_returned = 0
        self._rest = np.empty((0, CHANNELS), np.float32)  # not returned yet
        if num_frames is not None and self._expected is not None:
            check_audio_length(name, Fraction(self._expected, sample_rate), num_frames / fps, cuts=cuts)

    def until(self, num_frames: int) -> Iterator[np.ndarray]:
        """Return the next samples (n, 2) float32, at least up to the end of this many frames."""
        end = self._count(num_frames)
        if self._num_frames is not None:
            end = min(end + _LEAD * self._rate, self._count(self._num_frames))
        return self._take(end)

    def finish(self, num_frames: int) -> Iterator[np.ndarray]:
        """Yield the remaining samples of this many frames. Raises a `WriterError` if the lengths do not match."""
        end = self._count(num_frames)
        yield from self._take(end)
        video, is_whole = num_frames / self._fps, True
        if self._num_returned == end and self._expected is not None:
            self._samples = self._expected
        elif not self._cuts:
            is_whole = self._count_rest(video)
        check_audio_length(self._name, Fraction(self._samples, self._rate), video, cuts=self._cuts, is_whole=is_whole)
        if self._num_returned < end:
            yield np.zeros((end - self._num_returned, CHANNELS), np.float32)

    def close(self) -> None:
        """End the stream of the chunks, if they are one."""
        close = getattr(self._audio, "close", None)
        if close is not None:
            close()

    def _count(self, num_frames: int) -> int:
        """Return the samples of this many frames."""
        return round(num_frames * self._rate / self._fps)

    def _count_rest(self, video: Fraction) -> bool:
        """Count the remaining samples, up to too many for this many seconds. Return whether all were counted."""
        for samples in self._chunks:
            self._samples += len(samples)
            if self._samples > (video + _MAX_EXCESS) * self._rate:
                return False
        return True

    def _take(self, end: int) -> Iterator[np.ndarray]:
        while self._num_returned < end:
            if not len(self._rest):
                self._rest = next(self._chunks, self._rest)
                self._samples += len(self._rest)
            if not len(self._rest):  # the end: no chunk is empty
                return
            part, self._rest = np.split(self._rest, [end - self._num_returned])
            self._num_returned += len(part)
            yield part


def check_audio_length(name: str, audio: Fraction, video: Fraction, *, cuts: bool, is_whole: bool = True) -> None:
    """Raise a `WriterError` if audio is not as long as its video, both in seconds. `cuts` allows it to be longer.

    Audio that is not whole may be longer than these seconds.
    """
    if audio < video - SLACK or (audio > video + SLACK and not cuts):
        remedy = f"give the audio of this video, or correct the frame rate ({option('fps=', '--fps')})"
        remedy += f"; {option('shortest=True', '--shortest')} cuts longer audio" if audio > video else ""
        lengths = f"the video takes {float(video):.2f} s and its audio {'' if is_whole else 'at least '}"
        raise WriterError(f"{name}: {lengths}{float(audio):.2f} s; {remedy}.")


def open_audio_pipe() -> tuple[io.FileIO, FrameQueue]:
    """Return the end of a pipe that ffmpeg reads, and the queue of samples (n, 2) that are written to the other end.

    Its thread lets neither the picture nor the audio wait for the other. Close the end here once ffmpeg has it.
    """
    read_end, write_end = make_pipe(WriterError)
    pipe = io.FileIO(write_end, "w")
    close_in_children(pipe)  # where it would keep ffmpeg waiting for more
    return io.FileIO(read_end), FrameQueue(partial(_send, pipe), max_frames=sys.maxsize, at_end=pipe.close)


def _send(pipe: io.FileIO, samples: np.ndarray) -> None:
    with suppress(BrokenPipeError):  # ffmpeg has failed, which is found where frames are written
        write_all(pipe, samples)


def write_wav(
    path: str | os.PathLike, chunks: Audio, *, sample_rate: int | None = None, overwrite: bool = True
) -> tuple[int, Path | None]:
    """Write chunks of audio as they come, with 24 bits, to a file that appears when it is whole.

    Returns the number of samples, and what `PartFile.complete` does. A `sample_rate` of None is the chunks' rate.
    Samples beyond 1 are clipped. Raises `WriterError`s and the errors of the chunks; they leave no file.
    """
    name = expand_path(path, WriterError)
    rate = find_sample_rate(name, chunks, sample_rate)
    part = PartFile(Path(name), overwrite=overwrite)
    count = 0
    try:
        with writing_to(name), part.path.open("r+b") as file, wave.open(file, "wb") as output:
            output.setparams((CHANNELS, _SAMPLE_BYTES, rate, 0, "NONE", ""))
            output.writeframes(b"")
            file.flush()  # while a chunk is computed, the app may fork, and a process writes its buffer when it ends
            for samples in each_chunk(name, chunks):
                count += len(samples)
                if count * CHANNELS * _SAMPLE_BYTES > _MAX_WAV_BYTES:
                    raise WriterError(f"{name}: a .wav file has at most 4 GB; write shorter audio.")
                levels = np.minimum(np.rint(np.clip(samples, -1, 1) * _SCALE), _SCALE - 1).astype("<i4")
                output.writeframes(levels.view(np.uint8).reshape(-1, 4)[:, :_SAMPLE_BYTES].tobytes())
                file.flush()
            if not count:
                raise WriterError(f"{name}: the audio has no samples.")
        moved = part.complete()
    finally:
        part.discard()
    return count, moved
