"""Reading the frames of a video file or of images, a few at a time, from the sources that users name."""

import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import replace
from enum import Enum, auto
from fractions import Fraction
from itertools import chain, count, islice, repeat
from math import ceil
from pathlib import Path

import numpy as np

from ..errors import ReaderError, excerpt, option, quote, warn
from ..files import (
    START_BYTES,
    Format,
    copy_stream,
    expand_path,
    explain_missing,
    find_format,
    is_pipe,
    standard_input,
    temporary_folder,
)
from ..frame_format import RGB8, RGB16, FrameFormat
from ..shapes import MAX_PIXELS, Size, format_size, is_possible_size
from ..units import MAX_FPS, Rate, find_fps, format_count
from .compression import check_crf, write_compressed
from .ffmpeg import FfmpegDecoder, input_arguments
from .filters import MATRICES, check_zscale, conversion, is_unknown, to_bt709
from .metadata import check_text
from .probe import FIRST_STREAM, VideoInfo, describe_pixel_format, probe
from .tone_mapping import ToneMap

_IMAGES = {
    ".png": "png", ".jpg": "jpg", ".jpeg": "jpg", ".webp": "webp", ".bmp": "bmp", ".tif": "tif", ".tiff": "tif",
    ".exr": "exr",
}  # fmt: skip
IMAGE_ENDINGS = tuple(_IMAGES)
_NUMBER_FIELD = re.compile(r"%0?\d{0,2}d")
#: The matrices that users can choose, by the names of the standards.
MATRIX_NAMES = {"bt601": "smpte170m", "bt709": "bt709"}
_FRAMES_AT_ONCE = 8
# From either of these sizes on, players assume BT.709 for a video without a tagged matrix.
_HD_WIDTH, _HD_HEIGHT = 1280, 577
# A frame of a constant rate may come this much of an interval early or late without being moved to another tick.
_JITTER = Fraction(2, 5)
_ROUNDING = Fraction(1, 4)  # the same after a pause
# ffmpeg's filters that undo and make each of the orientations of EXIF.
_TURNS = {
    1: ([], []),
    2: (["hflip"], ["hflip"]),
    3: (["hflip", "vflip"], ["hflip", "vflip"]),
    4: (["vflip"], ["vflip"]),
    5: (["transpose=cclock_flip"], ["transpose=cclock_flip"]),
    6: (["transpose=cclock"], ["transpose=clock"]),
    7: (["transpose=clock_flip"], ["transpose=clock_flip"]),
    8: (["transpose=clock"], ["transpose=cclock"]),
}  # fmt: skip
_TRANSPOSED = (5, 6, 7, 8)


class Fit(Enum):
    """How frames of another size are handled."""

    EXACT = auto()  # refused
    RESIZE = auto()  # each side is scaled
    CROP = auto()  # scaled until they cover the requested size, if any; the excess is cut off evenly on both sides


def source_files(path: Path) -> list[Path]:
    """Return the files of a video: itself, or its images. Raises a `ReaderError` if there is none."""
    return [path] if os.path.isfile(path) else _images(path)


def is_exr(path: Path) -> bool:
    """Return whether a file is an EXR image by its name."""
    return path.suffix.lower() == ".exr"


def exr_images(path: Path) -> list[Path]:
    """Return the EXR images that a path names: a file, or the images of a folder or a pattern."""
    images = source_files(path)
    if not is_exr(images[0]):
        way = option("leave out hdr=, or use VideoReader", "leave out --hdr")
        raise ReaderError(f"{path}: is not EXR, which alone has a color space for HDR; {way}.")
    return images


def _refuse_exr(path: Path, first: Path) -> None:
    """Raise a `ReaderError` for images whose numbers are no colors of a display."""
    if is_exr(first):
        way = option(
            "read it with mlx_ltx_vae.video.ExrReader, and convert it with mlx_ltx_vae.hdr",
            "add --hdr srgb_linear, acescg or acescct",
        )
        raise ReaderError(f"{path}: is EXR, and its color space must be known; {way}.")


def _refuse_arrays(path: Path, name: str) -> None:
    """Raise a `ReaderError` for a file of latents."""
    with suppress(OSError), path.open("rb") as file:
        if find_format(file.read(START_BYTES)) in (Format.SAFETENSORS, Format.NPY, Format.ZIP):
            raise ReaderError(
                f"{name}: contains arrays, and no video; name the file of latents to encode them, or use decode."
            )


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
    """Return the arguments for ffmpeg to read `path`, and the images that it reads. `stack` removes links to them."""
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
    if is_pipe(path):
        way = option('name it "-" and make the pipe standard input', f"use - < {shlex.quote(str(path))}")
        raise ReaderError(f"{excerpt(path, 200)}: is a named pipe, and a video is a file; {way}.")
    if "%" in path.name:
        return _images_of_pattern(path)
    raise ReaderError(f"{excerpt(path, 200)}: {explain_missing(path, 'file or folder')}")


def match_numbered(pattern: str) -> re.Pattern[str] | None:
    """Return a pattern for names such as `a_%05d.png`, with the number as group 1, or `None` without a number."""
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
    """Return a sort key of alternating text and numbers, which are compared only with their own type."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", path.name.lower())]


def check_wanted(name: str, matrix: str | None, first_frame: int, max_frames: int | None) -> None:
    """Raise a `ReaderError` for arguments of `VideoReader` that no video has."""
    if matrix not in (None, *MATRIX_NAMES):
        raise ReaderError(f"{name}: the matrix {quote(matrix)} is not one of {', '.join(MATRIX_NAMES)}.")
    if max_frames is not None and max_frames < 1:
        raise ReaderError(f"{name}: cannot read {max_frames} frames; the maximum must be at least 1.")
    if first_frame < 0:
        raise ReaderError(f"{name}: cannot begin with frame {first_frame}; the first is 0.")


def fit_size(name: str, source: Size, requested: Size | None, fit: Fit, multiple: int) -> tuple[Size, Size]:
    """Return the sizes to scale and then crop frames to: `requested`, or the nearest with sides of `multiple`."""
    if not isinstance(fit, Fit):
        raise ReaderError(f"{name}: the fit {quote(fit)} is not one of {', '.join(map(str, Fit))}.")
    if requested is not None and any(side < 1 or side % multiple for side in requested):
        raise ReaderError(
            f"{name}: cannot become {format_size(*requested)}; both sides must be multiples of {multiple}."
        )
    if requested is not None and not is_possible_size(requested):
        raise ReaderError(
            f"{name}: cannot become {format_size(*requested)}; frames have at most {MAX_PIXELS:,} pixels."
        )
    resize = option("fit=Fit.RESIZE", "--resize")
    width, height = source
    within = width // multiple * multiple, height // multiple * multiple
    nearest = max(1, round(width / multiple)) * multiple, max(1, round(height / multiple)) * multiple
    if fit is Fit.RESIZE:
        target = requested or nearest
        return target, target
    if fit is Fit.CROP and requested is not None:
        factor = max(Fraction(requested[0], width), Fraction(requested[1], height))
        # One side becomes exactly the requested one, the other at least that, also after rounding.
        return (round(width * factor), round(height * factor)), requested
    if fit is Fit.CROP:
        if 0 in within:
            raise ReaderError(
                f"{name}: {format_size(*source)} cannot be cropped to multiples of {multiple}; resize it to "
                f"{format_size(*nearest)} ({resize}) or to another size ({option('size=', '--size WxH')})."
            )
        return source, within
    if source != (requested or within):
        expected = (
            f"both sides must be multiples of {multiple}" if requested is None else f"not {format_size(*requested)}"
        )
        crop = "" if 0 in within else f", crop it to {format_size(*within)} ({option('fit=Fit.CROP', '--crop')})"
        raise ReaderError(
            f"{name}: is {format_size(*source)}, and {expected}; resize it to {format_size(*nearest)} ({resize})"
            f"{crop}, or choose a size ({option('size=', '--size WxH')})."
        )
    return source, source


class VideoReader(Iterator[np.ndarray], AbstractContextManager["VideoReader"]):
    """Reads a video: an iterator over its frames in order, and a context manager.

        with VideoReader("clip.mp4", size=(768, 512), fit=Fit.CROP) as video:
            for frames in video:  # uint8 (n, 512, 768, 3)
                ...

    Frames are full-range RGB as a player shows them: rotated as the metadata says, HDR (HLG and PQ) tone-mapped, other
    primaries and transfer functions converted to BT.709 (stills to sRGB), pixels made square by a change of the width,
    fields deinterlaced, transparent pixels over black. A warning (`UserWarning`) says what was changed.

    Videos are converted to the constant rate `fps` at unchanged speed, by repeating and dropping frames; at the end, a
    warning counts these if the rate varies and no `fps` was given. Closing the reader ends ffmpeg.

    Args:
        path: a video or GIF, a folder of images (in natural order: 2 before 10), or a pattern such as `a_%05d.png`;
            "-" for a video on standard input, which is copied to the folder for temporary files.
        size: `(width, height)` of the returned frames; None for the video's own size, or the nearest valid one.
        multiple: both sides of the returned frames are multiples of this.
        first_frame: the first frame to return, counted from 0 at the rate `fps`; those before it are read and dropped.
        max_frames: the largest number of frames to return; None for all.
        fps: the frame rate to convert a video to (see `parse_fps`), or the rate of images; None for the video's own.
        matrix: "bt601" or "bt709", instead of the color matrix that the file states. None for the file's; one that
            states none is read as BT.601, with a warning from 1280 pixels wide or 577 high on.
        as_stored: whether colors, oblong pixels and fields are read as they are stored.
        crf: of a single image, which goes through one frame of H.264 before it is scaled, see `compress_still`; 0 for
            none.

    Attributes:
        path: the file, folder or pattern; until the reader is closed, a file with what comes from standard input.
        source_size: `(width, height)` in the file, after rotation, with square pixels.
        scaled_size: `(width, height)` to which frames are scaled before they are cropped.
        source_fps: frames per second in the file, exactly (if it varies, on average, or the usual rate of an
            animation); None for images.
        fps: frames per second that are returned; None for images without a given rate.
        num_frames: approximate; None if it is unknown.
        start: the time in the file of the first frame that is returned, in seconds; 0 for images.
        dtype: uint8; uint16 over the full range if the source has more than 8 bits, or its HDR was tone-mapped.

    Raises:
        ReaderError: for a file that cannot be read and a size that cannot be fitted; while iterating, for a file that
            is damaged or truncated, that ends before `first_frame`, an image that cannot be read, and images of
            different sizes.
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
        matrix: str | None = None,
        as_stored: bool = False,
        crf: float = 0,
    ) -> None:
        path = expand_path(path, ReaderError)
        self.name = "standard input" if path == "-" else path
        check_wanted(self.name, matrix, first_frame, max_frames)
        check_crf(self.name, crf)
        wanted_fps = None if fps is None else find_fps(self.name, fps, ReaderError)
        check_zscale(ReaderError)
        end_frame = None if max_frames is None else first_frame + max_frames
        with ExitStack() as stack:
            self.path = copy_standard_input(stack) if path == "-" else Path(path)
            source = self.path
            if crf:
                source = self._compress(stack.enter_context(temporary_folder()), matrix, crf, as_stored)
            arguments, self._images = find_source(source, stack, end_frame)
            if self._images:
                _check_image(self._images[0])  # ffmpeg would skip it and describe the next one
            first_file = self._images[0] if self._images else source
            info = probe(self.name, first_file, arguments)
            if as_stored:
                info = replace(info, pixel_shape=Fraction(1), is_interlaced=False)
            elif changes := info.changes():
                keep = option("as_stored=True", "--as-stored")
                warn(f"{self.name}: is {' and '.join(changes)}, as players show it; {keep} reads it as it is.")
            for text in info.warnings(self.name) if not as_stored else ():
                warn(text)
            stored = _format_as_read(self.name, info, matrix)
            bits, has_alpha = describe_pixel_format(stored.pixel_format)
            self.scaled_size, self.size = fit_size(self.name, info.shown_size, size, fit, multiple)
            self.source_size, self.source_fps = info.shown_size, info.fps
            self.fps = wanted_fps or info.fps
            num_frames = len(self._images) or estimate_num_frames(info, self.fps, end_frame)
            self.num_frames = None if num_frames is None else max(1, num_frames - first_frame)
            converts_colors = bool(info.colors) and info.has_known_colors and not as_stored
            is_hdr = converts_colors and stored.is_hdr
            self._tone_map = ToneMap(stored, info.peak) if is_hdr else None
            self.dtype = (frames := RGB16 if bits > 8 or is_hdr else RGB8).dtype
            filters = _filters(
                stored,
                info,
                self.scaled_size,
                self.size,
                frames,
                has_alpha=has_alpha or info.is_pictures,
                converts_colors=converts_colors,
            )
            output = ["-map", FIRST_STREAM, "-vf", filters, "-fps_mode", "passthrough", "-f", "rawvideo"]
            self._ffmpeg = FfmpegDecoder(self.name, [*arguments, *output])
            stack.callback(self._ffmpeg.close)
            self._resources = stack.pop_all()
        self._rate: RateConverter | None = None  # what has no times has none
        self.start = info.start
        if not info.is_still and self.fps is not None:
            # The last picture of an animation may be shown for any time. Other files state when the next frame would be
            # decoded, which need not be how long the last one is shown.
            length = info.seconds if info.is_pictures else None
            self._rate = RateConverter(self.fps, info.fps, is_variable=info.is_variable, length=length)
            self.start += first_frame / self.fps
        self._warns_of_rate = wanted_fps is None
        self._num_left = sys.maxsize if max_frames is None else max_frames
        self._first_frame, self._num_dropped = first_frame, 0
        self._num_read, self._has_ended = 0, False
        # Held from one read to the next is the last frame: the time of the next decides how often it is returned.
        self._buffer = np.empty((0, *self.size[::-1], 3), self.dtype)
        self._indices: Iterator[int] = iter(())  # of the frames to return, with repetitions

    def __next__(self) -> np.ndarray:
        """Return the next frames `(n, height, width, 3)`, n at most 8. A closed reader has no more."""
        try:
            while not (chosen := list(islice(self._indices, min(_FRAMES_AT_ONCE, self._num_left)))):
                if self._num_left == 0 or self._has_ended:
                    raise StopIteration
                self._indices = self._read()
            self._num_left -= len(chosen)
            if self._num_left == 0 and not self._has_ended:
                self._ffmpeg.finish(is_enough=True)
                self._resources.close()
        except BaseException:  # the end, an error, Ctrl-C
            self.close()
            raise
        first, last = chosen[0], chosen[-1]
        are_all = chosen == list(range(first, last + 1))
        frames = self._buffer[first : last + 1] if are_all else self._buffer[chosen]
        return frames if self._tone_map is None else self._tone_map.apply(frames)

    def __repr__(self) -> str:
        rate = "" if self.fps is None else f" at {float(self.fps):.6g} fps"
        frames = "frames" if self.num_frames is None else format_count(self.num_frames, "frame")
        return f"VideoReader({self.name!r}, {frames} of {format_size(*self.size)}{rate})"

    def close(self) -> None:
        """Stop reading. A second call does nothing."""
        self._num_left = 0
        self._resources.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compress(self, folder: Path, matrix: str | None, crf: float, as_stored: bool) -> Path:
        """Write the only image of the source, compressed, to a file in a folder."""
        with VideoReader(self.path, multiple=1, max_frames=2, matrix=matrix, as_stored=as_stored) as original:
            frames = np.concatenate(list(original))
        if original.source_fps is not None or len(frames) > 1:
            what = option("crf=", "--compress")
            raise ReaderError(f"{self.name}: {what} is for one image, and this is a video or several; leave it out.")
        return write_compressed(folder, frames, crf)

    def _read(self) -> Iterator[int]:
        """Read frames after the one that is held, and return the indices in the buffer of the frames to return."""
        held = self._buffer[-1:]
        buffer = np.empty((_FRAMES_AT_ONCE + 1, *held.shape[1:]), self.dtype)
        buffer[: len(held)] = held
        num_frames, rest = divmod(self._ffmpeg.read_into(buffer[len(held) :].data.cast("B")), buffer[0].nbytes)
        self._num_read += num_frames
        self._has_ended = len(held) + num_frames < len(buffer)
        self._buffer = buffer[: len(held) + num_frames]
        times = self._ffmpeg.read_times(num_frames)
        # For each frame, how often the one before it is returned; the first of all has none before it.
        counts = [1 if self._rate is None else self._rate.add(time) for time in times][1 - len(held) :]
        if self._has_ended:
            self._check_end(rest)
            self._resources.close()
            if self._num_read:
                counts.append(1 if self._rate is None else self._rate.end())
            if self._rate is not None and self._warns_of_rate and (text := self._rate.warning(self.name)):
                warn(text)
        indices = chain.from_iterable(map(repeat, count(), counts))
        dropped = min(sum(counts), self._first_frame - self._num_dropped)
        self._num_dropped += dropped
        if self._has_ended and dropped == sum(counts) and self._first_frame:
            raise ReaderError(
                f"{self.name}: ends with frame {self._num_dropped - 1}, before frame {self._first_frame}."
            )
        return islice(indices, dropped, None)

    def _check_end(self, rest: int) -> None:
        """Raise an error if ffmpeg has failed. `rest` is the number of bytes after the last whole frame."""
        try:
            self._ffmpeg.finish()
            if rest:
                raise ReaderError(f"{self.name}: ffmpeg ended in the middle of a frame.")
            if self._num_read < len(self._images):
                raise ReaderError(f"{self.name}: ffmpeg read only {self._num_read} of {len(self._images)} images.")
        except ReaderError as error:
            if "non positive size for width" in str(error).removeprefix(self.name):  # see `_filters`
                raise ReaderError(
                    f"{self.name}: its frames have different sizes; the first is {format_size(*self.source_size)}."
                ) from error
            # ffmpeg does not say which image it could not read; most likely the one after the last frame.
            for image in self._images[self._num_read :] + self._images[: self._num_read]:
                _check_image(image)
            raise


def _check_image(path: Path) -> None:
    """Raise a `ReaderError` that names the image if ffmpeg cannot read it as one of a sequence, by its ending."""
    image = ["-f", "image2", "-pattern_type", "none", *input_arguments(path)]
    with closing(FfmpegDecoder(str(path), [*image, "-map", "0:V:0", "-f", "null"])) as decoder:
        decoder.finish()


def estimate_num_frames(info: VideoInfo, fps: Fraction | None, max_frames: int | None = None) -> int | None:
    """Return the number of frames at a rate, by the times in the file, or `None` if they are unknown."""
    if info.is_still:
        return 1
    if fps is None or info.seconds is None:
        return None
    num_frames = max(1, round(info.seconds * fps))
    return num_frames if max_frames is None else min(num_frames, max_frames)


def _format_as_read(name: str, info: VideoInfo, matrix: str | None) -> FrameFormat:
    """Return the format of a file's frames. `conversion` adds what is not stated, and `matrix` overrides."""
    tagged = info.frames
    is_rgb = tagged.is_rgb or tagged.matrix == "gbr"  # the matrix of gray images
    if matrix is not None and is_rgb:
        raise ReaderError(f"{name}: is stored as RGB, without a matrix; leave out {option('matrix=', '--matrix')}.")
    if matrix is None and is_unknown(tagged.matrix) and not is_rgb:
        matrix = "bt601"  # as ffmpeg does, and so ltx-core, imageio and OpenCV, which also write it without a tag
        if info.size[0] >= _HD_WIDTH or info.size[1] >= _HD_HEIGHT:
            untagged = f"{name}: does not state its color matrix, and is read as BT.601, as ffmpeg does"
            way = option('matrix="bt709"', "--matrix bt709")
            warn(f"{untagged}; {way} reads it as players do.")
    if not is_unknown(tagged.matrix) and tagged.matrix not in MATRICES:
        raise ReaderError(f"{name}: its color matrix ({tagged.matrix}) is not supported; convert the video first.")
    if is_rgb:
        matrix = "bt601"  # of no effect, but zscale wants one for gray images
    site = tagged.site
    if is_unknown(site):
        site = "center" if info.is_still else "left"  # as JPEG has it, and as videos usually do
    matrix = "input" if matrix is None else MATRIX_NAMES[matrix]
    return replace(tagged, matrix=matrix, levels="input", site=site)


def _filters(
    source: FrameFormat,
    info: VideoInfo,
    scaled: Size,
    target: Size,
    frames: FrameFormat,
    *,
    has_alpha: bool,
    converts_colors: bool,
) -> str:
    """Return ffmpeg's filters from a file's frames to RGB, scaled, then cropped evenly to `target`.

    HDR keeps its colors, which `ToneMap` converts.
    """
    size, turn = info.size, info.orientation
    # None holds a frame back, since it would be lost when ffmpeg rebuilds them for another pixel format. The first
    # fails for frames of another size, which ffmpeg would otherwise rescale without a warning.
    same_size = "crop=w='iw*eq(iw,{})':h='ih*eq(ih,{})':exact=1".format(*size)
    # A transfer function that stays what it is needs a name: some of ffmpeg's filters refuse to keep a logarithmic one.
    filters = [same_size, *([] if converts_colors else ["setparams=color_trc=bt709"])]
    pixels = frames.planar if scaled == size or has_alpha else "gbrp16le"
    converted = pixels.replace("gbrp", "gbrap") if has_alpha else pixels
    if has_alpha and source.is_rgb:  # ffmpeg would choose a format without alpha for a palette
        filters.append("format=gbrap|gbrap16le")
    # Chroma has the file's position, so frames are converted as they are there.
    turn_back, turn_again = _TURNS[turn]
    stored_size = size[::-1] if turn in _TRANSPOSED else size
    convert = to_bt709 if converts_colors and not source.is_hdr else conversion
    fields = ["bwdif=mode=send_frame:deint=interlaced"] if info.is_interlaced else []
    to_rgb = convert(source, replace(frames, pixel_format=converted), stored_size)
    filters += [*turn_back, *fields, *to_rgb, *turn_again]
    if has_alpha:  # before scaling, which would mix the colors of transparent pixels into their neighbors
        filters += ["scale=alphablend=uniform_color", f"format={pixels}"]  # over black
    if scaled != size:
        filters += [f"zscale={scaled[0]}:{scaled[1]}:filter=bicubic", f"format={frames.planar}"]
    left, top = ((scaled[axis] - target[axis]) // 2 for axis in range(2))
    return ",".join([*filters, f"format={frames.pixel_format}", f"crop={target[0]}:{target[1]}:{left}:{top}"])


class RateConverter:
    """Says how often each frame is returned at a constant rate. The time of the next frame decides, or the end.

    It takes the place of ffmpeg's filter `fps`, which loses a frame whenever ffmpeg rebuilds its filters. `length` is
    the time from the first frame to the end of the last, if that is known.
    """

    def __init__(
        self, fps: Fraction, source_fps: Fraction | None, *, is_variable: bool, length: Fraction | None = None
    ) -> None:
        self.num_frames = 0
        self.left_out = 0  # frames that were returned at no tick
        self.repeated = 0  # how often one was returned again
        self.shortest: Fraction | None = None  # seconds between two frames, the second of them late
        self._fps = fps
        # The numbers of the frames at their own rate, instead of times, which containers round to milliseconds. That
        # would decide between two frames that are equally near, as in every second frame from 60 to 30 fps.
        self._own_fps = None if is_variable else source_fps
        self._interval = Fraction(0) if source_fps is None else 1 / source_fps
        self._length, self._end = length or Fraction(0), Fraction(0)
        self._start = self._time = Fraction(0)
        self._number = Fraction(-1)
        self._ticks = 0  # of the frames so far but the last

    def add(self, time: Fraction) -> int:
        """Return how often the frame before the one at `time` (in seconds) is returned; 0 for the first frame."""
        step = time - self._time
        if self.num_frames == 0:
            self._start, self._end = time, time + self._length
        elif step > 0:
            self.shortest = min(step, self.shortest or step)
        else:  # time stands still or goes back, as in files that were put together
            self._start += step - self._interval
        self._time = time
        tick = self._tick(time - self._start)
        self.num_frames += 1
        if self.num_frames == 1:
            return 0
        times = max(0, tick - self._ticks)
        self._ticks += times
        self.left_out += times == 0
        self.repeated += max(0, times - 1)
        return times

    def end(self) -> int:
        """Return how often the last frame is returned: as long as it lasts, and at least once if it is the first."""
        end = self._end if self._end > self._time else self._time + self._interval
        times = max(0, max(self._tick(end - self._start), 1) - self._ticks)
        self.left_out += times == 0
        return times

    def warning(self, name: str) -> str:
        """Return a sentence that says what the conversion lost of frames at irregular times; "" for a constant rate."""
        if not self.left_out and 10 * self.repeated <= self.num_frames:
            return ""
        rate = f"{name}: has a variable frame rate; at {float(self._fps):.6g} frames a second"
        lost = f"{self.left_out} of its {self.num_frames} frames were left out and {self.repeated} repeated"
        enough = min(MAX_FPS, ceil(1 / self.shortest)) if self.left_out and self.shortest else 0
        keep, choose = option(f"fps={enough}", f"--fps {enough}"), option("fps=", "--fps")
        advice = f"{keep} would keep them" if enough > self._fps else f"{choose} chooses another rate"
        return f"{rate}, {lost}; {advice}."

    def _tick(self, time: Fraction) -> int:
        if self._own_fps is None:
            return _nearest(time * self._fps)
        position, following = time * self._own_fps, self._number + 1
        if abs(position - following) < _JITTER:
            position = following
        elif position > following and abs(position - _nearest(position)) < _ROUNDING:
            position = Fraction(_nearest(position))
        self._number = position
        return _nearest(position * self._fps / self._own_fps)


def _nearest(number: Fraction) -> int:
    return (2 * number.numerator + number.denominator) // (2 * number.denominator)
