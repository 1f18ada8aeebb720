"""Reading the frames of EXR images."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from fractions import Fraction
from pathlib import Path

import numpy as np

from ..errors import ReaderError
from ..frame_rate import Rate, find_fps
from ..shapes import Size, format_size
from .exr import exr_size, read_exr, resize
from .reader import Fit, check_wanted, fit_size
from .source import exr_images


class ExrReader(Iterator[np.ndarray], AbstractContextManager["ExrReader"]):
    """Reads EXR images, in natural order: an iterator over single frames (1, height, width, 3), float32, as they are.

    Alpha is dropped, and gray becomes RGB. Arguments, attributes and errors are those of `VideoReader`; `path` may be
    one image. Frames of another size are scaled in the values that the images have.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        size: Size | None = None,
        fit: Fit = Fit.EXACT,
        multiple: int = 32,
        first_frame: int = 0,
        max_frames: int | None = None,
        fps: Rate | None = None,
    ) -> None:
        self.name, self.path = os.fspath(path), Path(path)
        check_wanted(self.name, None, first_frame, max_frames)
        self.source_fps, self.start = None, Fraction(0)
        self.fps = None if fps is None else find_fps(self.name, fps, ReaderError)
        images = exr_images(self.path)
        if first_frame >= len(images):
            raise ReaderError(f"{self.name}: ends with frame {len(images) - 1}, before frame {first_frame}.")
        self._images = images[first_frame:][:max_frames]
        self.num_frames = len(self._images)
        self.source_size = exr_size(self._images[0])
        self._scaled, self.size = fit_size(self.name, self.source_size, size, fit, multiple)
        self._waiting = iter(self._images)

    def __next__(self) -> np.ndarray:
        frame = read_exr(next(self._waiting), self.source_size)
        if self._scaled != self.source_size:
            frame = resize(frame, self._scaled)
        left, top = ((self._scaled[axis] - self.size[axis]) // 2 for axis in range(2))
        return frame[None, top : top + self.size[1], left : left + self.size[0]]

    def __repr__(self) -> str:
        return f"ExrReader({self.name!r}, {self.num_frames} frames of {format_size(*self.size)})"

    def close(self) -> None:
        """Stop reading."""
        self._waiting = iter(())

    def __exit__(self, *_: object) -> None:
        self.close()
