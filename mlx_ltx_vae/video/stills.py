"""Frames into numbered PNG files."""

import os
import re
import shutil
from pathlib import Path

import imageio.v3 as iio
import numpy as np

from ..errors import WriterError
from ..part_file import part_path, writing_to
from .sink import Sink

_DEFAULT_PATTERN = "%05d.png"
#: In a pattern such as %05d.png.
NUMBER_FIELD = re.compile(r"%0?\d{0,2}d")


class StillsWriter(Sink):
    """A folder of PNG files, numbered from 0.

    The files are written into a hidden folder and moved to their place at the end: all at once if the folder is
    new. A folder that already holds such files is refused, as left-overs of a longer clip would mix with this one.

    Args:
        path: a folder (its files are then called 00000.png, 00001.png, ...) or a pattern such as `frames/a_%05d.png`.
        size: `(width, height)` in pixels.
        bit_depth: 8; imageio writes no colour PNG with more.

    Raises:
        WriterError: for a pattern without exactly one number, and a folder that cannot be used.
    """

    def __init__(self, path: str | os.PathLike, *, size: tuple[int, int], bit_depth: int = 8) -> None:
        super().__init__(os.fspath(path), size, bit_depth)
        if bit_depth != 8:
            raise WriterError(f"{self.name}: PNG stills have 8 bits here; write an .mkv with ffv1 to keep more.")
        given = Path(path)
        is_pattern = given.suffix.lower() == ".png" and not given.is_dir()
        self.folder = given.parent if is_pattern else given
        self._pattern = given.name if is_pattern else _DEFAULT_PATTERN
        self._refuse_unusable()
        self._index = 0
        # Inside an existing folder, which may be on another disk than its parent; beside one that is still to be.
        self._part = part_path(self.folder / "stills" if self.folder.is_dir() else self.folder)
        with writing_to(self.name):
            self._part.mkdir()

    def _refuse_unusable(self) -> None:
        if len(NUMBER_FIELD.findall(self._pattern)) != 1 or self._pattern.count("%") != 1:
            raise WriterError(f"{self.name}: stills need one number in their name, as in %05d.png, or a folder.")
        before, after = NUMBER_FIELD.split(self._pattern)
        ours = re.compile(re.escape(before) + r"\d+" + re.escape(after))
        if self.folder.is_dir():
            with writing_to(self.name):
                present = next((name for name in sorted(os.listdir(self.folder)) if ours.fullmatch(name)), None)
            if present:
                raise WriterError(
                    f"{self.name}: {present} is already there; remove the old stills or name a new folder."
                )

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
        shutil.rmtree(self._part, ignore_errors=True)  # it is gone if _finish got that far
