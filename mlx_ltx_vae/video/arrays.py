"""Frames as they are: into a .npy file, or to standard output."""

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
    """A `.npy` file `(frames, height, width, 3)`, uint8 or uint16, written as the frames come.

    The number of frames is put into the header at the end. numpy leaves room in it for a first axis of any length
    (since 1.23), so that the header keeps its size.
    """

    def __init__(self, path: str | os.PathLike, *, size: tuple[int, int], bit_depth: int = 8) -> None:
        super().__init__(os.fspath(path), size, bit_depth)
        self._part = PartFile(Path(path))
        with writing_to(self.name):
            self._file = self._part.path.open("wb")
        self._write_header(0)

    def _write_header(self, num_frames: int) -> None:
        width, height = self.size
        shape = (num_frames, height, width, 3)
        description = npy_format.dtype_to_descr(self._dtype)
        npy_format.write_array_header_1_0(self._file, {"descr": description, "fortran_order": False, "shape": shape})

    def _consume(self, frames: np.ndarray) -> None:
        self._file.write(memoryview(frames).cast("B"))

    def _finish(self) -> None:
        self._file.seek(0)
        self._write_header(self.frames_written)
        self._file.close()
        self._part.complete()

    def _discard(self) -> None:
        with suppress(OSError):  # closing writes what is buffered, which a full disk refuses once more
            self._file.close()
        self._part.discard()


class RawWriter(Sink):
    """Raw frames to standard output, one after the other: RGB, 8 or 16 bits (little-endian) each."""

    def __init__(self, *, size: tuple[int, int], bit_depth: int = 8) -> None:
        super().__init__("standard output", size, bit_depth)
        if sys.stdout.isatty():
            raise WriterError("standard output: is a terminal; send raw frames into a file or another program.")
        sys.stdout.flush()
        # Past Python's buffer: what is left in it when the reader goes away would fail again at exit.
        buffer = sys.stdout.buffer
        self._stream = getattr(buffer, "raw", buffer)

    def _consume(self, frames: np.ndarray) -> None:
        data = memoryview(frames).cast("B")
        while data:
            data = data[self._stream.write(data) :]

    def _finish(self) -> None:
        self._stream.flush()

    def _discard(self) -> None:
        return
