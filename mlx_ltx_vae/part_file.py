"""Files that appear under their name only when they are whole."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .cleanup import Cleanup, remove_file, uninterrupted
from .errors import WriterError


@contextmanager
def writing_to(name: str | os.PathLike) -> Iterator[None]:
    """Turn errors of the operating system into a `WriterError` that names the target."""
    try:
        yield
    except OSError as error:
        raise WriterError(f"{name}: cannot be written ({error.strerror or error}).") from error


def part_path(target: Path) -> Path:
    """A hidden, unused name with the same ending beside `target`, so that a rename stays on one file system."""
    return target.with_name(f".{target.stem}.{secrets.token_hex(4)}.part{target.suffix}")


class PartFile:
    """An empty file beside `target`, to be filled and then renamed.

    It is created at once, so that a missing or read-only folder is refused before any work is done. It is removed
    with this object, at the latest when the interpreter exits, so that Ctrl-C at any point leaves nothing behind.

    Raises:
        WriterError: if it cannot be created, or if `target` is a folder.
    """

    def __init__(self, target: Path) -> None:
        if target.is_dir():
            raise WriterError(f"{target}: cannot be written (it is a folder).")
        self.target = target
        self.path = part_path(target)
        with uninterrupted(), writing_to(target):
            self.path.open("xb").close()
            self._remove = Cleanup(self, remove_file, self.path)

    def complete(self) -> None:
        """Rename the file to its target, replacing an earlier file."""
        with uninterrupted(), writing_to(self.target):
            os.replace(self.path, self.target)
            self._remove.cancel()

    def discard(self) -> None:
        """Remove the file if it has not been renamed."""
        self._remove()
