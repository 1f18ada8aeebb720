"""Outputs that need no ffmpeg: numbered stills, one picture, a .npy file, and raw frames to standard output."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
from numpy.lib import format as npy_format

from ..errors import WriterError, option
from ..files import PartFile, check_name, create_part, remove_part, writing_to
from ..process import Cleanup, remove_file, uninterrupted
from ..shapes import Size
from .frame_format import FrameFormat
from .live import StandardOutput, write_all
from .sink import Sink, SinkOptions
from .source import match_numbered

#: Writes a frame (height, width, 3) to a file, with the options' metadata.
WriteStill = Callable[[Path, np.ndarray, SinkOptions], object]


class StillsWriter(Sink):
    """Stills, numbered from 0, in a folder (00000.png, 00001.png, ...) or of a pattern such as `a_%05d.png`.

    They are moved there at the end, in one rename if the folder is new. A folder that has, or meanwhile gets, files of
    this pattern is refused: the rest of a longer clip would mix with this one.
    """

    def __init__(
        self, path: str | os.PathLike, size: Size, options: SinkOptions, write: WriteStill, endings: tuple[str, ...]
    ) -> None:
        super().__init__(os.fspath(path), size, options.format)
        self.folder, self._pattern = find_stills_target(path, endings)
        self._moved: list[Path] = []
        # Inside an existing folder, which may be on another file system than its parent; beside a new one.
        beside = self.folder / "stills" if os.path.isdir(self.folder) else self.folder
        with uninterrupted(), writing_to(self.name):
            self._part, lock = create_part(beside, Path.mkdir)
            self._remove = Cleanup(self, _remove_stills, self._part, lock, self._moved)
        self._write = partial(_write_stills, self._part / self._pattern, count(), write, options)

    def _finish(self) -> None:
        with uninterrupted():
            if os.path.isdir(self.folder):
                _refuse_other_stills(self.name, self.folder, self._pattern)
                for index in range(self.frames_written):
                    target = self.folder / (self._pattern % index)
                    # Created first, since a rename replaces a file that another program has just moved here.
                    target.open("xb").close()
                    self._moved.append(target)
                    os.replace(self._part / target.name, target)
            else:
                os.rename(self._part, self.folder)  # fails if another program has created and filled the folder since
            self._moved.clear()  # they stay
            self._remove()

    def _discard(self) -> None:
        self._remove()


class PictureWriter(Sink):
    """The only frame of a clip, as a file like one of `StillsWriter`. It replaces no picture."""

    def __init__(self, path: str | os.PathLike, size: Size, options: SinkOptions, write: WriteStill) -> None:
        super().__init__(os.fspath(path), size, options.format)
        self._target = PartFile(Path(path), overwrite=False)
        self._write = partial(_write_picture, self.name, self._target.path, write, options)


def _write_picture(name: str, path: Path, write: WriteStill, options: SinkOptions, frames: np.ndarray) -> None:
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
    pattern: Path, numbers: Iterator[int], write: WriteStill, options: SinkOptions, frames: np.ndarray
) -> None:
    for frame, number in zip(frames, numbers, strict=False):  # in this order, which takes no number too many
        write(pattern.with_name(pattern.name % number), frame, options)


def _remove_stills(part: Path, lock: int, moved: list[Path]) -> None:
    remove_part(part, lock)
    for still in moved:
        remove_file(still)


def find_stills_target(path: str | os.PathLike, endings: tuple[str, ...]) -> tuple[Path, str]:
    """The folder and the pattern of the names of stills, see `StillsWriter`. Nothing is created."""
    name = os.fspath(path)
    folder, pattern = parse_stills_path(path, endings)
    check_name(folder)
    if os.path.isdir(folder):
        _refuse_other_stills(name, folder, pattern)
    elif os.path.exists(folder):
        raise WriterError(f"{name}: cannot be written ({folder} is a file, not a folder).")
    return folder, pattern


def parse_stills_path(path: str | os.PathLike, endings: tuple[str, ...]) -> tuple[Path, str]:
    """As `find_stills_target`, without the errors of a folder that cannot be used."""
    name = os.fspath(path)
    given = Path(path)
    default = f"%05d{endings[0]}"
    is_folder = name.endswith(("/", os.sep)) or os.path.isdir(given)
    folder, pattern = (given, default) if is_folder else (given.parent, given.name)
    if match_numbered(pattern) is None:
        raise WriterError(f"{name}: use a folder, or a name with exactly one number field, such as {default}.")
    return folder, pattern


def _refuse_other_stills(name: str, folder: Path, pattern: str) -> None:
    numbered = match_numbered(pattern)
    assert numbered is not None
    with writing_to(name):
        present = next((file for file in sorted(os.listdir(folder)) if numbered.fullmatch(file)), None)
    if present:
        raise WriterError(f"{name}: {present} already exists; remove the old stills or use a new folder.")


class NpyWriter(Sink):
    """A `.npy` file `(frames, height, width, 3)` in the dtype of the frames, written frame by frame."""

    def __init__(self, path: str | os.PathLike, size: Size, options: SinkOptions) -> None:
        super().__init__(os.fspath(path), size, options.format)
        self._target = PartFile(Path(path), overwrite=options.overwrite)
        with writing_to(self.name):
            # Unbuffered: what a forked process has in a buffer, it writes when it ends.
            self._file = self._target.path.open("wb", buffering=0)
        self._write = partial(write_all, self._file)
        self._write_header()

    def _write_header(self) -> None:
        width, height = self.size
        shape = self.frames_written, height, width, 3
        header = {"descr": self.frames.dtype.str, "fortran_order": False, "shape": shape}
        # numpy (since 1.23) pads it for a first axis of any length, so that its size does not change.
        npy_format.write_array_header_1_0(self._file, header)

    def _finish(self) -> None:
        self._file.seek(0)
        self._write_header()
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
