"""OpenEXR images, written and read by OpenImageIO, which is optional."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import LTXVAEError, ReaderError, WriterError, excerpt, one_line, option, quote
from ..frame_format import FrameFormat
from ..options import HDRInput, OutputOptions
from ..shapes import Size, format_size, is_possible_size
from ..units import Rate, find_fps, format_count
from .reader import Fit, check_wanted, exr_images, fit_size

if TYPE_CHECKING:
    import OpenImageIO

#: x and y of red, green, blue and white.
_REC709 = (0.64, 0.33, 0.30, 0.60, 0.15, 0.06, 0.3127, 0.3290)
_AP1 = (0.713, 0.293, 0.165, 0.830, 0.128, 0.044, 0.32168, 0.33767)
_AP0 = (0.7347, 0.2653, 0.0, 1.0, 0.0001, -0.077, 0.32168, 0.33767)
_REC2020 = (0.708, 0.292, 0.170, 0.797, 0.131, 0.046, 0.3127, 0.3290)
_P3_D65 = (0.680, 0.320, 0.265, 0.690, 0.150, 0.060, 0.3127, 0.3290)
_NAMES: dict[tuple[float, ...], str] = {
    _REC709: "sRGB",
    _AP1: "ACEScg",
    _AP0: "ACES2065-1",
    _REC2020: "Rec.2020",
    _P3_D65: "P3-D65",
}
_MAGIC = b"\x76\x2f\x31\x01"  # of OpenEXR
_SAME = 0.002  # white is stated with four digits, or with five


#: The formats of EXR images, by the names that users type: ffmpeg's names, to which "ap1" and "acescct" are added.
EXR_SPACES = {
    "srgb": FrameFormat("rgbf16le", primaries="bt709", transfer="linear"),
    "acescg": FrameFormat("rgbf16le", primaries="ap1", transfer="linear"),
    "acescct": FrameFormat("rgbf16le", primaries="ap1", transfer="acescct"),
}
_CHROMATICITIES = {"bt709": _REC709, "ap1": _AP1}
#: What users state of images that they encode.
_INPUT_CHROMATICITIES: dict[HDRInput, tuple[float, ...]] = {"srgb_linear": _REC709, "acescg": _AP1, "acescct": _AP1}


def import_library(error: type[LTXVAEError]) -> Any:
    """Return OpenImageIO. Raises `error` if it is missing."""
    try:
        import OpenImageIO
    except ImportError:
        raise error(
            'EXR needs OpenImageIO, which is not installed; install it with: pip install "mlx_ltx_vae[exr]".'
        ) from None
    return OpenImageIO


def check_start(path: Path) -> None:
    """Raise a `ReaderError` for a file that does not begin as EXR does."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except OSError as error:
        raise ReaderError(f"{path}: cannot be read as EXR ({error.strerror}).") from error
    if start != _MAGIC:
        raise ReaderError(f"{path}: cannot be read as EXR (it does not begin as EXR does).")


def check_is_light(name: str, frames: FrameFormat) -> None:
    """Raise a `WriterError` for frames that are in no space of EXR images."""
    if frames not in EXR_SPACES.values():
        way = option("add hdr=", "add --hdr acescct or logc3")
        raise WriterError(f"{name}: EXR has light, or codes of ACEScct, which these frames are not; {way}.")


def write_exr(path: Path, frame: np.ndarray, options: OutputOptions) -> None:
    """Write a frame `(height, width, 3)`, float16 in a format of `EXR_SPACES`, as half-float RGB with ZIP.

    Raises:
        OSError: if it cannot be written.
    """
    chromaticities = _CHROMATICITIES[options.format.primaries]
    library = import_library(WriterError)
    height, width, _ = frame.shape
    spec = library.ImageSpec(width, height, 3, "half")
    spec.attribute("compression", "zip")
    spec.attribute("chromaticities", "float[8]", chromaticities)
    spec.attribute("colorSpace", "ACEScct" if options.format.transfer == "acescct" else _NAMES[chromaticities])
    spec.attribute("DateTime", "")  # otherwise the time, by which two runs would differ
    output = library.ImageOutput.create(os.fspath(path))
    is_written = output and output.open(os.fspath(path), spec) and output.write_image(np.ascontiguousarray(frame))
    # Both return whether they succeeded, and `close` succeeds even after an error.
    if not (output and output.close() and is_written):
        with path.open("ab") as file:  # raises what the library does not say, such as a full disk
            file.write(bytes(frame.nbytes))
        raise OSError(_reason(output or library))


def read_exr(path: Path, size: Size | None = None, space: HDRInput | None = None) -> np.ndarray:
    """Read the RGB pixels of an image as they are, `(height, width, 3)` float32. Alpha is dropped; gray becomes RGB.

    Raises:
        ReaderError: for a file that is not EXR or is damaged, NaN, other channels, another `size` than expected, and
            `chromaticities` that differ from the `space`.
    """
    with _opened(path) as file:
        _, channels = _find_rgb(path, file, size, space)
        pixels = file.read_image("float")
        if pixels is None:
            raise ReaderError(f"{path}: is damaged ({_reason(file)}); write it again.")
    colors = np.ascontiguousarray(pixels[:, :, channels])
    if np.isnan(colors).any():
        raise ReaderError(f"{path}: has pixels that are NaN, not light; repair them in the program that made it.")
    return colors


def resize(frame: np.ndarray, size: Size) -> np.ndarray:
    """Scale a frame `(height, width, 3)` float32 by a filter without negative lobes, which would make dark rims."""
    library = import_library(ReaderError)
    roi = library.ROI(0, size[0], 0, size[1], 0, 1, 0, 3)
    scaled = library.ImageBufAlgo.resize(library.ImageBuf(np.ascontiguousarray(frame)), "bspline", roi=roi)
    return scaled.get_pixels(library.FLOAT)


@contextmanager
def _opened(path: Path) -> "Iterator[OpenImageIO.ImageInput]":
    library = import_library(ReaderError)
    check_start(path)
    # The library would try its other formats, some of which read the whole file.
    file = library.ImageInput.open(os.fspath(path))
    if file is None:
        raise ReaderError(f"{path}: cannot be read as EXR ({_reason(library)}).")
    try:
        yield file
    finally:
        file.close()


def _find_rgb(
    path: Path, file: "OpenImageIO.ImageInput", size: Size | None, space: HDRInput | None
) -> tuple[Size, list[int]]:
    """Check the header. Returns the size, and the indices of red, green and blue."""
    spec = file.spec()
    if spec.deep:
        raise ReaderError(f"{path}: is a deep image; expected one color per pixel.")
    found_size = spec.width, spec.height
    if not is_possible_size(found_size):
        raise ReaderError(f"{path}: its size {format_size(*found_size)} is not possible; write it again.")
    if size not in (None, found_size):
        raise ReaderError(f"{path}: is {format_size(*found_size)}, and the images before it are {format_size(*size)}.")
    if (spec.x, spec.y, *found_size) != (spec.full_x, spec.full_y, spec.full_width, spec.full_height):
        display_size = format_size(spec.full_width, spec.full_height)
        raise ReaderError(
            f"{path}: its data window, {format_size(*found_size)}, is not its display window, {display_size}; write it "
            "without overscan or cropping."
        )
    names = list(spec.channelnames)
    if len(names) > 1 and not {"R", "G", "B"} <= set(names):
        raise ReaderError(f"{path}: has the channels {excerpt(', '.join(names))}; expected R, G and B, or one.")
    channels = [0, 0, 0] if len(names) == 1 else [names.index(name) for name in "RGB"]
    if any(str(spec.channelformat(channel)) not in ("half", "float") for channel in channels):
        raise ReaderError(f"{path}: has integers, which are not light; expected half or float.")
    if space is not None:
        # As in OpenEXR, an attribute of another type is none.
        _check_chromaticities(path, spec.getattribute("chromaticities", "float[8]"), space)
    return found_size, channels


def _check_chromaticities(path: Path, chromaticities: tuple[float, ...] | None, space: HDRInput) -> None:
    """Raise a `ReaderError` if an image states other primaries than the space that was chosen."""
    expected = _INPUT_CHROMATICITIES[space]
    if chromaticities is None or _are_close(chromaticities, expected):
        return
    image_space = next((name for values, name in _NAMES.items() if _are_close(chromaticities, values)), None)
    numbers = excerpt(", ".join(f"{number:.4g}" for number in chromaticities))
    fitting = [other for other, values in _INPUT_CHROMATICITIES.items() if _are_close(chromaticities, values)]
    way = option(f"space={fitting[0]!r}", f"--hdr {fitting[0]}") if fitting else "convert it first"
    primaries = image_space or f"no known space ({numbers})"
    raise ReaderError(
        f"{path}: has the primaries of {primaries}, and {space} has the primaries of {_NAMES[expected]}; "
        f"{'use ' * bool(fitting)}{way}."
    )


def _are_close(values: tuple[float, ...], expected: tuple[float, ...]) -> bool:
    return len(values) == len(expected) and all(abs(a - b) < _SAME for a, b in zip(values, expected, strict=True))


def _reason(source: Any) -> str:
    try:
        text = source.geterror()
    except UnicodeDecodeError as error:  # it quotes the file
        text = error.object.decode(errors="replace")
    return excerpt(one_line(text), 200) or "no reason is known"


class ExrReader(Iterator[np.ndarray], AbstractContextManager["ExrReader"]):
    """Reads EXR images, in natural order: an iterator over single frames (1, height, width, 3), float32, as they are.

    Alpha is dropped, and gray becomes RGB. Arguments, attributes and errors are as in `VideoReader`; `path` may be
    one image. Frames of another size are scaled in the values that the images have. An image that states other
    primaries than the `space` is an error.
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
        space: HDRInput | None = None,
    ) -> None:
        self.name, self.path = os.fspath(path), Path(path)
        if space is not None and space not in _INPUT_CHROMATICITIES:
            names = ", ".join(_INPUT_CHROMATICITIES)
            raise ReaderError(f"{self.name}: {quote(space)} is no space of EXR images; expected one of {names}.")
        check_wanted(self.name, None, first_frame, max_frames)
        self.source_fps, self.start = None, Fraction(0)
        self.fps = None if fps is None else find_fps(self.name, fps, ReaderError)
        images = exr_images(self.path)
        if first_frame >= len(images):
            raise ReaderError(f"{self.name}: ends with frame {len(images) - 1}, before frame {first_frame}.")
        self._images, self._space = images[first_frame:][:max_frames], space
        self.num_frames = len(self._images)
        with _opened(self._images[0]) as file:
            self.source_size, _ = _find_rgb(self._images[0], file, None, space)
        self.scaled_size, self.size = fit_size(self.name, self.source_size, size, fit, multiple)
        self._waiting = iter(self._images)

    def __next__(self) -> np.ndarray:
        frame = read_exr(next(self._waiting), self.source_size, self._space)
        if self.scaled_size != self.source_size:
            frame = resize(frame, self.scaled_size)
        left, top = ((self.scaled_size[axis] - self.size[axis]) // 2 for axis in range(2))
        return frame[None, top : top + self.size[1], left : left + self.size[0]]

    def __repr__(self) -> str:
        return f"ExrReader({self.name!r}, {format_count(self.num_frames, 'frame')} of {format_size(*self.size)})"

    def close(self) -> None:
        """Stop reading."""
        self._waiting = iter(())

    def __exit__(self, *_: object) -> None:
        self.close()
