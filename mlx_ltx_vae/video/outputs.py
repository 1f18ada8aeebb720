"""The choice of a sink by the name of the output."""

import os
from fractions import Fraction
from pathlib import Path

from ..errors import WriterError
from ..files.atomic import check_name
from ..frame_rate import find_fps
from ..shapes import Size
from .codecs import CONTAINER_ENDINGS, check_fragmented, find_codec, video_arguments
from .frame_files import NpyWriter, RawWriter, StillsWriter, find_stills_target, parse_stills_path
from .live import StandardOutput
from .sink import DEFAULT_OPTIONS, Sink, SinkOptions, check_frames
from .writer import GifWriter, VideoWriter, check_gif

_SUPPORTED = f"{', '.join(CONTAINER_ENDINGS)}, .gif, .npy, a folder (ending in /), %05d.png, or - for standard output"


def open_sink(
    path: str | os.PathLike, *, size: Size, fps: str | float | Fraction, options: SinkOptions = DEFAULT_OPTIONS
) -> Sink:
    """The sink for `path`, chosen by its ending.

    `.mp4`, `.mov`, `.mkv`, `.webm`: a video; `.gif`; `.npy`: one array; a folder or a pattern such as `%05d.png`:
    stills, which never replace a file; `-`: raw frames to standard output, or an mp4 if it is fragmented.

    Args:
        size: `(width, height)` in pixels.
        fps: frames per second; ignored for stills and arrays.

    Raises:
        WriterError: for an unknown ending, and for options that this output does not support.
    """
    kind = check_output_options(path, options)
    if kind is VideoWriter:
        target = StandardOutput("the video") if os.fspath(path) == "-" else path
        return VideoWriter(target, size=size, fps=fps, **vars(options))
    if kind is GifWriter:
        return GifWriter(path, size, fps, options)
    if kind is RawWriter:
        return RawWriter(size, options.bit_depth)
    return StillsWriter(path, size, options.bit_depth) if kind is StillsWriter else NpyWriter(path, size, options)


def check_output(
    path: str | os.PathLike, *, size: Size, fps: str | float | Fraction, options: SinkOptions = DEFAULT_OPTIONS
) -> None:
    """Check the arguments of `open_sink` without creating anything. For standard output, a terminal is allowed.

    Raises:
        WriterError: that `open_sink` would raise.
    """
    name, target = os.fspath(path), Path(path)
    kind = check_output_options(path, options, fps=fps)
    check_frames(name, size, options.bit_depth)
    if kind is StillsWriter:
        target, _ = find_stills_target(path, options.bit_depth)
    elif kind is VideoWriter:
        video_arguments(*_name_and_ending(name), size, find_fps(name, fps, WriterError), options)
    if name == "-":
        return
    check_name(target)
    folder = target if os.path.isdir(target) else Path(os.path.realpath(target)).parent
    is_special = os.path.exists(target) and not target.is_file() and not target.is_dir()  # a named pipe
    if not is_special and not os.access(folder, os.W_OK | os.X_OK):
        raise WriterError(f"{name}: cannot be written (the folder {folder} is missing or read-only).")


def check_output_options(
    path: str | os.PathLike, options: SinkOptions, *, fps: str | float | Fraction | None = None
) -> type[Sink]:
    """The class of the sink for `path`, after the part of `check_output` that depends on nothing but the arguments.

    `fps` is None if it is not known yet.
    """
    name, ending = os.fspath(path), Path(path).suffix.lower()
    is_folder = name.endswith(("/", os.sep)) or os.path.isdir(name)
    if (ending in CONTAINER_ENDINGS and not is_folder) or (name == "-" and options.fragmented):
        find_codec(*_name_and_ending(name), options)
        return VideoWriter
    if options.fragmented:
        check_fragmented(name, ending)
    for option in ("audio", "codec", "crf"):
        if getattr(options, option) is not None:
            raise WriterError(f"{name}: takes no {option}; only {', '.join(CONTAINER_ENDINGS)} do.")
    if name == "-":
        return RawWriter
    if is_folder or ending == ".png":
        parse_stills_path(path, options.bit_depth)
        return StillsWriter
    if ending == ".gif":
        check_gif(name, Fraction(1) if fps is None else find_fps(name, fps, WriterError), options.bit_depth)
        return GifWriter
    if ending == ".npy":
        return NpyWriter
    raise WriterError(f"{name}: its ending is not supported; use {_SUPPORTED}.")


def _name_and_ending(name: str) -> tuple[str, str]:
    """What errors call a video, and the ending that selects its container."""
    return ("standard output", ".mp4") if name == "-" else (name, Path(name).suffix.lower())
