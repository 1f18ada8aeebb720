"""The choice of a sink by the name of the output."""

import os
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from ..errors import WriterError
from ..files.atomic import check_name
from ..shapes import Size
from .codecs import CONTAINER_ENDINGS, check_fragmented, find_codec, quality_arguments
from .frame_files import NpyWriter, RawWriter, StillsWriter, find_stills_target, parse_stills_path
from .live import StandardOutput
from .sink import Sink, check_frames
from .writer import GifWriter, VideoWriter, check_gif, find_frame_rate, video_arguments

_SUPPORTED = f"{', '.join(CONTAINER_ENDINGS)}, .gif, .npy, a folder (ending in /), %05d.png, or - for standard output"


@dataclass(frozen=True)
class SinkOptions:
    """The options of `open_sink`.

    Attributes:
        audio, codec, crf: for videos only, see `VideoWriter`.
        bit_depth: 8 (uint8 frames) or 10 (uint16 frames that use all 16 bits).
        fragmented: make a video that plays while it grows, see `VideoWriter`.
    """

    audio: str | os.PathLike | None = None
    codec: str | None = None
    crf: int | None = None
    bit_depth: int = 8
    fragmented: bool = False


def open_sink(
    path: str | os.PathLike, *, size: Size, fps: str | float | Fraction, overwrite: bool = True, **options: Any
) -> Sink:
    """The sink for `path`, chosen by its ending.

    `.mp4`, `.mov`, `.mkv`, `.webm`: a video; `.gif`; `.npy`: one array; a folder or a pattern such as `%05d.png`:
    stills; `-`: raw frames to standard output, or an mp4 if it is fragmented.

    Args:
        size: `(width, height)` in pixels.
        fps: frames per second; ignored for stills and arrays.
        overwrite: whether to replace a file; stills never do.
        options: see `SinkOptions`.

    Raises:
        WriterError: for an unknown ending, and for options that this output does not support.
    """
    given = SinkOptions(**options)
    kind, bit_depth = _choose_sink(path, given), given.bit_depth
    if kind is VideoWriter:
        target = StandardOutput("the video") if os.fspath(path) == "-" else path
        return VideoWriter(target, size=size, fps=fps, overwrite=overwrite, **vars(given))
    if kind is GifWriter:
        return GifWriter(path, size, fps, bit_depth, overwrite)
    if kind is RawWriter:
        return RawWriter(size, bit_depth)
    return StillsWriter(path, size, bit_depth) if kind is StillsWriter else NpyWriter(path, size, bit_depth, overwrite)


def check_output(path: str | os.PathLike, *, size: Size, fps: str | float | Fraction, **options: Any) -> None:
    """Check the arguments of `open_sink` without creating anything. For standard output, a terminal is allowed.

    Raises:
        WriterError: that `open_sink` would raise.
    """
    name, given = os.fspath(path), SinkOptions(**options)
    kind = _choose_sink(path, given)
    check_frames(name, size, given.bit_depth)
    if kind is RawWriter:
        return
    target = Path(path)
    if kind is StillsWriter:
        target, _ = find_stills_target(path, given.bit_depth)
    elif kind is VideoWriter:
        video_arguments(
            *(("standard output", ".mp4") if name == "-" else (name, target.suffix)),
            size,
            find_frame_rate(name, fps),
            **vars(given),
        )
        if name == "-":
            return
    elif kind is GifWriter:
        check_gif(name, find_frame_rate(name, fps), given.bit_depth)
    check_name(target)
    folder = target if os.path.isdir(target) else Path(os.path.realpath(target)).parent
    is_special = os.path.exists(target) and not target.is_file() and not target.is_dir()  # a named pipe
    if not is_special and not os.access(folder, os.W_OK | os.X_OK):
        raise WriterError(f"{name}: cannot be written (the folder {folder} is missing or read-only).")


def check_output_options(path: str | os.PathLike, *, fps: str | float | Fraction | None = None, **options: Any) -> None:
    """The part of `check_output` that depends on nothing but its arguments: the ending and the options that go with it.

    Args:
        fps: None if it is not known yet.

    Raises:
        WriterError: that `open_sink` would raise.
    """
    name, ending, given = os.fspath(path), Path(path).suffix.lower(), SinkOptions(**options)
    kind = _choose_sink(path, given)
    if kind is VideoWriter:
        name, ending = ("standard output", ".mp4") if name == "-" else (name, ending)
        found = find_codec(name, ending, given.codec)
        quality_arguments(name, found, given.crf)
        if given.fragmented:
            check_fragmented(name, ending)
    elif kind is StillsWriter:
        parse_stills_path(path, given.bit_depth)
    elif kind is GifWriter:
        check_gif(name, Fraction(1) if fps is None else find_frame_rate(name, fps), given.bit_depth)


def _choose_sink(path: str | os.PathLike, options: SinkOptions) -> type[Sink]:
    """The class of the sink for `path`. Raises `WriterError` for an unknown ending and for unsupported options."""
    name = os.fspath(path)
    ending = Path(name).suffix.lower()
    is_folder = name.endswith(("/", os.sep)) or os.path.isdir(name)
    if (ending in CONTAINER_ENDINGS and not is_folder) or (name == "-" and options.fragmented):
        return VideoWriter
    if options.fragmented:
        check_fragmented(name, ending)
    for option in ("audio", "codec", "crf"):
        if getattr(options, option) is not None:
            raise WriterError(f"{name}: takes no {option}; only {', '.join(CONTAINER_ENDINGS)} do.")
    if name == "-":
        return RawWriter
    if is_folder or ending == ".png":
        return StillsWriter
    if ending == ".gif":
        return GifWriter
    if ending == ".npy":
        return NpyWriter
    raise WriterError(f"{name}: its ending is not supported; use {_SUPPORTED}.")
