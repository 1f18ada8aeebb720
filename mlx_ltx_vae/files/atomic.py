"""Files and folders that appear under their name only when they are whole."""

import fcntl
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import WriterError
from ..process.cleanup import Cleanup, remove_file, remove_folder, uninterrupted

_MAX_STEM = 200  # bytes
_MAX_ENDING = 20  # characters
_LOCK_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW  # never of what a link points to; a pipe is not waited for


@contextmanager
def writing_to(name: str | os.PathLike, errors: type[Exception] = OSError) -> Iterator[None]:
    """Turn errors, by default those of the operating system, into a `WriterError` that names the target."""
    try:
        yield
    except WriterError:
        raise
    except errors as error:
        reason = getattr(error, "strerror", None) or error
        raise WriterError(f"{name}: cannot be written ({reason}).") from error


def check_name(target: str | os.PathLike) -> None:
    """Raise a `WriterError` for a name that the file system cannot have, since it is too long or has a NUL."""
    with writing_to(target), writing_to(target, ValueError), suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(target)


def check_absent(target: str | os.PathLike) -> None:
    """Raise a `WriterError` for a file that exists. Named pipes, devices and folders are never replaced anyway."""
    if os.path.isfile(target):
        raise WriterError(f"{target}: exists, and is not to be overwritten; remove it or choose another name.")


def create_part(target: Path, create: Callable[[Path], object]) -> tuple[Path, int]:
    """Create a hidden, partial file or folder beside `target`, so that a rename stays on one file system.

    It is locked until `remove_part`, or the end of this process, after which the next one for the same target removes
    it. Its name has the same ending and at most 255 bytes.
    """
    stem = os.fsencode(target.stem)[:_MAX_STEM].decode(sys.getfilesystemencoding(), "ignore")
    head, tail = f".{stem}.", f".part{target.suffix if len(target.suffix) <= _MAX_ENDING else ''}"
    _remove_abandoned(target.parent, re.compile(re.escape(head) + "[0-9a-f]{8}" + re.escape(tail)))
    while True:
        path = target.with_name(head + secrets.token_hex(4) + tail)
        create(path)
        with suppress(FileNotFoundError):
            lock = os.open(path, _LOCK_FLAGS)
            with suppress(OSError):  # on file systems without locks, nobody can take it for abandoned
                fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():  # another process may have removed it before it was locked
                return path, lock
            os.close(lock)


def remove_part(path: Path, lock: int) -> None:
    """Remove what `create_part` has created, unless it has been renamed, and unlock it."""
    if path.is_dir():
        remove_folder(path)
    else:
        remove_file(path)
    os.close(lock)


def _remove_abandoned(folder: Path, name: re.Pattern[str]) -> None:
    with suppress(OSError):
        for entry in os.listdir(folder):
            if name.fullmatch(entry):
                with suppress(OSError):  # it is locked, or another user's
                    path = folder / entry
                    lock = os.open(path, _LOCK_FLAGS)
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except OSError:
                        os.close(lock)
                    else:
                        remove_part(path, lock)


class PartFile:
    """An empty file beside `target`, to be filled and then renamed. It is removed with this object.

    It is created at once, so that a missing or read-only folder is refused before any work is done. A symbolic link
    stays, and the file that it points to is replaced. A named pipe or a device stays too, and gets the bytes of the
    file when it is whole, which until then is in the folder for temporary files. Without `overwrite`, a file at
    `target` is refused, also one that appears meanwhile.
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
        beside = self._real.with_suffix(target.suffix)
        if self._is_special:
            beside = Path(tempfile.gettempdir(), target.name)
        with uninterrupted(), writing_to(target):
            self.path, lock = create_part(beside, lambda path: path.open("xb").close())
            self._remove = Cleanup(self, remove_part, self.path, lock)

    def complete(self) -> None:
        if self._is_special:
            with writing_to(self.target), self.path.open("rb") as whole, self.target.open("wb") as target:
                shutil.copyfileobj(whole, target)
            self._remove()
            return
        with uninterrupted(), writing_to(self.target):
            if not self._overwrite:
                self._real.open("xb").close()  # takes the name, or fails: a rename would replace another file
            os.replace(self.path, self._real)
            self._remove()

    def discard(self) -> None:
        self._remove()


@contextmanager
def part_folder(folder: Path) -> Iterator[Path]:
    """An empty folder on the same disk, which is renamed to `folder` on success and deleted on failure."""
    with writing_to(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise WriterError(f"{folder}: it exists and is not an empty folder; remove it or choose another name.")
        with uninterrupted():
            parent, lock = create_part(folder, Path.mkdir)
            remove = Cleanup(None, remove_part, parent, lock)
    try:
        part = parent / folder.name  # which errors name
        part.mkdir()
        yield part
        with uninterrupted(), writing_to(folder):
            part.rename(folder)
    finally:
        remove()
