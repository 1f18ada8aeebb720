"""Opens what is named as a file, if it is one: opening a pipe may wait forever, and reading a device may never end."""

import errno
import os
import stat
from pathlib import Path
from typing import IO

from ..units import format_bytes

#: Device, number, size and time of the last change.
FileState = tuple[int, int, int, int]


def file_state(file: int | str | os.PathLike) -> FileState:
    """What an open file, or the file of a path, keeps as long as it is neither replaced nor written to."""
    status = os.stat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def open_file(path: str | os.PathLike, *, pipes: bool = False) -> IO[bytes]:
    """Open a regular file, also through links, or a pipe if `pipes` are allowed.

    Raises an `OSError`, whose `strerror` is the reason, for what is of another kind or cannot be opened.
    """
    mode = os.stat(path).st_mode  # before it is opened, which may have effects
    if stat.S_ISFIFO(mode) and not pipes:
        raise OSError(errno.EINVAL, "a pipe in place of a file", os.fspath(path))
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "a device or a socket in place of a file", os.fspath(path))
    return Path(path).open("rb")


def read_small_file(path: str | os.PathLike, max_bytes: int, *, pipes: bool = False) -> bytes:
    """The content of a file that is opened as `open_file`. More than `max_bytes`, which are not read, are an error."""
    with open_file(path, pipes=pipes) as file:
        is_larger = os.fstat(file.fileno()).st_size > max_bytes  # a file with holes: nothing is allocated
        content = b"" if is_larger else file.read(max_bytes + 1)
    if is_larger or len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"more than {format_bytes(max_bytes)}", os.fspath(path))
    return content
