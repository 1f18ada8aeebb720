"""The ffmpeg input for a video file, a folder of images or a pattern."""

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ReaderError
from .ffmpeg import file_url
from .stills import match_numbered

#: Endings of images, and the kind of each.
_IMAGES = {
    ".png": "png", ".jpg": "jpg", ".jpeg": "jpg", ".webp": "webp", ".bmp": "bmp", ".tif": "tif", ".tiff": "tif",
}  # fmt: skip
_LINK_NAME = "%06d"


@dataclass(frozen=True)
class VideoSource:
    """An input of ffmpeg.

    Attributes:
        arguments: for ffmpeg.
        num_images: the number of images; None for a file.
        links: a temporary folder of links to the images, which `close` removes.
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
        ReaderError: for a missing file, folders without images or with images of several kinds, patterns without
            exactly one number field, and gaps in the numbers.
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
        raise ReaderError(f"{folder}: contains no images ({', '.join(_IMAGES)}).")
    kinds = sorted({_IMAGES[image.suffix.lower()] for image in images})
    if len(kinds) > 1:
        raise ReaderError(f"{folder}: contains images of several kinds ({', '.join(kinds)}); keep one kind.")
    return sorted(images, key=_natural_order)


def _images_of_pattern(pattern: Path) -> list[Path]:
    numbered = match_numbered(pattern.name)
    if numbered is None:
        raise ReaderError(f"{pattern}: a pattern of images needs exactly one number field, such as %05d.png.")
    numbers = sorted(int(match[1]) for entry in _entries(pattern.parent) if (match := numbered.fullmatch(entry.name)))
    if not numbers:
        raise ReaderError(f"{pattern}: no image matches this pattern.")
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
    """A sort key of alternating text and numbers, which are compared only with their own type."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", path.name.lower())]


def _link(images: Sequence[Path]) -> VideoSource:
    """An image sequence for ffmpeg: links with consecutive numbers to images of any name."""
    links = tempfile.TemporaryDirectory(prefix="mlx_ltx_vae-")
    name = _LINK_NAME + images[0].suffix
    for number, image in enumerate(images):
        os.symlink(image.absolute(), Path(links.name) / (name % number))
    sequence = file_url(Path(links.name.replace("%", "%%")) / name)
    return VideoSource(("-f", "image2", "-i", sequence), len(images), links)
