"""Streams that an output goes to, which are read while they are written: standard output, and binary file objects."""

import io
import os
import sys
import threading
from typing import Protocol

import numpy as np

from ..errors import OutputClosed, WriterError
from ..files import expand_path, writing_to
from ..process import close_in_children
from .ffmpeg import PIPE_BYTES


class BinaryFile(Protocol):
    """Binary file object, or anything else with its `write`, which writes all bytes or returns how many it wrote."""

    def write(self, data: bytes, /) -> object: ...


#: A path or a binary file object.
Target = str | os.PathLike | BinaryFile


def target_name(target: Target) -> str:
    """Return the path of the target, or its name in errors."""
    if isinstance(target, (str, os.PathLike)):
        return expand_path(target, WriterError)
    name = getattr(target, "name", None)
    return name if isinstance(name, str) else "the output stream"  # the name of a pipe is a number


def write_all(file: BinaryFile, data: bytes | memoryview | np.ndarray) -> None:
    """Write all bytes, also to a raw file, which may take only some of them at a time, and must block."""
    rest = memoryview(data).cast("B")  # type: ignore[arg-type]  # numpy's arrays are buffers, too
    while rest:
        count = file.write(rest)  # type: ignore[arg-type]  # as every binary file, it takes any buffer
        if count is None and isinstance(file, io.RawIOBase):
            raise BlockingIOError("the file does not block, and takes no more bytes")
        rest = rest[count:] if isinstance(count, int) else rest[:0]


class StandardOutput:
    """Standard output without Python's buffer: data left in it after a broken pipe would raise again at exit."""

    name = "standard output"

    def __init__(self, content: str) -> None:
        if sys.stdout is None or sys.stdout.isatty():
            state = "closed" if sys.stdout is None else "a terminal"
            raise WriterError(f"{self.name}: is {state}; redirect {content} to a file or another program.")
        sys.stdout.flush()
        buffer = sys.stdout.buffer
        self._file: BinaryFile = getattr(buffer, "raw", buffer)

    def write(self, data: bytes | memoryview | np.ndarray) -> None:
        """Write all bytes. Raises `OutputClosed` if nobody reads them."""
        try:
            write_all(self._file, data)
        except BrokenPipeError as error:
            raise OutputClosed(f"{self.name}: cannot be written ({error.strerror or error}).") from error


class LiveOutput:
    """Binary file object that receives a video while it grows. It stays open.

    A thread writes what arrives in the pipe that `read_from` gets, until `is_cancelled`.
    """

    def __init__(self, file: BinaryFile) -> None:
        self.name = target_name(file)
        self.error: WriterError | None = None  # of the thread
        self.is_cancelled = False
        #: Flag: the file is being written, which takes as long as its reader pauses.
        self.is_busy = False
        self._file = file
        self._thread: threading.Thread | None = None

    def read_from(self, pipe: io.FileIO) -> None:
        """Write what arrives in a pipe, on a thread that closes it. Any error of the file becomes a `WriterError`."""
        close_in_children(pipe)  # where it would keep ffmpeg waiting for somebody to read
        self._thread = threading.Thread(target=self._forward, args=(pipe,), name="ffmpeg-output", daemon=True)
        self._thread.start()

    def _forward(self, pipe: io.FileIO) -> None:
        with pipe:  # once it is closed, ffmpeg cannot write and ends
            try:
                while (data := pipe.read(PIPE_BYTES)) and not self.is_cancelled:
                    self.is_busy = True
                    self._write(data)
                    self.is_busy = False
            except WriterError as error:  # raised on the thread that writes frames
                self.error = error

    def _write(self, data: bytes) -> None:
        """Write all bytes, past the buffer of a buffered file object."""
        with writing_to(self.name, Exception):  # a file object may raise anything
            write_all(self._file, data)
            flush = getattr(self._file, "flush", None)
            if flush is not None:
                flush()

    def join(self, timeout: float | None = None) -> None:
        """Wait until all that arrives in the pipe is written."""
        if self._thread is not None:
            self._thread.join(timeout)

    def complete(self) -> None:
        """Do nothing: all that has arrived is written."""

    def discard(self) -> None:
        """Do nothing: what the file has received stays there."""
