"""The audio of outputs as it comes: the track beside the frames of a video, the pipe to ffmpeg, and .wav files."""

import io
import os
import sys
import wave
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import WriterError, option
from ..files import PartFile, expand_path, writing_to
from ..process import close_in_children
from .audio_files import SAMPLE_RATES
from .ffmpeg import make_pipe
from .sink import FrameQueue
from .streams import write_all

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
