"""Outputs that need no ffmpeg: numbered stills, one picture, a contact sheet, a .npy file, and raw frames."""

import io
import math
import os
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
from numpy.lib import format as npy_format
from PIL import Image, ImageDraw, ImageFont

from ..errors import WriterError, option, warn
from ..files import PartFile, PartFolder, check_name, check_replaceable, warn_of_name, writing_to
from ..frame_format import FrameFormat
from ..options import OutputOptions
from ..shapes import Size
from ..units import Rate, find_fps
from .pictures import encode_png
from .reader import match_numbered
from .sink import Sink, StandardOutput, write_all

#: Writes a frame (height, width, 3) to a file, with the options' metadata.
WriteStill = Callable[[Path, np.ndarray, OutputOptions], object]


class StillsWriter(Sink):
    """Stills, numbered from 0, in a folder (00000.png, 00001.png, ...) or of a pattern such as `a_%05d.png`.

    They are moved there at the end, in one rename if the folder is new. A folder that has files of this pattern is
    refused: the rest of a longer clip would mix with this one. If it gets some meanwhile, the stills go to another
    folder. With `overwrite` they replace stills of the same names, and a warning names the others.
    """

    def __init__(
        self, path: str | os.PathLike, size: Size, options: OutputOptions, write: WriteStill, endings: tuple[str, ...]
    ) -> None:
        super().__init__(os.fspath(path), size, options.format)
        overwrite = bool(options.overwrite)
        self.folder, self._pattern = find_stills_target(path, endings, overwrite=overwrite)
        numbered = match_numbered(self._pattern)
        assert numbered is not None
        self._find_number = numbered.fullmatch
        self._stills = PartFolder(
            self.folder, self._find_number, overwrite=overwrite, name=self.name, subfolder="stills"
        )
        self._target = self._stills
        self._write = partial(_write_stills, self._stills.path / self._pattern, count(), write, options)

    def _finish(self) -> None:
        moved = self._stills.complete()
        if moved is not None:
            name, is_pattern = self.name, Path(self.name) != self.folder
            self.name = os.path.join(moved, self._pattern if is_pattern else "")
            warn_of_name(name, self.name)
            return
        stills = {self._pattern % index for index in range(self.frames_written)}
        if rest := sorted(set(filter(self._find_number, os.listdir(self.folder))) - stills):
            old_stills = f"{rest[0]} stays" if len(rest) == 1 else f"{rest[0]} to {rest[-1]} ({len(rest)} stills) stay"
            warn(f"{self.name}: {old_stills} from another clip.")


class PictureWriter(Sink):
    """Only frame of a clip, as a file like one of `StillsWriter`."""

    def __init__(self, path: str | os.PathLike, size: Size, options: OutputOptions, write: WriteStill) -> None:
        super().__init__(os.fspath(path), size, options.format)
        self._target = PartFile(Path(path), overwrite=bool(options.overwrite))
        self._write = partial(_write_picture, self.name, self._target.path, write, options)


def _write_picture(name: str, path: Path, write: WriteStill, options: OutputOptions, frames: np.ndarray) -> None:
    check_one_frame(name, len(frames) + (path.stat().st_size > 0))
    write(path, frames[0], options)


def check_one_frame(name: str, num_frames: int) -> None:
    """Raise a `WriterError` if there are more frames than one picture takes."""
    if num_frames > 1:
        raise WriterError(
            f"{name}: is one picture, and there are more frames; name a folder ({Path(name).stem}/) or a pattern "
            f"(%05d{Path(name).suffix}) for all, or decode one of them ({option('frames=(5, 6)', '--frames 5:6')})."
        )


def _write_stills(
    pattern: Path, numbers: Iterator[int], write: WriteStill, options: OutputOptions, frames: np.ndarray
) -> None:
    for frame, number in zip(frames, numbers, strict=False):  # in this order, which takes no number too many
        write(pattern.with_name(pattern.name % number), frame, options)


def find_stills_target(path: str | os.PathLike, endings: tuple[str, ...], *, overwrite: bool) -> tuple[Path, str]:
    """Return the folder and the pattern of the names of stills, see `StillsWriter`. Nothing is created."""
    name = os.fspath(path)
    folder, pattern = parse_stills_path(path, endings)
    check_name(folder)
    if os.path.isdir(folder):
        present = _find_stills(name, folder, pattern)
        if present and not overwrite:
            way = option("pass overwrite=True", "add -y")
            raise WriterError(
                f"{name}: {present[0]} already exists; use a new folder, or {way} to replace stills of the same names."
            )
        for still in present:
            check_replaceable(folder / still, overwrite=True)
    elif os.path.exists(folder):
        raise WriterError(f"{name}: cannot be written ({folder} is a file, not a folder).")
    return folder, pattern


def is_folder(name: str) -> bool:
    """Return whether the name of an output is a folder's."""
    return name.endswith(("/", os.sep)) or os.path.isdir(name)


def parse_stills_path(path: str | os.PathLike, endings: tuple[str, ...]) -> tuple[Path, str]:
    """`find_stills_target`, without the errors of a folder that cannot be used."""
    name, target, default = os.fspath(path), Path(path), f"%05d{endings[0]}"
    folder, pattern = (target, default) if is_folder(name) else (target.parent, target.name)
    if match_numbered(pattern) is None:
        raise WriterError(f"{name}: use a folder, or a name with exactly one number field, such as {default}.")
    return folder, pattern


def _find_stills(name: str, folder: Path, pattern: str) -> list[str]:
    """Return the names of files of a pattern, sorted."""
    numbered = match_numbered(pattern)
    assert numbered is not None
    with writing_to(name):
        return [file for file in sorted(os.listdir(folder)) if numbered.fullmatch(file)]


class NpyWriter(Sink):
    """`.npy` file `(frames, height, width, 3)` in the dtype of the frames, written frame by frame."""

    def __init__(self, path: str | os.PathLike, size: Size, options: OutputOptions) -> None:
        super().__init__(os.fspath(path), size, options.format)
        self._target = PartFile(Path(path), overwrite=bool(options.overwrite))
        with writing_to(self.name):
            # Unbuffered: what a forked process has in a buffer, it writes when it ends.
            self._file = self._target.path.open("wb", buffering=0)
            self._file.seek(len(self._header()))
        self._write = partial(write_all, self._file)

    def _header(self) -> bytes:
        width, height = self.size
        shape = self.frames_written, height, width, 3
        header = io.BytesIO()
        # numpy (since 1.23) pads it for a first axis of any length, so that its size does not change.
        npy_format.write_array_header_1_0(
            header, {"descr": self.frames.dtype.str, "fortran_order": False, "shape": shape}
        )
        return header.getvalue()

    def _finish(self) -> None:
        self._file.seek(0)
        write_all(self._file, self._header())
        self._file.close()
        super()._finish()

    def _discard(self) -> None:
        self._file.close()
        super()._discard()


class RawWriter(Sink):
    """Raw frames to standard output: RGB, in the dtype of the frames (little-endian)."""

    def __init__(self, size: Size, frames: FrameFormat) -> None:
        super().__init__("standard output", size, frames)
        self._write = StandardOutput("raw frames").write


MAX_PICTURES = 16
LONG_SIDE = 384  # pixels of a picture
GAP = 8  # pixels
LABEL_HEIGHT = 20
_FONT_SIZE = 14
_BACKGROUND, _INK = (24, 24, 24), (208, 208, 208)


class ContactSheet(Sink):
    """PNG file with at most 16 pictures of a video, each with its time, in rows from left to right.

    They are evenly spaced, and the first and the last frame are among them. The longer side of each is 384 pixels. No
    more than the sheet is in memory.
    """

    def __init__(self, path: str | os.PathLike, size: Size, fps: Rate, num_frames: int, options: OutputOptions) -> None:
        super().__init__(os.fspath(path), size, options.format)
        self._metadata, self._num_frames = options.metadata, num_frames
        self._sheet = _Sheet(size, find_fps(self.name, fps, WriterError), num_frames)
        self._target = PartFile(Path(path), overwrite=bool(options.overwrite))
        self._path = self._target.path
        self._write = self._sheet.add

    def _finish(self) -> None:
        self._path.write_bytes(encode_png(np.asarray(self._sheet.image), self._metadata))
        super()._finish()


class _Sheet:
    """Picture of a contact sheet, on which frames are pasted as they come."""

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
    """Return whether an output would be a contact sheet: a .png file, and neither a folder nor a pattern."""
    return output.lower().endswith(".png") and match_numbered(Path(output).name) is None


def sheet_beside(output: str) -> str:
    """Return the contact sheet of an output: clip.mp4 -> clip.png; f/ or f/%05d.png -> f.png. A sheet is its own."""
    path = Path(output)
    if is_sheet(output):
        return output
    is_of_folder = is_folder(output)
    if not is_of_folder and match_numbered(path.name):
        path, is_of_folder = path.parent, True
    if output == "-" or path.name in ("", ".."):
        name = "standard output" if output == "-" else output
        raise WriterError(f"{name}: has no name for a contact sheet; name a file, or a folder for stills.")
    return str(path.with_name(f"{path.name}.png") if is_of_folder else path.with_suffix(".png"))
