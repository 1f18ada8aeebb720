"""Outputs that are read while they are written: a file under its own name, standard output, any binary file object."""

import io
import os
import stat
import sys
from pathlib import Path
from typing import Protocol

from ..cleanup import Cleanup, remove_file, uninterrupted
from ..errors import WriterError
from ..part_file import check_absent, writing_to


class BinaryFile(Protocol):
    """What a video can be written to: a binary file object, or anything else with its `write`."""

    def write(self, data: bytes, /) -> object:
        """Write all bytes, or return how many were written. May block."""


#: A path or a binary file object.
Target = str | os.PathLike | BinaryFile


def target_name(target: Target) -> str:
    """What errors call the target."""
    if isinstance(target, (str, os.PathLike)):
        return os.fspath(target)
    name = getattr(target, "name", None)
    return name if isinstance(name, str) else "the output stream"  # the name of a pipe is a number


def write_all(file: BinaryFile, data: bytes | memoryview) -> None:
    """Write all bytes, also to a raw file, which may take only some of them at a time.

    Raises:
        OSError: of the file; `BlockingIOError` if it does not block.
    """
    rest = memoryview(data)
    while rest:
        count = file.write(rest)  # type: ignore[arg-type]  # as every binary file, it takes any buffer
        if count is None and isinstance(file, io.RawIOBase):
            raise BlockingIOError("the file does not block, and takes no more bytes")
        rest = rest[count:] if isinstance(count, int) else rest[:0]


class StandardOutput:
    """Standard output without Python's buffer: data left in it after a broken pipe would raise again at exit.

    Raises:
        WriterError: if standard output is a terminal. `content` says what should not be printed there.
    """

    name = "standard output"

    def __init__(self, content: str) -> None:
        if sys.stdout is None:
            raise WriterError(f"{self.name}: is closed; redirect {content} to a file or another program.")
        if sys.stdout.isatty():
            raise WriterError(f"{self.name}: is a terminal; redirect {content} to a file or another program.")
        sys.stdout.flush()
        buffer = sys.stdout.buffer
        self._file: BinaryFile = getattr(buffer, "raw", buffer)

    def write(self, data: bytes | memoryview) -> None:
        """Write all bytes."""
        write_all(self._file, data)


class LiveOutput:
    """Receives a video while it grows.

    A path is created, or emptied, at once. `discard` removes the file, unless it is a named pipe or a device. A file
    object stays open, and what it has received stays there.

    Args:
        overwrite: whether to empty a file that exists.

    Raises:
        WriterError: if the path cannot be written.
    """

    def __init__(self, target: Target, overwrite: bool = True) -> None:
        self.name = target_name(target)
        self._opened: io.FileIO | None = None
        self._remove: Cleanup | None = None
        if not isinstance(target, (str, os.PathLike)):
            self._file: BinaryFile = target
            return
        if Path(target).is_fifo():  # opened when somebody reads it, which a signal may interrupt
            with writing_to(self.name):
                self._opened = io.FileIO(target, "w")
        else:
            if not overwrite:
                check_absent(target)
            with uninterrupted(), writing_to(self.name):
                self._opened = io.FileIO(target, "w" if overwrite or os.path.exists(target) else "x")
                if stat.S_ISREG(os.fstat(self._opened.fileno()).st_mode):
                    # The file that a symbolic link points to, which itself is kept.
                    self._remove = Cleanup(self, remove_file, Path(target).resolve())
        self._file = self._opened

    def write(self, data: bytes) -> None:
        """Write all bytes, past the buffer of a buffered file object.

        Raises:
            WriterError: for any error of the file, for example because its reader has gone.
        """
        try:
            write_all(self._file, data)
            flush = getattr(self._file, "flush", None)
            if flush is not None:
                flush()
        except Exception as error:  # a file object may raise anything
            reason = getattr(error, "strerror", None) or error
            raise WriterError(f"{self.name}: cannot be written ({reason}).") from error

    def complete(self) -> None:
        """Keep the file."""
        self._close()
        if self._remove is not None:
            self._remove.cancel()

    def discard(self) -> None:
        """Remove the file unless it is complete."""
        self._close()
        if self._remove is not None:
            self._remove()

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()
