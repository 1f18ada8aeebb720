"""Outputs that are read while they are written: a file under its own name, standard output, any binary file object."""

import errno
import fcntl
import io
import os
import stat
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

import numpy as np

from ..errors import OutputClosed, WriterError
from ..files import check_absent, sync_file, sync_folder, writing_to
from ..process import Cleanup, close_in_children, remove_file, uninterrupted

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of file systems without locks, such as some of networks


class BinaryFile(Protocol):
    """A binary file object, or anything else with its `write`, which writes all bytes or returns how many it wrote."""

    def write(self, data: bytes, /) -> object: ...


#: A path or a binary file object.
Target = str | os.PathLike | BinaryFile


def target_name(target: Target) -> str:
    """Name of the target in errors."""
    if isinstance(target, (str, os.PathLike)):
        return os.fspath(target)
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
    """Receives a video while it grows: a path is created, or emptied, at once, and locked against other live outputs.

    `discard` removes the file, unless it is a named pipe or a device, or its name is another file's by then. A file
    object stays open.
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
            mode = "w" if overwrite or os.path.exists(target) else "x"
            with uninterrupted(), writing_to(self.name), ExitStack() as stack:
                self._opened = stack.enter_context(io.FileIO(target, mode, opener=_open_whole))
                close_in_children(self._opened)  # where it would stay locked
                if stat.S_ISREG(os.fstat(self._opened.fileno()).st_mode):
                    self._path = Path(target).absolute()
                    self._lock(self._opened)
                    # The file that a symbolic link points to, which itself is kept.
                    self._remove = Cleanup(self, _remove_own, self._path.resolve(), self._opened)
                    self._opened.truncate()
                stack.pop_all()
        self._file = self._opened

    def _lock(self, file: io.FileIO) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed
        except BlockingIOError as error:
            raise WriterError(
                f"{self.name}: another live video is being written to it; choose another name."
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        self._check_name(file)  # the one that was locked until now may have been removed since it was opened

    def _check_name(self, file: io.FileIO) -> None:
        if not _leads_to(self._path, file):
            raise WriterError(
                f"{self.name}: another program has moved, removed or replaced it while it was written; write it again."
            )

    def write(self, data: bytes) -> None:
        """Write all bytes, past the buffer of a buffered file object. Any error of the file is a `WriterError`."""
        with writing_to(self.name, Exception):  # a file object may raise anything
            write_all(self._file, data)
            flush = getattr(self._file, "flush", None)
            if flush is not None:
                flush()

    def complete(self) -> None:
        if self._opened is not None and self._remove is not None:
            self._check_name(self._opened)
            sync_file(self._opened.fileno())
            self._remove.cancel()
            sync_folder(self._path.resolve().parent)
        self.discard()

    def remove(self) -> None:
        """Remove the file unless it is complete. A thread may be in `write`."""
        if self._remove is not None:
            self._remove()

    def discard(self) -> None:
        self.remove()
        if self._opened is not None:
            self._opened.close()


def _open_whole(path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_TRUNC, 0o666)  # another live output may be writing the file


def _leads_to(path: Path, file: io.FileIO) -> bool:
    with suppress(OSError):  # while the file is open, no other one gets its number
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    return False


def _remove_own(path: Path, file: io.FileIO) -> None:
    if _leads_to(path, file):
        remove_file(path)
