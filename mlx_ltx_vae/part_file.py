"""Files that appear under their name only when they are whole."""

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .cleanup import Cleanup, remove_file, uninterrupted
from .errors import WriterError

_MAX_STEM = 200  # bytes
_MAX_ENDING = 20  # characters


@contextmanager
def writing_to(name: str | os.PathLike) -> Iterator[None]:
    """Turn errors of the operating system into a `WriterError` that names the target."""
    try:
        yield
    except OSError as error:
        raise WriterError(f"{name}: cannot be written ({error.strerror or error}).") from error


def check_name(target: str | os.PathLike) -> None:
    """Raise a `WriterError` for a name that the file system cannot have, since it is too long."""
    with writing_to(target), suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(target)


def check_absent(target: str | os.PathLike) -> None:
    """Raise a `WriterError` for a file that exists. Named pipes, devices and folders are never replaced anyway."""
    if os.path.isfile(target):
        raise WriterError(f"{target}: exists, and is not to be overwritten; remove it or choose another name.")


def part_path(target: Path) -> Path:
    """A hidden, unused name with the same ending beside `target`, so that a rename stays on one file system.

    It is at most 255 bytes long, which file systems allow.
    """
    stem = os.fsencode(target.stem)[:_MAX_STEM].decode(sys.getfilesystemencoding(), "ignore")
    ending = target.suffix if len(target.suffix) <= _MAX_ENDING else ""
    return target.with_name(f".{stem}.{secrets.token_hex(4)}.part{ending}")


class PartFile:
    """An empty file beside `target`, to be filled and then renamed.

    It is created at once, so that a missing or read-only folder is refused before any work is done. It is removed
    with this object, at the latest when the interpreter exits, so that Ctrl-C at any point leaves nothing behind.

    A symbolic link stays, and the file that it points to is replaced. A named pipe or a device stays too, and gets the
    bytes of the file when it is whole, which until then is in the folder for temporary files.

    Args:
        overwrite: whether to replace a file at `target`, also one that appears meanwhile.

    Raises:
        WriterError: if it cannot be created, or if `target` is a folder, or a file that is not to be replaced.
    """

    def __init__(self, target: Path, *, overwrite: bool = True) -> None:
        if os.path.isdir(target):
            raise WriterError(f"{target}: cannot be written (it is a folder).")
        check_name(target)
        if not overwrite:
            check_absent(target)
        self.target = target
        self._overwrite = overwrite
        self._real = Path(os.path.realpath(target))
        self._is_special = os.path.exists(target) and not os.path.isfile(target)
        real = self._real.with_suffix(target.suffix)
        self.path = part_path(Path(tempfile.gettempdir(), target.name) if self._is_special else real)
        with uninterrupted(), writing_to(target):
            self.path.open("xb").close()
            self._remove = Cleanup(self, remove_file, self.path)

    def complete(self) -> None:
        """Rename the file to its target, replacing an earlier file if that is allowed."""
        if self._is_special:
            with writing_to(self.target), self.path.open("rb") as whole, self.target.open("wb") as target:
                shutil.copyfileobj(whole, target)
            self._remove()
            return
        with uninterrupted(), writing_to(self.target):
            if not self._overwrite:
                self._real.open("xb").close()  # takes the name, or fails: a rename would replace another file
            os.replace(self.path, self._real)
            self._remove.cancel()

    def discard(self) -> None:
        """Remove the file if it has not been renamed."""
        self._remove()
