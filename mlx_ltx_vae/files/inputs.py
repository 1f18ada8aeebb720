"""The files that are read: none of them may be written, under whatever name."""

import os
import stat
import unicodedata
from collections.abc import Iterable
from contextlib import suppress

from ..errors import WriterError

_STANDARD_STREAM = "-"
_Identity = tuple[int, int]  # device and number


def file_key(path: str | os.PathLike) -> str:
    """The same for names that are one file through links, or on a file system that ignores case: as on most Macs."""
    return unicodedata.normalize("NFC", os.path.realpath(path)).casefold()


class InputFiles:
    """Files that are read, by name and by what the file system knows them as. "-" is standard input."""

    def __init__(self, paths: Iterable[str | os.PathLike]) -> None:
        self._names: set[str] = set()
        self._identities: set[_Identity] = set()
        for path in paths:
            if path != _STANDARD_STREAM:
                self._names.add(file_key(path))
            if found := _identity(0 if path == _STANDARD_STREAM else path):
                self._identities.add(found)

    def check_output(self, output: str | os.PathLike) -> None:
        """Raise a `WriterError` if an output, of which "-" is standard output, is one of the files."""
        is_stream = output == _STANDARD_STREAM
        is_input = not is_stream and file_key(output) in self._names
        if is_input or _identity(1 if is_stream else output) in self._identities:
            name = "standard output" if is_stream else output
            raise WriterError(f"{name}: is one of the inputs, which are never replaced; choose another output.")


def _identity(file: str | os.PathLike | int) -> _Identity | None:
    """None for what is no regular file: nothing is lost there."""
    with suppress(OSError, ValueError):  # ValueError: a NUL in the name, which is an error where it is opened
        status = os.stat(file)
        if stat.S_ISREG(status.st_mode):
            return status.st_dev, status.st_ino
    return None
