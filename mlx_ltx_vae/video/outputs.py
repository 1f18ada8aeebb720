"""The choice of a sink by the name of the output, and the files that ffmpeg writes while frames are computed."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import WriterError, check_is_path
from ..files import PartFile, check_absent, check_name, writing_to
from ..frame_rate import Rate, find_fps
from ..process import Cleanup
from ..shapes import Size, format_size
from .audio_codecs import warn_of_changes
from .codecs import CONTAINER_ENDINGS, check_fragmented, find_codec, video_arguments
from .contact_sheet import ContactSheet, is_sheet, sheet_beside
from .ffmpeg import FfmpegEncoder
from .frame_files import (
    NpyWriter,
    PictureWriter,
    RawWriter,
    StillsWriter,
    check_one_frame,
    find_stills_target,
    parse_stills_path,
)
from .live import LiveOutput, StandardOutput, Target, target_name
from .metadata import MAX_LIVE_METADATA, METADATA_INPUT, check_metadata, metadata_bytes, metadata_file
from .sink import DEFAULT_OPTIONS, Sink, SinkOptions, check_frames
from .sound import SOUND_INPUT, Sound, SoundPipe, SoundTrack, clipping, find_sample_rate, warn_of_sound

_SUPPORTED = f"{', '.join(CONTAINER_ENDINGS)}, .gif, .npy, a folder (ending in /), %05d.png, .png, or - for raw frames"
_PICTURES = (ContactSheet, PictureWriter)
_MAX_GIF_FPS = 50  # delays are in hundredths of a second, and players slow down those below two


class FfmpegSink(Sink):
    """A file written by ffmpeg, of exactly the size of the frames."""

    def __init__(self, name: str, size: Size, fps: Rate, bit_depth: int) -> None:
        super().__init__(name, size, bit_depth)
        self.fps = find_fps(self.name, fps, WriterError)

    def _start(
        self,
        target: PartFile | LiveOutput,
        output_arguments: Sequence[str],
        metadata: Mapping[str, str] | None = None,
        sound: SoundPipe | None = None,
    ) -> None:
        layout = ["-pixel_format", self.frames.pixel_format, "-video_size", format_size(*self.size)]
        raw_video = ["-f", "rawvideo", *layout, "-framerate", str(self.fps), "-i", "pipe:0"]
        self._target = target
        output = f"file:{target.path}" if isinstance(target, PartFile) else target.write
        try:
            with writing_to(self.name), metadata_file(metadata or {}) as entries:
                pipes = {METADATA_INPUT: f"pipe:{entries[0]}"} if entries else {}
                if sound is not None:
                    pipes[SOUND_INPUT] = f"pipe:{sound.read_end}"
                arguments = [pipes.get(text, text) for text in output_arguments]
                inherited = [*entries, *([] if sound is None else [sound.read_end])]
                self._ffmpeg = FfmpegEncoder(self.name, [*raw_video, *arguments], output, inherited)
        except BaseException:
            target.discard()
            if sound is not None:
                sound.cancel()
            raise
        if sound is not None:
            sound.start()
        self._write = self._ffmpeg.write
        remove = target.discard if isinstance(target, PartFile) else target.remove
        Cleanup(self, _end_and_remove, self._ffmpeg, remove)

    def _finish(self) -> None:
        encoded = self._ffmpeg.finish()
        if encoded != self.frames_written:
            raise WriterError(f"{self.name}: ffmpeg received {self.frames_written} frames and wrote {encoded}.")
        self._target.complete()

    def _interrupt(self) -> None:
        self._ffmpeg.kill()

    def _discard(self) -> None:
        self._ffmpeg.release()
        self._target.discard()


def _end_and_remove(ffmpeg: FfmpegEncoder, remove: Callable[[], None]) -> None:
    ffmpeg.end()
    remove()  # only now: ffmpeg might create the file again


class VideoWriter(FfmpegSink):
    """An mp4, mov, mkv or webm file, or an mp4 or mov that plays while it grows (`fragmented`).

        with VideoWriter("out.mp4", size=(768, 512), fps=24, audio="voice.wav") as out:
            for frames in chunks:  # uint8 (n, 512, 768, 3)
                out.write(frames)

    A fragmented video plays while it is written: from a file, through a pipe, or in a browser. A fragment comes after
    every half second of video, and the file is larger. It is the one output that appears under its name at once, in
    place of an earlier file. It is removed after an error, Ctrl-C included, but not if the process is killed. What a
    file object or a named pipe has received stays there.

    Args:
        path: the file; its ending selects the container. If fragmented also a binary file object, such as
            `sys.stdout.buffer`, which gets an mp4 and stays open. A thread calls its `write`, which may block: the
            frames then wait, and so does who writes them.
        size: `(width, height)` in pixels; odd sizes are kept exactly (see `codecs`).
        fps: frames per second: 24, 23.976, "30000/1001" (see `parse_fps`).
        audio: a file whose first audio stream is added, whole even if it is longer or shorter than the video. Or an
            iterator of sound: of arrays (2, n), or an `AudioStream`. It is taken as frames are written, and must be as
            long as these; up to 60 ms are filled with silence, or cut. Closing warns (`UserWarning`) of what the codec
            changes in it, and of a file that is longer or shorter by more than a frame.
        codec: h264 (the default), hevc (or h265), prores, ffv1 (lossless), vp9 (the default for webm) or av1; on a Mac
            also h264_videotoolbox and hevc_videotoolbox.
        crf: quality, 0 is the best; by default 18 for h264, 20 for hevc, 24 for vp9 and av1.
        bit_depth: 8 (uint8 frames) or 10 (uint16 frames that use all 16 bits).
        overwrite: whether to replace a file of this name, also one that appears while the video is written.
        shortest: whether audio that is longer is cut at the end of the video. Needs `num_frames`.
        metadata: entries of text by name, such as `{"comment": "take 3"}`, of any length.
        encoder_preset: for h264 and hevc: ultrafast to veryslow, by default medium. Slower ones make smaller files.
        pix_fmt: a pixel format of ffmpeg's encoder in place of the default, such as `"yuv444p"`.
        audio_codec: aac (the default), pcm, flac, alac or opus (the default for webm).
        sample_rate: of an iterator of sound, if that has no `sample_rate` itself.
        num_frames: how many frames will be written, if that is known.

    Raises:
        WriterError: for invalid options, before ffmpeg is started.
    """

    def __init__(
        self,
        path: Target,
        *,
        size: Size,
        fps: Rate,
        audio: str | os.PathLike | Sound | None = None,
        codec: str | None = None,
        crf: int | None = None,
        bit_depth: int = 8,
        fragmented: bool = False,
        overwrite: bool = True,
        shortest: bool = False,
        metadata: Mapping[str, str] | None = None,
        encoder_preset: str | None = None,
        pix_fmt: str | None = None,
        audio_codec: str | None = None,
        sample_rate: int | None = None,
        num_frames: int | None = None,
    ) -> None:
        super().__init__(target_name(path), size, fps, bit_depth)
        is_path = isinstance(path, (str, os.PathLike))
        if not is_path and not fragmented:
            raise WriterError(f"{self.name}: only a fragmented video needs no file name; add fragmented=True.")
        self._options = options = SinkOptions(
            audio, codec, crf, bit_depth, fragmented, overwrite, shortest, metadata or {}, encoder_preset, pix_fmt,
            audio_codec, sample_rate,
        )  # fmt: skip
        self._num_frames = num_frames
        self._warns_of_audio = True
        self._ending = Path(self.name).suffix.lower() if is_path else ".mp4"
        arguments = video_arguments(self.name, self._ending, size, self.fps, options, num_frames)
        target = LiveOutput(path, overwrite) if fragmented else PartFile(Path(self.name), overwrite=overwrite)
        self._sound: SoundTrack | None = None
        self._pipe: SoundPipe | None = None
        if audio is not None and not isinstance(audio, (str, os.PathLike)):
            rate = find_sample_rate(self.name, audio, sample_rate)
            self._sound = SoundTrack(self.name, audio, rate, self.fps, num_frames, cuts=shortest)
            self._pipe = SoundPipe()
        self._start(target, arguments, options.metadata, self._pipe)

    def write(self, frames: np.ndarray) -> None:
        self._check_owner()
        if self._sound is not None and self._pipe is not None and not self._closed and isinstance(frames, np.ndarray):
            for samples in self._sound.until(self.frames_written + len(frames)):
                self._pipe.put(samples)
        super().write(frames)

    def close(self) -> None:
        if self._sound is not None and self._pipe is not None and not self._closed and self.frames_written:
            self._check_owner()
            try:
                for samples in self._sound.finish(self.frames_written):
                    self._pipe.put(samples)
                self._pipe.end()
            except BaseException:
                self.abort()
                raise
        super().close()

    def _discard(self) -> None:
        super()._discard()
        if self._pipe is not None:
            self._pipe.cancel()
        if self._sound is not None:
            self._sound.close()

    def _finish(self) -> None:
        if self._num_frames not in (None, self.frames_written):
            raise WriterError(f"{self.name}: got {self.frames_written} frames, not {self._num_frames} (num_frames).")
        super()._finish()
        peak = 0.0 if self._sound is None else self._sound.peak
        if self._warns_of_audio:
            with suppress(WriterError):  # the output is complete, whatever has become of an audio file
                warn_of_changes(self.name, self._ending, self.frames_written, self.fps, self._options, peak=peak)
        else:
            warn_of_sound(self.name, clipping(peak))


class GifWriter(FfmpegSink):
    """An animated GIF that loops."""

    def __init__(self, path: str | os.PathLike, size: Size, fps: Rate, options: SinkOptions) -> None:
        super().__init__(os.fspath(path), size, fps, options.bit_depth)
        # A palette for each frame: a shared one needs all frames first, and bands. Error diffusion would flicker.
        palette = "split[frames][source];[source]palettegen=stats_mode=single:reserve_transparent=0[palette]"
        filters = f"{palette};[frames][palette]paletteuse=new=1:dither=bayer:bayer_scale=4"
        self._start(PartFile(Path(path), overwrite=options.overwrite), ["-vf", filters, "-f", "gif"])


def open_sink(
    path: str | os.PathLike,
    *,
    size: Size,
    fps: Rate,
    options: SinkOptions = DEFAULT_OPTIONS,
    num_frames: int | None = None,
) -> Sink:
    """The sink for `path`, chosen by its ending; raises a `WriterError` for options that it does not support.

    `num_frames` is given by callers that gave it to `check_output`, which has then warned of the audio.
    """
    kind = check_output_options(path, options, fps=fps)
    if kind is ContactSheet:
        if num_frames is None:
            raise WriterError(f"{os.fspath(path)}: a contact sheet needs the number of frames (num_frames).")
        return ContactSheet(path, size, fps, num_frames, options)
    if kind is VideoWriter:
        target = StandardOutput("the video") if os.fspath(path) == "-" else path
        given = {name: value for name, value in vars(options).items() if name != "contact_sheet"}
        writer = VideoWriter(target, size=size, fps=fps, num_frames=num_frames, **given)
        writer._warns_of_audio = num_frames is None
        return writer
    if kind is GifWriter:
        return GifWriter(path, size, fps, options)
    if kind is RawWriter:
        return RawWriter(size, options.bit_depth)
    if kind is StillsWriter:
        return StillsWriter(path, size, options)
    return PictureWriter(path, size, options) if kind is PictureWriter else NpyWriter(path, size, options)


def output_files(output: str, options: SinkOptions) -> dict[str, SinkOptions]:
    """The names that are written for an output, with the options of each.

    With `options.contact_sheet` the contact sheet of the frames comes first. If that is the output, it is all.
    """
    if not options.contact_sheet or (sheet := sheet_beside(output)) == output:
        return {output: options}
    of_sheet = SinkOptions(bit_depth=options.bit_depth, metadata=options.metadata, contact_sheet=True)
    return {sheet: of_sheet, output: options}


def check_output(
    path: str | os.PathLike,
    *,
    size: Size,
    fps: Rate,
    options: SinkOptions = DEFAULT_OPTIONS,
    num_frames: int | None = None,
) -> None:
    """Raise the errors of `open_sink` without creating anything. For standard output, a terminal is allowed.

    With `num_frames`, warn of what is changed in an audio file, or longer or shorter than the video, and refuse one
    picture of several frames.
    """
    name, target = os.fspath(path), Path(path)
    kind = check_output_options(path, options, fps=fps)
    check_frames(name, size, options.bit_depth)
    if kind in _PICTURES:
        if os.path.isdir(path):
            raise WriterError(f"{name}: cannot be written (it is a folder).")
        check_absent(path)
    if kind is PictureWriter:
        check_one_frame(name, num_frames or 1)
    if kind is StillsWriter:
        target, _ = find_stills_target(path)
    elif kind is VideoWriter:
        exact_fps = find_fps(name, fps, WriterError)
        video_arguments(*_name_and_ending(name), size, exact_fps, options, num_frames)
        if num_frames is not None:
            warn_of_changes(*_name_and_ending(name), num_frames, exact_fps, options)
    if name == "-":
        return
    check_name(target)
    folder = target if os.path.isdir(target) else Path(os.path.realpath(target)).parent
    is_special = os.path.exists(target) and not os.path.isfile(target) and not os.path.isdir(target)  # a named pipe
    if not is_special and not os.access(folder, os.W_OK | os.X_OK):
        raise WriterError(f"{name}: cannot be written (the folder {folder} is missing or read-only).")


def check_output_options(path: str | os.PathLike, options: SinkOptions, *, fps: Rate | None = None) -> type[Sink]:
    """The class of the sink for `path`, after all checks of the arguments alone. `fps` is None if not known yet."""
    check_is_path(path, WriterError)
    name, ending = os.fspath(path), Path(path).suffix.lower()
    is_folder = name.endswith(("/", os.sep)) or os.path.isdir(name)
    if (ending in CONTAINER_ENDINGS and not is_folder) or (name == "-" and options.fragmented):
        find_codec(*_name_and_ending(name), options)
        return VideoWriter
    if options.fragmented:
        check_fragmented(name, ending)
    for option in ("audio", "codec", "crf", "shortest", "encoder_preset", "pix_fmt", "audio_codec"):
        if getattr(options, option) is not getattr(DEFAULT_OPTIONS, option):
            raise WriterError(f"{name}: takes no {option.replace('_', ' ')}; only {', '.join(CONTAINER_ENDINGS)} do.")
    if options.contact_sheet and is_sheet(name):
        check_metadata(name, options.metadata)
        return ContactSheet
    if is_folder or ending == ".png":
        check_metadata(name, options.metadata)
        if not is_folder and "%" not in Path(path).name:
            return PictureWriter
        parse_stills_path(path)
        return StillsWriter
    if options.metadata:
        raise WriterError(f"{name}: takes no metadata; only {', '.join(CONTAINER_ENDINGS)} and PNG stills do.")
    if name == "-":
        return RawWriter
    if ending == ".gif":
        if options.bit_depth != 8:
            raise WriterError(f"{name}: a GIF has 8 bits per color; leave out the bit depth.")
        if fps is not None and (rate := find_fps(name, fps, WriterError)) > _MAX_GIF_FPS:
            raise WriterError(f"{name}: a GIF plays at most {_MAX_GIF_FPS} frames per second, not {rate}.")
        return GifWriter
    if ending == ".npy":
        return NpyWriter
    if not ending:
        raise WriterError(f"{name}: is no folder and has no ending; write {name}/ for PNG stills, or {name}.mp4.")
    raise WriterError(f"{name}: its ending is not supported; use {_SUPPORTED}.")


def takes_sound(path: str | os.PathLike, options: SinkOptions) -> bool:
    """Whether the output is a video that can have sound."""
    return check_output_options(path, replace(options, audio_codec=None)) is VideoWriter


def add_metadata(path: str | os.PathLike, options: SinkOptions, entries: Mapping[str, str]) -> SinkOptions:
    """`options` with more entries, if the output takes any; those that `options` have stay.

    A warning if they are too long for a live video, which goes without them.
    """
    if not entries or check_output_options(path, options) not in (VideoWriter, StillsWriter, *_PICTURES):
        return options
    own = {key.lower() for key in options.metadata}  # containers ignore the case of keys
    entries = {**{key: value for key, value in entries.items() if key.lower() not in own}, **options.metadata}
    if options.fragmented and metadata_bytes(entries) > MAX_LIVE_METADATA:
        names = " and ".join(sorted(entries.keys() - options.metadata.keys()))
        long = f"{names} of the latents take more than {MAX_LIVE_METADATA:,} bytes"
        warnings.warn(f"{os.fspath(path)}: {long}, and are left out of a live video.", stacklevel=2)
        return options
    return replace(options, metadata=entries)


def _name_and_ending(name: str) -> tuple[str, str]:
    """What errors call a video, and the ending that selects its container."""
    return ("standard output", ".mp4") if name == "-" else (name, Path(name).suffix.lower())
