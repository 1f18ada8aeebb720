"""Writing uncompressed frames: to a .npy file or to standard output."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.lib import format as npy_format

from ..errors import WriterError
from ..part_file import PartFile, writing_to
from .sink import Sink


class NpyWriter(Sink):
    """A `.npy` file `(frames, height, width, 3)`, uint8 or uint16, written frame by frame."""

    def __init__(self, path: str | os.PathLike, *, size: tuple[int, int], bit_depth: int = 8) -> None:
        super().__init__(os.fspath(path), size, bit_depth)
        self._part = PartFile(Path(path))
        with writing_to(self.name):
            self._file = self._part.path.open("wb")
        self._write_header(0)

    def _write_header(self, num_frames: int) -> None:
        """numpy (since 1.23) pads the header for a first axis of any length, so that its size does not change."""
        width, height = self.size
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (num_frames, height, width, 3)}
        npy_format.write_array_header_1_0(self._file, header)

    def _consume(self, frames: np.ndarray) -> None:
        self._file.write(frames.data.cast("B"))

    def _finish(self) -> None:
        self._file.seek(0)
        self._write_header(self.frames_written)
        self._file.close()
        self._part.complete()

    def _discard(self) -> None:
        with suppress(OSError):  # closing flushes the buffer, which fails again on a full disk
            self._file.close()
        self._part.discard()


class RawWriter(Sink):
    """Raw frames to standard output: RGB, 8 or 16 bits (little-endian) per component."""

    def __init__(self, *, size: tuple[int, int], bit_depth: int = 8) -> None:
        super().__init__("standard output", size, bit_depth)
        if sys.stdout.isatty():
            raise WriterError("standard output: is a terminal; redirect raw frames to a file or another program.")
        sys.stdout.flush()
        # Without Python's buffer: data left in it after a broken pipe would raise again at exit.
        buffer = sys.stdout.buffer
        self._stream = getattr(buffer, "raw", buffer)

    def _consume(self, frames: np.ndarray) -> None:
        data = frames.data.cast("B")
        while data:
            data = data[self._stream.write(data) :]

    def _finish(self) -> None:
        self._stream.flush()

    def _discard(self) -> None:
        return
