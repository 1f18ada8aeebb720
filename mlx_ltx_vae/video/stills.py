"""Numbered PNG files."""

import os
import re
import shutil
from pathlib import Path

import imageio.v3 as iio
import numpy as np

from ..errors import WriterError
from ..part_file import part_path, writing_to
from .sink import Sink

_NUMBER_FIELD = re.compile(r"%0?\d{0,2}d")


def match_numbered(pattern: str) -> re.Pattern[str] | None:
    """A regular expression for names such as `a_%05d.png`, with the number as group 1.

    None without exactly one number field.
    """
    parts = _NUMBER_FIELD.split(pattern)
    if len(parts) != 2 or pattern.count("%") != 1:
        return None
    return re.compile(re.escape(parts[0]) + r"(\d+)" + re.escape(parts[1]))


class StillsWriter(Sink):
    """A folder of PNG files, numbered from 0.

    The files are written to a hidden folder and moved at the end, in one rename if the folder is new. A folder with
    files of this pattern is refused, since the remaining frames of a longer clip would mix with this one.

    Args:
        path: a folder (for 00000.png, 00001.png, ...) or a pattern such as `frames/a_%05d.png`.
        bit_depth: 8; imageio writes no color PNG with more.

    Raises:
        WriterError: for a pattern without exactly one number field, and a folder that cannot be used.
    """

    def __init__(self, path: str | os.PathLike, *, size: tuple[int, int], bit_depth: int = 8) -> None:
        super().__init__(os.fspath(path), size, bit_depth)
        if bit_depth != 8:
            raise WriterError(f"{self.name}: PNG stills have 8 bits; write an .mkv with ffv1 to keep more.")
        given = Path(path)
        is_pattern = given.suffix.lower() == ".png" and not given.is_dir()
        self.folder = given.parent if is_pattern else given
        self._pattern = given.name if is_pattern else "%05d.png"
        numbered = match_numbered(self._pattern)
        if numbered is None:
            raise WriterError(f"{self.name}: use a folder, or a name with exactly one number field, such as %05d.png.")
        if self.folder.is_dir():
            with writing_to(self.name):
                present = next((name for name in sorted(os.listdir(self.folder)) if numbered.fullmatch(name)), None)
            if present:
                raise WriterError(f"{self.name}: {present} already exists; remove the old stills or use a new folder.")
        self._index = 0
        # Inside an existing folder, which may be on another file system than its parent; beside a new one.
        self._part = part_path(self.folder / "stills" if self.folder.is_dir() else self.folder)
        with writing_to(self.name):
            self._part.mkdir()

    def _consume(self, frames: np.ndarray) -> None:
        for frame in frames:
            iio.imwrite(self._part / (self._pattern % self._index), frame, plugin="pillow")
            self._index += 1

    def _finish(self) -> None:
        if not self.folder.is_dir():
            os.rename(self._part, self.folder)
            return
        for index in range(self._index):
            name = self._pattern % index
            os.replace(self._part / name, self.folder / name)
        self._part.rmdir()

    def _discard(self) -> None:
        shutil.rmtree(self._part, ignore_errors=True)  # already gone if _finish renamed it
