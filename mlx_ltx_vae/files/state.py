"""Whether a file is still the one that was opened, unchanged."""

import os
from typing import NamedTuple


class FileState(NamedTuple):
    """What a file has in common with itself as long as it is neither replaced nor written to."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, file: int | str | os.PathLike) -> "FileState":
        """Of a descriptor, or of the file that a path leads to now. Raises `OSError` if there is none."""
        status = os.stat(file)
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
