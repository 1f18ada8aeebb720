"""The kinds of outputs in one table, by the endings of their names, and the choice of a sink from it."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from ..codec_table import CONTAINERS, Codec
from ..errors import WriterError, option
from ..files import check_folder, check_name, check_replaceable, expand_path
from ..frame_format import FrameFormat
from ..options import OUTPUT_DEFAULTS, OutputOptions
from ..shapes import Size
from ..units import Rate, find_fps
from .codecs import find_codec, video_arguments, warn_of_audio, warn_of_depth
from .exr import check_is_light, import_library, write_exr
from .metadata import keep_metadata, keeps_metadata
from .pictures import write_png, write_tiff
from .sink import Sink, SinkRequest, check_not_live, check_size, is_folder
from .stills import (
    WriteStill,
    check_one_frame,
    find_stills_target,
    is_sheet,
    open_npy,
    open_picture,
    open_raw,
    open_sheet,
    open_stills,
    parse_stills_path,
    sheet_beside,
)
from .writer import VideoWriter

_MAX_GIF_FPS = 50  # delays are in hundredths of a second, and players slow down those below two
_PIXEL_FORMATS = {"rgb24": "8 bits", "rgb48le": "16 bits", "rgbf16le": "half floats", "rgbf32le": "floats"}
_LEVELS = ("rgb24", "rgb48le")
OUTPUT_NAME = "{name}"  # stands for the output's name, in names of files that are written beside it
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class SinkKind:
    """Kind of output. A new one is a file with a function that opens its `Sink`, and an entry in `SINKS`.

    Attributes:
        endings: of file names, in small letters; "-" for standard output.
        open: makes the sink.
        pixel_formats: of the frames that it takes, see `FrameFormat`.
        is_video: True if it has a codec and audio.
        is_stills: True if it may be a folder of numbered files.
        max_fps: the highest frame rate that players keep, if there is one.
        check_options: raises a `WriterError` for a name and options that it does not support; returns the codec of a
            video.
        check: raises the errors of what `open` gets; returns the file, or the folder, that would be created, and
            ffmpeg's arguments of a video or an animation.
    """

    endings: tuple[str, ...]
    open: Callable[[SinkRequest], Sink]
    pixel_formats: tuple[str, ...] = _LEVELS
    is_video: bool = False
    is_stills: bool = False
    max_fps: int | None = None
    check_options: Callable[[str, OutputOptions], Codec | None] = lambda *_: None
    check: Callable[[SinkRequest], tuple[Path, Sequence[str]]] = lambda output: (Path(output.name), ())


@dataclass(frozen=True)
class CheckedOutput:
    """Output that can be opened as it is."""

    kind: SinkKind
    output: SinkRequest

    def open(self, audio: Any) -> Sink:
        """Open the sink, with this audio in the place of the one that was checked."""
        return self.kind.open(replace(self.output, options=replace(self.output.options, audio=audio)))


@dataclass(frozen=True)
class OutputFile:
    """File to write: its name, kind and options, which go together, and the codec of a video."""

    name: str
    kind: SinkKind
    options: OutputOptions
    codec: Codec | None = None

    def check_rate(self, fps: Rate | None) -> None:
        """Raise a `WriterError` for a frame rate that players do not keep. `None` means that it is not known yet."""
        limit = self.kind.max_fps
        if fps is not None and limit is not None and (rate := find_fps(self.name, fps, WriterError)) > limit:
            raise WriterError(f"{self.name}: a GIF plays at most {limit} frames per second, not {rate}.")

    def with_metadata(self, entries: Mapping[str, str] = _NONE) -> "OutputFile":
        """Return the file with what it keeps of its metadata, and of more entries under other keys.

        A warning names what is left out, unless it is one of the `entries` and the file keeps no metadata at all.
        """
        kind, options, is_live = self.kind, self.options, self.options.fragmented
        if options.metadata == {} and not entries:
            return self
        suffix = Path(self.name).suffix.lower()
        ending = suffix if suffix in kind.endings or not kind.endings else kind.endings[0]
        metadata = keep_metadata(self.name, ending, options.metadata, is_live=is_live)
        taken_keys = {key.lower() for key in metadata}  # containers ignore the case of keys
        metadata |= {key: value for key, value in entries.items() if key.lower() not in taken_keys}
        kept = keep_metadata(self.name, ending, metadata, is_live=is_live, warns=keeps_metadata(ending))
        return replace(self, options=replace(options, metadata=kept))

    def request(self, size: Size, fps: Rate, num_frames: int | None) -> SinkRequest:
        """Return what the sink is opened for. By default an existing file is replaced, and a folder's are not."""
        check_size(self.name, size)
        overwrite = self.options.overwrite
        if overwrite is None:
            overwrite = not self.kind.is_stills or _is_picture(self.name)
        options = replace(self.options, overwrite=overwrite)
        return SinkRequest(self.name, size, fps, options, num_frames, self.codec)

    def check(
        self, *, size: Size, fps: Rate, num_frames: int | None = None, makes_folders: bool = False
    ) -> CheckedOutput:
        """Raise the errors of `open_sink`, as `check_output`, and return what opens the sink."""
        output = self.request(size, fps, num_frames)
        target, encoding = self.kind.check(output)
        if self.name != "-":
            check_name(target)
            check_replaceable(target, overwrite=bool(output.options.overwrite))
            check_folder(self.name, target, makes_folders=makes_folders)
        return CheckedOutput(self.kind, replace(output, encoding=tuple(encoding)))


def _check_video(output: SinkRequest) -> tuple[Path, list[str]]:
    (name, ending), fps = _name_and_ending(output.name), find_fps(output.name, output.fps, WriterError)
    arguments = video_arguments(name, ending, output.size, fps, output.options, output.num_frames, output.codec)
    if output.codec is not None:
        warn_of_depth(name, output.codec, output.options)
    if output.num_frames is not None:
        warn_of_audio(name, ending, output.num_frames, fps, output.options)
    return Path(output.name), arguments


def _name_and_ending(name: str) -> tuple[str, str]:
    """Return the name of a video in errors, and the ending that selects its container."""
    return ("standard output", ".mp4") if name == "-" else (name, Path(name).suffix.lower())


def _check_sheet(output: SinkRequest) -> tuple[Path, Sequence[str]]:
    if os.path.isdir(output.name):
        raise WriterError(f"{output.name}: cannot be written (it is a folder).")
    return Path(output.name), ()


def stills_kind(
    endings: tuple[str, ...],
    write: WriteStill,
    *,
    pixel_formats: tuple[str, ...] = _LEVELS,
    check_frames: Callable[[str, FrameFormat], object] = lambda *_: None,
    check_library: Callable[[], object] = lambda: None,
) -> SinkKind:
    """Return the kind of stills: one picture, or several in a folder. Unnamed ones get the first ending.

    `check_frames` raises a `WriterError` for other formats, and `check_library` if it is missing.
    """

    def open_one_or_more(output: SinkRequest) -> Sink:
        return open_picture(output, write) if _is_picture(output.name) else open_stills(output, write, endings)

    def check_options(name: str, options: OutputOptions) -> None:
        check_frames(name, options.format)
        if not _is_picture(name):
            parse_stills_path(name, endings)

    def check(output: SinkRequest) -> tuple[Path, Sequence[str]]:
        check_library()
        if not _is_picture(output.name):
            return find_stills_target(output.name, endings, overwrite=bool(output.options.overwrite))[0], ()
        check_one_frame(output.name, output.num_frames or 1)
        return Path(output.name), ()

    return SinkKind(endings, open_one_or_more, pixel_formats, is_stills=True, check_options=check_options, check=check)


def _is_picture(name: str) -> bool:
    return not is_folder(name) and "%" not in Path(name).name


def _refuse_frames(output: SinkRequest) -> NoReturn:
    raise WriterError(f"{output.name}: is audio alone, and takes no frames.")


_ALL_FORMATS = tuple(_PIXEL_FORMATS)
_EXR = stills_kind(
    (".exr",),
    write_exr,
    pixel_formats=_ALL_FORMATS,
    check_frames=check_is_light,
    check_library=partial(import_library, WriterError),
)
_SHEET = SinkKind((), open_sheet, check=_check_sheet)
_AUDIO = SinkKind((".wav",), _refuse_frames, ())
#: A name selects the first kind that has its ending.
SINKS: tuple[SinkKind, ...] = (
    SinkKind(
        tuple(CONTAINERS),
        VideoWriter.from_output,
        is_video=True,
        check_options=lambda name, options: find_codec(*_name_and_ending(name), options),
        check=_check_video,
    ),
    SinkKind((".gif",), VideoWriter.from_output, ("rgb24",), max_fps=_MAX_GIF_FPS, check=_check_video),
    SinkKind((".webp",), VideoWriter.from_output, ("rgb24",), check=_check_video),
    SinkKind((".avif",), VideoWriter.from_output, check=_check_video),
    SinkKind((".npy",), open_npy, _ALL_FORMATS),
    stills_kind((".png",), write_png),
    stills_kind((".tif", ".tiff"), write_tiff),
    _EXR,
    SinkKind(("-",), open_raw, _ALL_FORMATS),
    _AUDIO,
)


def find_kind(name: str, options: OutputOptions) -> SinkKind:
    """Find the kind of output that a name and options choose; raise a `WriterError` otherwise.

    The ending of a folder of stills selects their kind (f.png/); without one, it is the first that takes the frames.
    """
    ending = Path(name).suffix.lower()
    named = [kind for kind in SINKS if (ending or name) in kind.endings]
    if options.contact_sheet and is_sheet(name):
        return _SHEET
    if is_folder(name):
        stills = [kind for kind in SINKS if kind.is_stills]
        fitting = [kind for kind in stills if options.format.pixel_format in kind.pixel_formats]
        return next(kind for kind in (*named, *fitting, *stills) if kind.is_stills)
    if name == "-" and options.fragmented:
        return next(kind for kind in SINKS if kind.is_video)
    if named:
        return named[0]
    if os.path.exists(name) and not os.path.isfile(name):
        text = "is a device or a named pipe, whose name has no ending that says what to write into it"
        raise WriterError(f"{name}: {text}; use -o - > {name} for raw frames.")
    if not ending:
        content = option("PNG stills", "files named after the inputs")
        raise WriterError(f"{name}: is no folder and has no ending; write {name}/ for {content}, or {name}.mp4.")
    other_outputs = option(
        "a folder (ending in /) or %05d.png for stills, or - for raw frames",
        "%05d.png for stills, a folder (ending in /) for files named after the inputs, - for raw frames, or .wav for "
        "the audio alone",
    )
    raise WriterError(f"{name}: its ending is not supported; use {', '.join(frame_endings())}, {other_outputs}.")


def find_still_ending(name: str | None, options: OutputOptions) -> str | None:
    """Return the ending of stills in a folder, or in the folder of a pattern. `None` for other outputs."""
    if name is None or name == "-" or _is_picture(name):
        return None
    return find_kind(name, options).endings[0] if is_folder(name) else Path(name).suffix


def frame_endings() -> list[str]:
    """Return the endings of all outputs of frames."""
    return [ending for kind in SINKS if kind.pixel_formats for ending in kind.endings if ending != "-"]


def is_audio(name: str) -> bool:
    """Return whether an output is audio alone."""
    return Path(name).suffix.lower() in _AUDIO.endings and not is_folder(name)


def open_sink(
    path: str | os.PathLike,
    *,
    size: Size,
    fps: Rate,
    options: OutputOptions = OUTPUT_DEFAULTS,
    num_frames: int | None = None,
) -> Sink:
    """Open the sink for `path`, chosen by its ending; raises a `WriterError` for options that it does not support.

    `num_frames` is given by callers that gave it to `check_output`, which has then warned of the audio.
    """
    file = find_output(path, options, fps=fps).with_metadata()
    return file.kind.open(file.request(size, fps, num_frames))


def output_files(output: str, options: OutputOptions) -> dict[str, OutputOptions]:
    """Return the names that are written for an output, with the options of each.

    With `options.contact_sheet` the contact sheet of the frames comes first. If that is the output, it is one. A folder
    of EXR images, which `options.exr_folder` may name, comes last.
    """
    files, exr = {}, options.exr
    if options.contact_sheet:
        sheet = sheet_beside(output)
        of_sheet = (
            options
            if sheet == output
            else OutputOptions(metadata=options.metadata, contact_sheet=True, overwrite=options.overwrite)
        )
        files[sheet] = replace(of_sheet, frames=options.sheet_frames or options.frames)
    if output not in files:
        is_exr = Path(output).suffix.lower() in _EXR.endings
        files[output] = options if exr is None or not is_exr else replace(options, frames=exr)
    if exr is not None and options.exr_folder is not None:
        folder = os.path.join(options.exr_folder.replace(OUTPUT_NAME, Path(output).stem), "")
        of_pattern = os.path.dirname(output) if "%" in Path(output).name else output
        if os.path.realpath(of_pattern) == os.path.realpath(folder):
            raise WriterError(f"{folder}: is the folder of other stills; name another one for EXR images.")
        files[folder] = OutputOptions(frames=exr, overwrite=options.overwrite)
    return files


def find_outputs(output: str, options: OutputOptions, *, fps: Rate | None = None) -> dict[str, OutputFile]:
    """Return the `output_files` by their names, with the errors of `find_output`."""
    return {name: _find_file(name, options, fps) for name, options in output_files(output, options).items()}


def find_all_outputs(
    outputs: Sequence[str], options: OutputOptions, fps: Rate, known_files: Mapping[str, OutputFile]
) -> list[dict[str, OutputFile]]:
    """Return the `find_outputs` of several outputs, each with its own folder of EXR images.

    `known_files` are the `find_outputs` of one output. They are its files if it has the same options.
    """
    output_file = known_files.get(outputs[0]) if len(outputs) == 1 else None
    if output_file is not None and output_file.options is options:
        for file in known_files.values():
            file.check_rate(fps)
        return [dict(known_files)]
    folder = options.exr_folder
    if len(outputs) > 1 and folder is not None and OUTPUT_NAME not in folder:
        options = replace(options, exr_folder=os.path.join(folder, OUTPUT_NAME))
    return [find_outputs(output, options, fps=fps) for output in outputs]


def name_others(outputs: Sequence[str], files: Sequence[Mapping[str, OutputFile]]) -> dict[str, list[str]]:
    """Return the files besides the outputs, by their names in reports. A contact sheet may be an output."""
    names: dict[str, list[str]] = {}
    for output, video_files in zip(outputs, files, strict=True):
        for name, file in video_files.items():
            if file.kind is _SHEET:
                names.setdefault("contact_sheet", []).append(name)
            elif name != output:
                names.setdefault("exr", []).append(name)
    return names


def check_output(
    path: str | os.PathLike,
    *,
    size: Size,
    fps: Rate,
    options: OutputOptions = OUTPUT_DEFAULTS,
    num_frames: int | None = None,
    makes_folders: bool = False,
) -> None:
    """Raise the errors of `open_sink` without creating anything. For standard output, a terminal is allowed.

    With `makes_folders` those above it that are missing can be made.

    With `num_frames`, warn of an audio file that becomes lossy, or is longer or shorter than the video, and refuse one
    picture of several frames.
    """
    file = find_output(path, options, fps=fps)
    file.check(size=size, fps=fps, num_frames=num_frames, makes_folders=makes_folders)


def find_output(path: str | os.PathLike, options: OutputOptions, *, fps: Rate | None = None) -> OutputFile:
    """Return the file of this name, whose options are checked. `fps` is `None` if it is not known yet."""
    return _find_file(expand_path(path, WriterError), options, fps)


def _find_file(name: str, options: OutputOptions, fps: Rate | None) -> OutputFile:
    kind = find_kind(name, options)
    if name != "-":
        check_not_live(name, options)
    if not kind.is_video:
        for field in fields(options):
            if field.metadata.get("of_videos") and getattr(options, field.name) is not field.default:
                videos = ", ".join(CONTAINERS)
                raise WriterError(f"{name}: takes no {field.name.replace('_', ' ')}; only {videos} do.")
    if (pixel_format := options.format.pixel_format) not in kind.pixel_formats:
        takes = " or ".join(_PIXEL_FORMATS[name] for name in kind.pixel_formats) or "none: it is audio alone"
        way = option("bit_depth=8", "--bit-depth 8")
        if options.format.is_hdr:
            way = option('HDROptions(..., signal="sdr")', "--hdr-output sdr")
        way = f"; use {way}" if "rgb24" in kind.pixel_formats else ""
        raise WriterError(f"{name}: frames have {_PIXEL_FORMATS[pixel_format]} per color, and it takes {takes}{way}.")
    file = OutputFile(name, kind, options, kind.check_options(name, options))
    file.check_rate(fps)
    return file


def takes_audio(path: str | os.PathLike, options: OutputOptions) -> bool:
    """Return whether the output is a video that can have audio."""
    return find_kind(os.fspath(path), options).is_video
