"""Opens what is named as a file, if it is one: opening a pipe may wait forever, and reading a device may never end."""

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import IO

from ..units import format_bytes

SAMPLE_BYTES = 2**14  # of each of the three parts of a sample

#: Device, number, size and time of the last change.
FileState = tuple[int, int, int, int]


def file_state(file: int | str | os.PathLike) -> FileState:
    """What an open file, or the file of a path, keeps as long as it is neither replaced nor written to."""
    status = os.stat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def open_file(path: str | os.PathLike, *, pipes: bool = False) -> IO[bytes]:
    """Open a regular file, also through links, or a pipe if `pipes` are allowed. Anything else is an `OSError`."""
    mode = os.stat(path).st_mode  # before it is opened, which may have effects
    if stat.S_ISFIFO(mode) and not pipes:
        raise OSError(errno.EINVAL, "a pipe in place of a file", os.fspath(path))
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "a device or a socket in place of a file", os.fspath(path))
    return Path(path).open("rb")


def expand_home(path: str | os.PathLike) -> Path:
    """The path with "~" as the user's home, if it begins with that: "./~.npy" is the name of a file."""
    return Path(os.path.expanduser(path))


def is_pipe(path: str | os.PathLike) -> bool:
    """Whether there is a named pipe, as far as that can be found out."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def explain_missing(path: str | os.PathLike, kind: str) -> str:
    """Why a file cannot be found, as the end of a sentence: it is not there, or a folder above it is closed."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        return f"cannot be read ({getattr(error, 'strerror', None) or error})."
    return f"there is no such {kind}."


def read_small_file(path: str | os.PathLike, max_bytes: int, *, pipes: bool = False) -> bytes:
    """The content of a file that is opened as `open_file`. More than `max_bytes`, which are not read, are an error."""
    with open_file(path, pipes=pipes) as file:
        is_larger = os.fstat(file.fileno()).st_size > max_bytes  # a file with holes: nothing is allocated
        content = b"" if is_larger else file.read(max_bytes + 1)
    if is_larger or len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"more than {format_bytes(max_bytes)}", os.fspath(path))
    return content


def read_sample(file: IO[bytes], begin: int, end: int) -> bytes:
    """The first, the middle and the last 16 kB between two positions of a file, which may have 40 GB."""
    if end - begin <= 3 * SAMPLE_BYTES:
        file.seek(begin)
        return file.read(end - begin)
    sample = b""
    for start in (begin, (begin + end - SAMPLE_BYTES) // 2, end - SAMPLE_BYTES):
        file.seek(start)
        sample += file.read(SAMPLE_BYTES)
    return sample


def sample_path(path: Path) -> list[tuple[str, int, str]]:
    """(name, size, hash of a sample) of a file, whose name is left out, or of each file in a folder; else nothing."""
    if os.path.isfile(path):
        size = path.stat().st_size
        with path.open("rb") as file:
            return [("", size, hashlib.sha256(read_sample(file, 0, size)).hexdigest())]
    if not os.path.isdir(path):
        return []
    found = [(file.name, sample_path(file)) for file in sorted(path.iterdir()) if file.is_file()]
    return [(name, size, digest) for name, [(_, size, digest)] in found]
