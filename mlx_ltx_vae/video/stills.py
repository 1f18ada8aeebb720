"""Outputs that need no ffmpeg: numbered stills, one picture, a contact sheet, a .npy file, and raw frames."""

import io
import math
import os
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
from numpy.lib import format as npy_format
from PIL import Image, ImageDraw, ImageFont

from ..errors import OutputExists, WriterError, option, warn
from ..files import PartFile, PartFolder, check_name, check_replaceable, warn_of_name, writing_to
from ..options import OutputOptions
from ..shapes import Size
from ..units import find_fps
from .pictures import encode_png
from .reader import match_numbered
from .sink import Sink, SinkRequest, check_count, is_folder
from .streams import StandardOutput, write_all

#: Writes a frame (height, width, 3) to a file, with the options' metadata.
WriteStill = Callable[[Path, np.ndarray, OutputOptions], object]


def open_stills(output: SinkRequest, write: WriteStill, endings: tuple[str, ...]) -> Sink:
    """Open stills, numbered from 0, in a folder (00000.png, 00001.png, ...) or of a pattern such as `a_%05d.png`.

    They are moved there at the end, in one rename if the folder is new. A folder that has files of this pattern is
    refused: the rest of a longer clip would mix with this one. If it gets some meanwhile, the stills go to another
    folder. With `overwrite` they replace stills of the same names, and a warning names the others.
    """
    name, options, overwrite = output.name, output.options, bool(output.options.overwrite)
    folder, pattern = find_stills_target(name, endings, overwrite=overwrite)
    stills = PartFolder(folder, _numbered(pattern).fullmatch, overwrite=overwrite, name=name, subfolder="stills")
    write_frames = partial(_write_stills, stills, pattern, count(), write, options)
    complete = partial(_complete_stills, name, stills, pattern)
    return Sink(name, output.size, options.format, write_frames, complete, stills.discard)


def _complete_stills(name: str, stills: PartFolder, pattern: str, num_frames: int) -> str | None:
    moved = stills.complete()
    if moved is not None:
        is_pattern = Path(name) != stills.target
        new_name = os.path.join(moved, pattern if is_pattern else "")
        warn_of_name(name, new_name, has_moved=stills.has_moved)
        return new_name
    written = {pattern % index for index in range(num_frames)}
    if rest := [still for still in _find_stills(name, stills.target, pattern) if still not in written]:
        old_stills = f"{rest[0]} stays" if len(rest) == 1 else f"{rest[0]} to {rest[-1]} ({len(rest)} stills) stay"
        warn(f"{name}: {old_stills} from another clip.")
    return None


def open_picture(output: SinkRequest, write: WriteStill) -> Sink:
    """Open a file for the only frame of a clip, as one of `open_stills`."""
    part = PartFile(Path(output.name), overwrite=bool(output.options.overwrite))
    write_frames = partial(_write_picture, output.name, part, write, output.options)
    return Sink(output.name, output.size, output.options.format, write_frames, lambda _: part.complete(), part.discard)


def _write_picture(name: str, part: PartFile, write: WriteStill, options: OutputOptions, frames: np.ndarray) -> None:
    check_one_frame(name, len(frames) + (part.path.stat().st_size > 0))
    part.write(write, frames[0], options)


def check_one_frame(name: str, num_frames: int) -> None:
    """Raise a `WriterError` if there are more frames than one picture takes."""
    if num_frames > 1:
        raise WriterError(
            f"{name}: is one picture, and there are more frames; name a folder ({Path(name).stem}/) or a pattern "
            f"(%05d{Path(name).suffix}) for all, or decode one of them ({option('frames=(5, 6)', '--frames 5:6')})."
        )


def _write_stills(
    stills: PartFolder,
    pattern: str,
    numbers: Iterator[int],
    write: WriteStill,
    options: OutputOptions,
    frames: np.ndarray,
) -> None:
    for frame, number in zip(frames, numbers, strict=False):  # in this order, which takes no number too many
        stills.write(write, frame, options, name=pattern % number)


def find_stills_target(name: str, endings: tuple[str, ...], *, overwrite: bool) -> tuple[Path, str]:
    """Return the folder and the pattern of the names of stills, see `open_stills`. Nothing is created."""
    folder, pattern = parse_stills_path(name, endings)
    check_name(folder)
    if os.path.isdir(folder):
        present = _find_stills(name, folder, pattern)
        if present and not overwrite:
            way = option("pass overwrite=True", "add -y")
            text = (
                f"{name}: {present[0]} already exists; use a new folder, or {way} to replace stills of the same names."
            )
            raise OutputExists(text, os.path.join(folder, present[0]))
        for still in present:
            check_replaceable(folder / still, overwrite=True)
    elif os.path.exists(folder):
        raise WriterError(f"{name}: cannot be written ({folder} is a file, not a folder).")
    return folder, pattern


def parse_stills_path(name: str, endings: tuple[str, ...]) -> tuple[Path, str]:
    """Return the `find_stills_target`, without the errors of a folder that cannot be used."""
    target, default = Path(name), f"%05d{endings[0]}"
    folder, pattern = (target, default) if is_folder(name) else (target.parent, target.name)
    if match_numbered(pattern) is None:
        raise WriterError(f"{name}: use a folder, or a name with exactly one number field, such as {default}.")
    return folder, pattern


def _find_stills(name: str, folder: Path, pattern: str) -> list[str]:
    """Return the names of files of a pattern, sorted."""
    with writing_to(name):
        return sorted(filter(_numbered(pattern).fullmatch, os.listdir(folder)))


def _numbered(pattern: str) -> re.Pattern[str]:
    numbered = match_numbered(pattern)
    assert numbered is not None  # since `parse_stills_path`
    return numbered


def open_npy(output: SinkRequest) -> Sink:
    """Open a `.npy` file `(frames, height, width, 3)` in the dtype of the frames, which is written frame by frame."""
    part = PartFile(Path(output.name), overwrite=bool(output.options.overwrite))
    with writing_to(output.name):
        file = part.path.open("wb", buffering=0)  # what a forked process has in a buffer, it writes when it ends
        file.seek(len(_npy_header(output, 0)))
    complete, discard = partial(_complete_npy, output, file, part), partial(_discard_npy, file, part)
    return Sink(output.name, output.size, output.options.format, partial(write_all, file), complete, discard)


def _complete_npy(output: SinkRequest, file: io.FileIO, part: PartFile, num_frames: int) -> Path | None:
    file.seek(0)
    write_all(file, _npy_header(output, num_frames))
    file.close()
    return part.complete()


def _discard_npy(file: io.FileIO, part: PartFile) -> None:
    file.close()
    part.discard()


def _npy_header(output: SinkRequest, num_frames: int) -> bytes:
    width, height = output.size
    header = io.BytesIO()
    descr = {"descr": output.options.format.dtype.str, "fortran_order": False, "shape": (num_frames, height, width, 3)}
    npy_format.write_array_header_1_0(header, descr)  # numpy (since 1.23) pads it for a first axis of any length
    return header.getvalue()


def open_raw(output: SinkRequest) -> Sink:
    """Open standard output for raw frames: RGB, in the dtype of the frames (little-endian)."""
    file = StandardOutput("raw frames")
    return Sink(file.name, output.size, output.options.format, file.write)


MAX_PICTURES = 16
LONG_SIDE = 384  # pixels of a picture
GAP = 8  # pixels
LABEL_HEIGHT = 20
_FONT_SIZE = 14
_BACKGROUND, _INK = (24, 24, 24), (208, 208, 208)


def open_sheet(output: SinkRequest) -> Sink:
    """Open a PNG file for a contact sheet. No more than the sheet is in memory."""
    name, num_frames, options = output.name, output.num_frames, output.options
    if num_frames is None:
        raise WriterError(f"{name}: a contact sheet needs the number of frames (num_frames).")
    sheet = ContactSheet(output.size, find_fps(name, output.fps, WriterError), num_frames)
    part = PartFile(Path(output.name), overwrite=bool(options.overwrite))
    return Sink(
        name, output.size, options.format, sheet.add, partial(_complete_sheet, output, sheet, part), part.discard
    )


def _complete_sheet(output: SinkRequest, sheet: "ContactSheet", part: PartFile, num_frames: int) -> Path | None:
    check_count(output.name, num_frames, output.num_frames)
    data = encode_png(np.asarray(sheet.image), output.options.metadata)
    part.path.write_bytes(data)
    return part.complete()


class ContactSheet:
    """Picture with at most 16 frames of a video, each with its time, in rows from left to right.

    They are evenly spaced, and the first and the last frame are among them. The longer side of each is 384 pixels.
    Frames are pasted as they come.
    """

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
