"""The ffmpeg input for a video file, a folder of images or a pattern."""

import os
import re
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path

from ..errors import ReaderError, excerpt, option
from ..files import copy_error, explain_missing, standard_input
from ..process import temporary_folder
from .ffmpeg import input_arguments
from .metadata import check_text

_IMAGES = {
    ".png": "png", ".jpg": "jpg", ".jpeg": "jpg", ".webp": "webp", ".bmp": "bmp", ".tif": "tif", ".tiff": "tif",
    ".exr": "exr",
}  # fmt: skip
_NUMBER_FIELD = re.compile(r"%0?\d{0,2}d")


def source_files(path: Path) -> list[Path]:
    """The files of a video: itself, or its images. None if they cannot be read, which `find_source` raises."""
    with suppress(ReaderError):
        return [path] if os.path.isfile(path) else _images(path)
    return []


def is_exr(path: Path) -> bool:
    """Whether a file is an EXR image by its name."""
    return path.suffix.lower() == ".exr"


def exr_images(path: Path) -> list[Path]:
    """The EXR images that a path names: a file, or those of a folder or a pattern."""
    images = [path] if os.path.isfile(path) else _images(path)
    if not is_exr(images[0]):
        raise ReaderError(f"{path}: is not EXR, which alone has a color space for HDR; leave out --hdr.")
    return images


def _refuse_exr(path: Path, first: Path) -> None:
    """Raise a `ReaderError` for images whose numbers are no colors of a display."""
    if is_exr(first):
        way = option(
            "read it with mlx_ltx_vae.video.ExrReader, and convert it with mlx_ltx_vae.hdr",
            "add --hdr srgb_linear, acescg or acescct",
        )
        raise ReaderError(f"{path}: is EXR, whose numbers mean light of a color space that must be known; {way}.")


def copy_standard_input(stack: ExitStack) -> Path:
    """Copy the video that comes from standard input to a file, which `stack` removes: ffmpeg has to seek in it."""
    stream = standard_input("a video", ReaderError)
    folder = stack.enter_context(temporary_folder())
    path = folder / "video"
    try:
        with path.open("wb") as copy:
            shutil.copyfileobj(stream, copy)
    except OSError as error:
        raise copy_error("standard input", folder, error, ReaderError) from error
    if not path.stat().st_size:
        raise ReaderError("standard input is empty; pipe a video into it, or name one.")
    return path


def find_source(path: Path, stack: ExitStack, max_images: int | None) -> tuple[list[str], list[Path]]:
    """The arguments for ffmpeg to read `path`, and the images that it reads. `stack` removes links to them."""
    if os.path.isfile(path):  # which, unlike `Path.is_file`, takes a name that is too long
        _refuse_exr(path, path)
        check_text(path)
        return input_arguments(path), []
    images = _images(path)[:max_images]
    _refuse_exr(path, images[0])
    for image in images:
        # ffmpeg would end the clip at an empty image, and at one that it cannot open, without an error.
        try:
            with image.open("rb") as file:
                is_empty = not file.read(1)
        except OSError as error:
            raise ReaderError(f"{image}: cannot be read ({error.strerror}).") from error
        if is_empty:
            raise ReaderError(f"{image}: is empty; remove it or replace it by an image.")
        check_text(image)
    # ffmpeg reads image sequences with consecutive numbers, so it is given links of such names.
    links = stack.enter_context(temporary_folder())
    name = "%06d" + images[0].suffix
    for number, image in enumerate(images):
        os.symlink(image.absolute(), links / (name % number))
    return ["-f", "image2", *input_arguments(Path(str(links).replace("%", "%%")) / name)], images


def _images(path: Path) -> list[Path]:
    if os.path.isdir(path):
        return _images_of_folder(path)
    if "%" in path.name:
        return _images_of_pattern(path)
    raise ReaderError(f"{excerpt(path, 200)}: {explain_missing(path, 'file or folder')}")


def match_numbered(pattern: str) -> re.Pattern[str] | None:
    """A pattern for names such as `a_%05d.png`, with the number as group 1; None without exactly one number field."""
    parts = _NUMBER_FIELD.split(pattern)
    if len(parts) != 2 or pattern.count("%") != 1:
        return None
    return re.compile(re.escape(parts[0]) + r"(\d+)" + re.escape(parts[1]))


def _images_of_folder(folder: Path) -> list[Path]:
    visible = [entry for entry in _entries(folder) if not entry.name.startswith(".")]
    images = [entry for entry in visible if entry.suffix.lower() in _IMAGES]
    if not images:
        raise ReaderError(f"{folder}: contains no images ({', '.join(_IMAGES)}).")
    kinds = sorted({_IMAGES[image.suffix.lower()] for image in images})
    if len(kinds) > 1:
        raise ReaderError(f"{folder}: contains images of several kinds ({', '.join(kinds)}); keep one kind.")
    return sorted(images, key=_natural_order)  # 2 before 10


def _images_of_pattern(pattern: Path) -> list[Path]:
    numbered = match_numbered(pattern.name)
    if numbered is None:
        raise ReaderError(f"{pattern}: a pattern of images needs exactly one number field, such as %05d.png.")
    numbers = sorted(int(match[1]) for entry in _entries(pattern.parent) if (match := numbered.fullmatch(entry.name)))
    if not numbers:
        raise ReaderError(f"{pattern}: no image matches this pattern.")
    images = [pattern.with_name(pattern.name % number) for number in range(numbers[0], numbers[-1] + 1)]
    missing = next((image for image in images if not os.path.isfile(image)), None)
    if missing is not None:
        raise ReaderError(f"{missing}: is missing between {images[0].name} and {images[-1].name}.")
    return images


def _entries(folder: Path) -> list[Path]:
    try:
        # A broken link is kept, so that it is an error and not a missing frame.
        return [entry for entry in folder.iterdir() if entry.is_file() or not entry.exists()]
    except OSError as error:
        raise ReaderError(f"{folder}: cannot be read ({error.strerror}).") from error


def _natural_order(path: Path) -> list[str | int]:
    """A sort key of alternating text and numbers, which are compared only with their own type."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", path.name.lower())]
