"""The sound of a video or of a sound file, as numpy arrays."""

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np

from ..errors import ReaderError
from .ffmpeg import FfmpegReader, input_arguments
from .sound_probe import FILL_GAPS, check_stated_rate, find_shift

_FLOAT_BYTES = 4
_PIECE = 2**15  # samples that are read at a time
_CHUNK_HEADER = 8  # bytes: a name, and a size
_FILTERS = f"{FILL_GAPS},aformat=sample_fmts=flt:channel_layouts=mono|stereo"


class SoundReader(Iterator[np.ndarray], AbstractContextManager["SoundReader"]):
    """The first audio stream of a file, in pieces (channels, n) float32. Closing it ends ffmpeg.

    `channels` is 1 or 2, since more become two, and `sample_rate` is that of the stream; both are 0 without sound.
    The first sample is at the time 0 of the file.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.name = os.fspath(path)
        self.channels = self.sample_rate = 0
        self._is_closed = False
        shift = ["-itsoffset", f"{float(find_shift(path, '0:a:0')):.6f}"]
        arguments = [*shift, *input_arguments(path), "-map", "0:a:0", "-af", _FILTERS, "-c:a", "pcm_f32le", "-f", "wav"]
        self._ffmpeg = FfmpegReader(self.name, arguments)
        try:
            self._read_header()
        except BaseException:
            self.close()
            raise

    def __next__(self) -> np.ndarray:
        """The next samples, at most 32768. A closed reader has no more."""
        if not self.channels or self._is_closed:
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

    def _read_header(self) -> None:
        """Read up to the samples: the header that ffmpeg writes to a pipe, in which lengths are missing."""
        if not self._ffmpeg.read(_CHUNK_HEADER + 4):
            self._end()
            return
        while True:
            header = self._ffmpeg.read(_CHUNK_HEADER)
            size = int.from_bytes(header[4:], "little")
            if header[:4] == b"data" or not header:
                break
            content = self._ffmpeg.read(size + size % 2)
            if header[:4] == b"fmt ":
                self.channels = int.from_bytes(content[2:4], "little")
                self.sample_rate = int.from_bytes(content[4:8], "little")
        if not self.channels:
            raise ReaderError(f"{self.name}: its sound cannot be read; convert it with ffmpeg first.")
        check_stated_rate(self.name, self.sample_rate, ReaderError)

    def _end(self) -> None:
        """Wait for ffmpeg. An error if it has failed, but for a lack of sound, and a warning if parts were damaged."""
        code, reason = self._ffmpeg.wait()
        if code and "matches no streams" not in reason:
            raise ReaderError(f"{self.name}: contains no audio that ffmpeg can read: {reason}.")
        if not code and reason:
            warnings.warn(f"{self.name}: parts of its sound are damaged; ffmpeg says: {reason}.", stacklevel=3)
