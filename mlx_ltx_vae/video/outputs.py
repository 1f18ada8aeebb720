"""The choice of a sink by the name of the output."""

import os
from fractions import Fraction
from pathlib import Path

from ..errors import WriterError
from ..shapes import Size
from .codecs import CONTAINER_ENDINGS
from .frame_files import NpyWriter, RawWriter, StillsWriter
from .sink import Sink
from .writer import GifWriter, VideoWriter

_SUPPORTED = f"{', '.join(CONTAINER_ENDINGS)}, .gif, .npy, a folder (ending in /), %05d.png, or - for standard output"


def open_sink(
    path: str | os.PathLike,
    *,
    size: Size,
    fps: str | float | Fraction,
    audio: str | os.PathLike | None = None,
    codec: str | None = None,
    crf: int | None = None,
    bit_depth: int = 8,
) -> Sink:
    """The sink for `path`, chosen by its ending.

    `.mp4`, `.mov`, `.mkv`, `.webm`: a video; `.gif`; `.npy`: one array; a folder or a pattern such as `%05d.png`:
    stills; `-`: raw frames to standard output.

    Args:
        size: `(width, height)` in pixels.
        fps: frames per second; ignored for stills and arrays.
        audio, codec, crf: for videos only, see `VideoWriter`.
        bit_depth: 8 (uint8 frames) or 10 (uint16 frames that use all 16 bits).

    Raises:
        WriterError: for an unknown ending, and for options that this output does not support.
    """
    name = os.fspath(path)
    ending = Path(name).suffix.lower()
    is_folder = name.endswith(("/", os.sep)) or Path(name).is_dir()
    if ending in CONTAINER_ENDINGS and not is_folder:
        return VideoWriter(path, size=size, fps=fps, audio=audio, codec=codec, crf=crf, bit_depth=bit_depth)
    for option, value in (("audio", audio), ("codec", codec), ("crf", crf)):
        if value is not None:
            raise WriterError(f"{name}: takes no {option}; only {', '.join(CONTAINER_ENDINGS)} do.")
    if name == "-":
        return RawWriter(size, bit_depth)
    if is_folder or ending == ".png":
        return StillsWriter(path, size, bit_depth)
    if ending == ".gif":
        return GifWriter(path, size, fps, bit_depth)
    if ending == ".npy":
        return NpyWriter(path, size, bit_depth)
    raise WriterError(f"{name}: its ending is not supported; use {_SUPPORTED}.")
