"""Videos and animations, which ffmpeg writes while their frames are computed."""

import io
import os
import select
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import WriterError
from ..files import PartFile, file_state, writing_to
from ..frame_format import FrameFormat, FrameOutput, frame_format
from ..options import OutputOptions
from ..process import Cleanup, close_in_children
from ..shapes import Size, format_size
from ..units import Rate, find_fps
from .audio import SOUND_INPUT, Sound, SoundPipe, SoundTrack, find_sample_rate, warn_of_audio
from .codecs import animation_arguments, video_arguments
from .ffmpeg import PIPE_BYTES, FfmpegProcess, find_reason, pipe_from_ffmpeg
from .filters import content_light_arguments
from .metadata import METADATA_INPUT, keep_metadata, metadata_file
from .sink import LiveOutput, Sink, Target, target_name

_PATIENCE = 1.0  # seconds that a cancelled output may take: it can hang in a pipe that nobody reads


class FfmpegEncoder(FfmpegProcess):
    """Running ffmpeg that reads raw frames from its standard input (`-i pipe:0` among its arguments).

    Its output is a URL, or a function that a thread calls with the bytes, and that raises a `WriterError` to end it.
    It also gets the `inherited` open files.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], output: str | Callable[[bytes], None], inherited: Sequence[int] = ()
    ) -> None:
        self._forwarder, self._path = None, None
        if isinstance(output, str):
            self._path = output.removeprefix("file:")
            super().__init__(name, WriterError, [*arguments, output], inherited)
        else:
            with pipe_from_ffmpeg(WriterError) as (pipe, write_end):
                arguments, inherited = [*arguments, f"pipe:{write_end}"], [*inherited, write_end]
                super().__init__(name, WriterError, arguments, inherited)
            self._forwarder = Forwarder(pipe, output)
        assert self.process.stdin is not None
        self._stdin = self.process.stdin
        close_in_children(self._stdin)  # where it would keep ffmpeg waiting for more
        os.set_blocking(self._stdin.fileno(), False)

    def write(self, frames: np.ndarray) -> None:
        """Send frames, waiting while ffmpeg is busy. Raises `WriterError` if ffmpeg or its output has failed."""
        descriptor, data = self._stdin.fileno(), frames.data.cast("B")
        try:
            while data:
                self._raise_output_error()
                self._wait_for_transfer(descriptor, select.POLLOUT)
                with suppress(BlockingIOError):  # the room may be too small for now
                    data = data[os.write(descriptor, data) :]
        except OSError:
            raise self._failure(*self.wait_for_end()) from None

    def _signs(self) -> object:
        if self._forwarder is not None and self._forwarder.is_consuming:
            return object()  # ffmpeg waits for the reader of its output, which may pause
        with suppress(OSError):
            # At the end, ffmpeg may rewrite the file for minutes without a report.
            return super()._signs(), None if self._path is None else file_state(self._path)
        return super()._signs()

    def finish(self) -> int:
        """End the input, wait for ffmpeg and its output, and return the number of frames it reports as written."""
        self._stdin.close()
        code, log = self.wait_for_end()
        if code:
            raise self._failure(code, log)
        if self._forwarder is not None:
            self._forwarder.join()
        self._raise_output_error()
        self._progress.join()
        self.release()
        return self.num_encoded

    @property
    def num_encoded(self) -> int:
        """Number of frames that ffmpeg reports as written so far."""
        counts = [line.removeprefix("frame=") for line in self._progress.lines if line.startswith("frame=")]
        return int(counts[-1]) if counts else 0

    def end(self) -> None:
        """`kill` where nobody waits for the end of a transfer."""
        self._drop_output()
        self._end()

    def kill(self) -> None:
        self._drop_output()
        super().kill()

    def release(self) -> None:
        if self._forwarder is not None:
            self._forwarder.join(_PATIENCE)
        super().release()

    def _drop_output(self) -> None:
        if self._forwarder is not None:
            self._forwarder.is_cancelled = True

    def _raise_output_error(self) -> None:
        if self._forwarder is not None and self._forwarder.error is not None:
            raise self._forwarder.error

    def _failure(self, code: int, log: Sequence[str]) -> WriterError:
        self._raise_output_error()  # the cause, if ffmpeg has failed because nobody reads what it writes
        return WriterError(f"{self.name}: ffmpeg failed: {find_reason(log, code)}.")


class Forwarder(threading.Thread):
    """Passes on what arrives in a pipe until `is_cancelled`, and closes the pipe."""

    def __init__(self, pipe: io.FileIO, consume: Callable[[bytes], None]) -> None:
        super().__init__(name="ffmpeg-output", daemon=True)
        self.error: WriterError | None = None
        self.is_cancelled = self.is_consuming = False
        self._pipe = pipe
        close_in_children(pipe)  # where it would keep ffmpeg waiting for somebody to read
        self._consume = consume
        self.start()

    def run(self) -> None:
        with self._pipe:  # once it is closed, ffmpeg cannot write and ends
            try:
                while (data := self._pipe.read(PIPE_BYTES)) and not self.is_cancelled:
                    self.is_consuming = True  # which takes as long as its reader pauses
                    self._consume(data)
                    self.is_consuming = False
            except WriterError as error:  # raised on the thread that writes frames
                self.error = error


class FfmpegSink(Sink):
    """File written by ffmpeg, of exactly the size of the frames."""

    def __init__(self, name: str, size: Size, fps: Rate, frames: FrameFormat) -> None:
        super().__init__(name, size, frames)
        self.fps = find_fps(self.name, fps, WriterError)

    def _start(
        self,
        target: PartFile | LiveOutput,
        output_arguments: Sequence[str],
        metadata: Mapping[str, str] | None = None,
        sound: SoundPipe | None = None,
    ) -> None:
        layout = ["-pixel_format", self.frames.pixel_format, "-video_size", format_size(*self.size)]
        layout += ["-framerate", str(self.fps), *content_light_arguments(self.frames)]
        raw_video = ["-f", "rawvideo", *layout, "-i", "pipe:0"]
        self._target = target
        output = f"file:{target.path}" if isinstance(target, PartFile) else target.write
        try:
            with writing_to(self.name), metadata_file(metadata or {}) as entries:
                pipes = {METADATA_INPUT: f"pipe:{entries[0]}"} if entries else {}
                if sound is not None:
                    pipes[SOUND_INPUT] = f"pipe:{sound.read_end.fileno()}"
                arguments = [pipes.get(text, text) for text in output_arguments]
                inherited = [*entries, *([] if sound is None else [sound.read_end.fileno()])]
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

    @property
    def num_waiting(self) -> int:
        """Number of frames that ffmpeg has not encoded yet, as it says twice a second."""
        return self.frames_written - self._ffmpeg.num_encoded

    def _finish(self) -> None:
        encoded = self._ffmpeg.finish()
        if encoded != self.frames_written:
            raise WriterError(f"{self.name}: ffmpeg received {self.frames_written} frames and wrote {encoded}.")
        super()._finish()

    def _interrupt(self) -> None:
        self._ffmpeg.kill()

    def _discard(self) -> None:
        self._ffmpeg.release()
        super()._discard()


def _end_and_remove(ffmpeg: FfmpegEncoder, remove: Callable[[], None]) -> None:
    ffmpeg.end()
    remove()  # only now: ffmpeg might create the file again


class VideoWriter(FfmpegSink):
    """Mp4, mov, mkv or webm file, or an mp4 or mov that plays while it grows (`fragmented`).

        with VideoWriter("out.mp4", size=(768, 512), fps=24, audio="voice.wav") as out:
            for frames in chunks:  # uint8 (n, 512, 768, 3)
                out.write(frames)

    A fragmented video plays while it is written: from a file, through a pipe, or in a browser. A fragment comes after
    every half second of video, and the file is larger. It is the one output that appears under its name at once, and
    replaces an earlier file. It is removed after an error, Ctrl-C included, but not if the process is killed. What a
    file object or a named pipe has received stays there.

    Args:
        path: the file; its ending selects the container. If fragmented also a binary file object, such as
            `sys.stdout.buffer`, which gets an mp4 and stays open. A thread calls its `write`, which may block: the
            frames then wait, as does their writer.
        size: `(width, height)` in pixels; odd sizes are kept exactly (see `codecs`).
        fps: frames per second: 24, 23.976, "30000/1001" (see `parse_fps`).
        audio: a file whose first audio stream is added, whole even if it is longer or shorter than the video. Or an
            iterator of sound: of arrays (2, n), or an `AudioStream`. It is taken as frames are written, and must be as
            long as these; up to 60 ms are filled with silence, or cut. Closing warns (`UserWarning`) of a file that is
            longer or shorter by more than a frame, and of one that is lossless where the default codec is lossy.
        codec: h264 (the default), hevc (or h265), prores, prores4444, ffv1 (lossless), vp9 (the default for webm) or
            av1; on a Mac also h264_videotoolbox and hevc_videotoolbox.
        crf: quality, 0 is the best; by default 18 for h264, 20 for hevc, 24 for vp9 and av1.
        bit_depth: 8 (uint8 frames) or 10 (uint16 frames that use all 16 bits).
        format: the format of the frames, such as an HDR signal, instead of the bit depth.
        overwrite: True to replace a file of this name. If not, and one appears while the video is written, the video
            gets the next free number, with a warning.
        shortest: True to cut longer audio at the end of the video. Needs `num_frames`.
        metadata: entries of text by name, such as `{"comment": "take 3"}`, of any length. A warning names the
            entries that the container does not keep as they are; they are left out.
        encoder_preset: for h264 and hevc: ultrafast to veryslow, by default medium. Slower ones make smaller files.
        pix_fmt: a pixel format of ffmpeg's encoder instead of the default, such as `"yuv444p"`.
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
        format: FrameFormat | None = None,
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
        frames = format or frame_format(bit_depth, WriterError, target_name(path))
        options = OutputOptions(
            audio=audio, codec=codec, crf=crf, fragmented=fragmented, overwrite=overwrite, shortest=shortest,
            metadata=metadata or {}, encoder_preset=encoder_preset, pix_fmt=pix_fmt, audio_codec=audio_codec,
            sample_rate=sample_rate, frames=FrameOutput(frames),
        )  # fmt: skip
        self._open(path, size, fps, options, num_frames, warns_of_audio=True)

    @classmethod
    def from_options(
        cls, path: Target, size: Size, fps: Rate, options: OutputOptions, num_frames: int | None
    ) -> "VideoWriter":
        """Make the writer of a `OutputOptions` for `open_sink`; `check_output` warns its callers about the audio."""
        writer = cls.__new__(cls)
        writer._open(path, size, fps, options, num_frames, warns_of_audio=num_frames is None)
        return writer

    def _open(
        self,
        path: Target,
        size: Size,
        fps: Rate,
        options: OutputOptions,
        num_frames: int | None,
        *,
        warns_of_audio: bool,
    ) -> None:
        super().__init__(target_name(path), size, fps, options.format)
        is_path, overwrite, audio = isinstance(path, (str, os.PathLike)), bool(options.overwrite), options.audio
        if not is_path and not options.fragmented:
            raise WriterError(f"{self.name}: only a fragmented video needs no file name; add fragmented=True.")
        self._ending = Path(self.name).suffix.lower() if is_path else ".mp4"
        entries = keep_metadata(self.name, self._ending, options.metadata, is_live=options.fragmented)
        self._options = options = replace(options, metadata=entries)
        self._num_frames, self._warns_of_audio = num_frames, warns_of_audio
        arguments = video_arguments(self.name, self._ending, size, self.fps, options, num_frames)
        is_live = options.fragmented
        target = LiveOutput(path, overwrite) if is_live else PartFile(Path(self.name), overwrite=overwrite)
        self._sound: SoundTrack | None = None
        self._pipe: SoundPipe | None = None
        if audio is not None and not isinstance(audio, (str, os.PathLike)):
            rate = find_sample_rate(self.name, audio, options.sample_rate)
            self._sound = SoundTrack(self.name, audio, rate, self.fps, num_frames, cuts=options.shortest)
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
        super()._finish()
        if self._warns_of_audio:
            with suppress(WriterError):  # the output is complete, whatever has become of an audio file
                warn_of_audio(self.name, self._ending, self.frames_written, self.fps, self._options)


class AnimationWriter(FfmpegSink):
    """Picture of several frames that loops: an animated GIF, WebP or AVIF."""

    def __init__(self, path: str | os.PathLike, size: Size, fps: Rate, options: OutputOptions) -> None:
        super().__init__(os.fspath(path), size, fps, options.format)
        arguments = animation_arguments(self.name, Path(path).suffix.lower(), size, self.fps, options)
        self._start(PartFile(Path(path), overwrite=bool(options.overwrite)), arguments)
