"""Video sources that users name: a file, a folder of images or a pattern, and the size of its frames."""

import os
import re
from contextlib import ExitStack, suppress
from enum import Enum, auto
from fractions import Fraction
from pathlib import Path

from ..errors import ReaderError, excerpt, option, quote
from ..files import START_BYTES, Format, copy_stream, explain_missing, find_format, standard_input
from ..process import temporary_folder
from ..shapes import MAX_PIXELS, Size, format_size, is_possible_size
from .ffmpeg import input_arguments
from .metadata import check_text

_IMAGES = {
    ".png": "png", ".jpg": "jpg", ".jpeg": "jpg", ".webp": "webp", ".bmp": "bmp", ".tif": "tif", ".tiff": "tif",
    ".exr": "exr",
}  # fmt: skip
_NUMBER_FIELD = re.compile(r"%0?\d{0,2}d")
#: The matrices that users can choose, by the names of the standards.
MATRIX_NAMES = {"bt601": "smpte170m", "bt709": "bt709"}


class Fit(Enum):
    """How frames of another size are handled."""

    EXACT = auto()  # refused
    RESIZE = auto()  # each side is scaled
    CROP = auto()  # scaled until they cover the requested size, if any; the excess is cut off evenly on both sides


def source_files(path: Path) -> list[Path]:
    """The files of a video: itself, or its images. None if they cannot be read, which `find_source` raises."""
    with suppress(ReaderError):
        return [path] if os.path.isfile(path) else _images(path)
    return []


def is_exr(path: Path) -> bool:
    """Return whether a file is an EXR image by its name."""
    return path.suffix.lower() == ".exr"


def exr_images(path: Path) -> list[Path]:
    """The EXR images that a path names: a file, or the images of a folder or a pattern."""
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


def _refuse_arrays(path: Path, name: str) -> None:
    """Raise a `ReaderError` for a file of latents."""
    with suppress(OSError), path.open("rb") as file:
        if find_format(file.read(START_BYTES)) in (Format.SAFETENSORS, Format.NPY, Format.ZIP):
            raise ReaderError(f"{name}: contains arrays, and no video; to turn latents into a video, use decode.")


def copy_standard_input(stack: ExitStack) -> Path:
    """Copy the video that comes from standard input to a file, which `stack` removes: ffmpeg has to seek in it."""
    stream = standard_input("a video", ReaderError)
    path = stack.enter_context(temporary_folder()) / "video"
    copy_stream(stream, path, "standard input", ReaderError)
    if not path.stat().st_size:
        raise ReaderError("standard input is empty; pipe a video into it, or name one.")
    _refuse_arrays(path, "standard input")
    return path


def find_source(path: Path, stack: ExitStack, max_images: int | None) -> tuple[list[str], list[Path]]:
    """The arguments for ffmpeg to read `path`, and the images that it reads. `stack` removes links to them."""
    if os.path.isfile(path):  # which, unlike `Path.is_file`, takes a name that is too long
        _refuse_exr(path, path)
        _refuse_arrays(path, str(path))
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


def check_wanted(name: str, matrix: str | None, first_frame: int, max_frames: int | None) -> None:
    """Raise a `ReaderError` for arguments of `VideoReader` that no video has."""
    if matrix not in (None, *MATRIX_NAMES):
        raise ReaderError(f"{name}: the matrix {quote(matrix)} is not one of {', '.join(MATRIX_NAMES)}.")
    if max_frames is not None and max_frames < 1:
        raise ReaderError(f"{name}: cannot read {max_frames} frames; the maximum must be at least 1.")
    if first_frame < 0:
        raise ReaderError(f"{name}: cannot begin with frame {first_frame}; the first is 0.")


def fit_size(name: str, source: Size, wanted: Size | None, fit: Fit, multiple: int) -> tuple[Size, Size]:
    """The size to scale frames to, and the size to crop to then: `wanted`, or the nearest with sides of `multiple`."""
    if wanted is not None and any(side < 1 or side % multiple for side in wanted):
        raise ReaderError(f"{name}: cannot become {format_size(*wanted)}; both sides must be multiples of {multiple}.")
    if wanted is not None and not is_possible_size(wanted):
        raise ReaderError(f"{name}: cannot become {format_size(*wanted)}; frames have at most {MAX_PIXELS:,} pixels.")
    resize = option("fit=Fit.RESIZE", "--resize")
    width, height = source
    within = width // multiple * multiple, height // multiple * multiple
    nearest = max(1, round(width / multiple)) * multiple, max(1, round(height / multiple)) * multiple
    if fit is Fit.RESIZE:
        target = wanted or nearest
        return target, target
    if fit is Fit.CROP and wanted is not None:
        factor = max(Fraction(wanted[0], width), Fraction(wanted[1], height))
        # One side becomes exactly the requested one, the other at least that, also after rounding.
        return (round(width * factor), round(height * factor)), wanted
    if fit is Fit.CROP:
        if 0 in within:
            raise ReaderError(
                f"{name}: {format_size(*source)} cannot be cropped to multiples of {multiple}; resize it to "
                f"{format_size(*nearest)} ({resize}) or to another size ({option('size=', '--size WxH')})."
            )
        return source, within
    if source != (wanted or within):
        expected = f"both sides must be multiples of {multiple}" if wanted is None else f"not {format_size(*wanted)}"
        crop = "" if 0 in within else f", crop it to {format_size(*within)} ({option('fit=Fit.CROP', '--crop')})"
        raise ReaderError(
            f"{name}: is {format_size(*source)}, and {expected}; resize it to {format_size(*nearest)} ({resize})"
            f"{crop}, or choose a size ({option('size=', '--size WxH')})."
        )
    return source, source
