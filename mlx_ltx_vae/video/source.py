"""From the name of a video to what ffmpeg is told to read."""

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ReaderError
from .ffmpeg import file_url
from .stills import NUMBER_FIELD

#: How images end, and the kind of each.
_IMAGES = {
    ".png": "png", ".jpg": "jpg", ".jpeg": "jpg", ".webp": "webp", ".bmp": "bmp", ".tif": "tif", ".tiff": "tif",
}  # fmt: skip
_LINK_NAME = "%06d"


@dataclass(frozen=True)
class VideoSource:
    """An input of ffmpeg's.

    Attributes:
        arguments: for ffmpeg.
        num_images: how many images it is made of; None for a file.
        links: a folder of links to them, which `close` removes.
    """

    arguments: tuple[str, ...]
    num_images: int | None = None
    links: tempfile.TemporaryDirectory | None = None

    def close(self) -> None:
        """Remove the links."""
        if self.links is not None:
            self.links.cleanup()


def find_source(path: Path) -> VideoSource:
    """A file, the images of a folder in natural order (2 before 10), or those of a pattern such as `a_%05d.png`.

    Raises:
        ReaderError: for what is not there, folders without images or with images of several kinds, patterns without
            exactly one number, and numbers that are missing.
    """
    if path.is_dir():
        return _link(_images_of_folder(path))
    if path.is_file():
        return VideoSource(("-i", file_url(path)))
    if "%" in path.name:
        return _link(_images_of_pattern(path))
    raise ReaderError(f"{path}: there is no such file or folder.")


def _images_of_folder(folder: Path) -> list[Path]:
    visible = [entry for entry in _entries(folder) if not entry.name.startswith(".")]
    images = [entry for entry in visible if entry.suffix.lower() in _IMAGES]
    if not images:
        raise ReaderError(f"{folder}: holds no images; known are {', '.join(_IMAGES)}.")
    kinds = sorted({_IMAGES[image.suffix.lower()] for image in images})
    if len(kinds) > 1:
        raise ReaderError(f"{folder}: holds images of several kinds ({', '.join(kinds)}); keep those of one.")
    return sorted(images, key=_natural_order)


def _images_of_pattern(pattern: Path) -> list[Path]:
    if len(NUMBER_FIELD.findall(pattern.name)) != 1 or pattern.name.count("%") != 1:
        raise ReaderError(f"{pattern}: a pattern of images has one number, as in %05d.png.")
    before, after = NUMBER_FIELD.split(pattern.name)
    ours = re.compile(re.escape(before) + r"(\d+)" + re.escape(after))
    numbers = sorted(int(match[1]) for entry in _entries(pattern.parent) if (match := ours.fullmatch(entry.name)))
    if not numbers:
        raise ReaderError(f"{pattern}: there are no such images.")
    images = [pattern.with_name(pattern.name % number) for number in range(numbers[0], numbers[-1] + 1)]
    missing = next((image for image in images if not image.is_file()), None)
    if missing is not None:
        raise ReaderError(f"{missing}: is missing between {images[0].name} and {images[-1].name}.")
    return images


def _entries(folder: Path) -> list[Path]:
    try:
        return [entry for entry in folder.iterdir() if entry.is_file()]
    except OSError as error:
        raise ReaderError(f"{folder}: cannot be read ({error.strerror}).") from error


def _natural_order(path: Path) -> list[str | int]:
    """Text and numbers in turn, so that each is only compared with its like."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", path.name.lower())]


def _link(images: Sequence[Path]) -> VideoSource:
    """Links with consecutive numbers, as ffmpeg reads a series: whatever the images are called."""
    links = tempfile.TemporaryDirectory(prefix="mlx_ltx_vae-")
    name = _LINK_NAME + images[0].suffix
    for number, image in enumerate(images):
        os.symlink(image.absolute(), Path(links.name) / (name % number))
    series = file_url(Path(links.name.replace("%", "%%")) / name)
    return VideoSource(("-f", "image2", "-i", series), len(images), links)
