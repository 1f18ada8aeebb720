"""Contact sheets: evenly spaced frames of a video in one picture."""

import math
import os
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ..errors import WriterError
from ..files import PartFile
from ..frame_rate import Rate, find_fps
from ..shapes import Size
from .metadata import check_metadata
from .pictures import encode_png
from .sink import Sink, SinkOptions
from .source import match_numbered

MAX_PICTURES = 16
LONG_SIDE = 384  # pixels of a picture
GAP = 8  # pixels
LABEL_HEIGHT = 20
_FONT_SIZE = 14
_BACKGROUND, _INK = (24, 24, 24), (208, 208, 208)


class ContactSheet(Sink):
    """A PNG file with at most 16 pictures of a video, each with its time, in rows from left to right.

    They are evenly spaced, and the first and the last frame are among them. The longer side of each is 384 pixels. No
    more than the sheet is in memory. It replaces no picture.
    """

    def __init__(self, path: str | os.PathLike, size: Size, fps: Rate, num_frames: int, options: SinkOptions) -> None:
        super().__init__(os.fspath(path), size, options.format)
        check_metadata(self.name, options.metadata)
        self._metadata, self._num_frames = options.metadata, num_frames
        self._sheet = _Sheet(size, find_fps(self.name, fps, WriterError), num_frames)
        self._target = PartFile(Path(path), overwrite=False)
        self._path = self._target.path
        self._write = self._sheet.add

    def _finish(self) -> None:
        self._path.write_bytes(encode_png(np.asarray(self._sheet.image), self._metadata))
        super()._finish()


class _Sheet:
    """The picture of a contact sheet, on which frames are pasted as they come."""

    def __init__(self, size: Size, fps: Fraction, num_frames: int) -> None:
        count = min(num_frames, MAX_PICTURES)
        last = max(1, count - 1)
        #: The place of each frame that is shown.
        self._places = {place * (num_frames - 1) // last: place for place in range(count)}
        self._columns = math.ceil(math.sqrt(count))
        width, height = (max(1, round(side * LONG_SIDE / max(size))) for side in size)
        self._size = width, height
        self._fps, self._frame = fps, 0
        rows = math.ceil(count / self._columns)
        right, bottom = self._corner(rows * self._columns - 1)
        extent = right + width + GAP, bottom + height + LABEL_HEIGHT
        self.image = Image.new("RGB", extent, _BACKGROUND)
        self._draw, self._font = ImageDraw.Draw(self.image), ImageFont.load_default(_FONT_SIZE)

    def _corner(self, place: int) -> tuple[int, int]:
        row, column = divmod(place, self._columns)
        width, height = self._size
        return GAP + column * (width + GAP), GAP + row * (height + LABEL_HEIGHT)

    def add(self, frames: np.ndarray) -> None:
        """Take the next frames (n, H, W, 3), uint8 or uint16."""
        for frame in frames:
            if (place := self._places.get(self._frame)) is not None:
                self._paste(frame if frame.dtype == np.uint8 else np.rint(frame / 257).astype(np.uint8), place)
            self._frame += 1

    def _paste(self, frame: np.ndarray, place: int) -> None:
        left, top = self._corner(place)
        self.image.paste(Image.fromarray(frame).resize(self._size, Image.Resampling.BICUBIC), (left, top))
        label = f"{float(self._frame / self._fps):.2f} s"
        middle = left + self._size[0] / 2, top + self._size[1] + LABEL_HEIGHT / 2
        self._draw.text(middle, label, _INK, self._font, anchor="mm")


def is_sheet(output: str) -> bool:
    """Whether an output is a contact sheet, if one is wanted: a .png file, and neither a folder nor a pattern."""
    return output.lower().endswith(".png") and match_numbered(Path(output).name) is None


def sheet_beside(output: str) -> str:
    """The contact sheet of an output: clip.mp4 -> clip.png; f/ or f/%05d.png -> f.png. That of a sheet is itself."""
    path = Path(output)
    if is_sheet(output):
        return output
    is_folder = output.endswith(("/", os.sep)) or os.path.isdir(path)
    if not is_folder and match_numbered(path.name):
        path, is_folder = path.parent, True
    if output == "-" or path.name in ("", ".."):
        name = "standard output" if output == "-" else output
        raise WriterError(f"{name}: has no name for a contact sheet; name a file, or a folder for stills.")
    return str(path.with_name(f"{path.name}.png") if is_folder else path.with_suffix(".png"))
