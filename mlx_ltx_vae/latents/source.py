"""Opens what a user names as latents: a file, a pipe, or standard input."""

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

from ..errors import LatentsError, excerpt
from ..files.formats import START_BYTES
from ..process.cleanup import temporary_folder
from .formats import check_format
from .stored import OpenFile

_STANDARD_INPUT = "-"
_COPIED_AT_ONCE = 2**20  # bytes


def source_name(path: str | os.PathLike) -> str:
    """The name of a source in errors."""
    return "standard input" if os.fspath(path) == _STANDARD_INPUT else os.fspath(path)


@contextmanager
def open_source(path: str | os.PathLike) -> Iterator[tuple[OpenFile, Path]]:
    """The open file, and a path at which it can be read until the end of the block.

    A pipe and standard input ("-") are copied to a temporary file, which takes no space after the last use of the open
    file. What is no file is a `LatentsError`: a folder, a device, a terminal.
    """
    source, is_standard_input = source_name(path), os.fspath(path) == _STANDARD_INPUT
    with nullcontext(_standard_input()) if is_standard_input else _open(source) as stream:
        if not is_standard_input and stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            yield OpenFile(stream, source), Path(path)
            return
        with temporary_folder() as folder:
            path = folder / "latents"
            try:
                with path.open("wb") as copy:
                    start = stream.read(START_BYTES)
                    check_format(start, source)  # refuses an endless stream of something else
                    copy.write(start)
                    shutil.copyfileobj(stream, copy, _COPIED_AT_ONCE)
            except OSError as error:
                raise LatentsError(
                    f"{source}: cannot be copied to {folder.parent} ({error.strerror or error}); set TMPDIR to a "
                    "larger disk, or name a file."
                ) from error
            with path.open("rb") as file:
                yield OpenFile(file, source), path


def _standard_input() -> IO[bytes]:
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # None, replaced, or closed
        raise LatentsError("standard input is closed; pipe a latent file into it, or name one.") from None
    if stat.S_ISCHR(mode):
        raise LatentsError("standard input is a terminal or another device; pipe a latent file into it, or name one.")
    return sys.stdin.buffer


def _open(source: str) -> IO[bytes]:
    shown = excerpt(source, 200)
    try:
        mode = os.stat(source).st_mode  # before it is opened: opening a device may have effects
        if stat.S_ISDIR(mode):
            raise LatentsError(f"{source}: is a folder; name one latent file.")
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            raise LatentsError(f"{source}: is a device or a socket; expected a latent file, or a pipe with one.")
        return open(source, "rb")
    except FileNotFoundError:
        raise LatentsError(f"{shown}: there is no such file.") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise LatentsError(f"{shown}: cannot be read ({reason}).") from error
