"""Videos and animations, which ffmpeg writes while their frames are computed."""

import os
import select
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from ..codec_table import CONTAINERS
from ..errors import WriterError
from ..files import PartFile, file_state, writing_to
from ..frame_format import FrameFormat, FrameOutput, frame_format
from ..options import OutputOptions
from ..process import Cleanup, close_in_children
from ..shapes import Size, format_size
from ..units import Rate, find_fps
from .audio import AUDIO_INPUT, Audio, AudioTrack, find_sample_rate, open_audio_pipe
from .codecs import video_arguments, warn_of_audio
from .ffmpeg import FfmpegProcess, find_reason, pipe_from_ffmpeg
from .filters import content_light_arguments
from .metadata import METADATA_INPUT, keep_metadata, metadata_file
from .sink import Sink, SinkRequest, check_count, check_not_live, check_size
from .streams import LiveOutput, StandardOutput, Target, target_name

_PATIENCE = 1.0  # seconds that a cancelled output may take: it can hang in a pipe that nobody reads


class FfmpegEncoder(FfmpegProcess):
    """Running ffmpeg that reads raw frames from its standard input (`-i pipe:0` among its arguments).

    It also gets the `inherited` open files.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], output: PartFile | LiveOutput, inherited: Sequence[int] = ()
    ) -> None:
        self._part, self._live = None, None
        if isinstance(output, PartFile):
            self._part, path = output, output.path
            # At the end, ffmpeg opens the file again, by this path. It follows a folder that is moved meanwhile.
            arguments = [*arguments, f"file:{path.name}"]
            super().__init__(name, arguments, inherited, WriterError, writes_output=False, folder=path.parent)
        else:
            self._live = output
            with pipe_from_ffmpeg(WriterError) as (pipe, write_end):
                arguments, inherited = [*arguments, f"pipe:{write_end}"], [*inherited, write_end]
                super().__init__(name, arguments, inherited, WriterError, writes_output=False)
            output.read_from(pipe)
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
        if self._live is not None and self._live.is_busy:
            return object()  # ffmpeg waits for the reader of its output, which may pause
        with suppress(OSError):
            # At the end, ffmpeg may rewrite the file for minutes without a report.
            return super()._signs(), None if self._part is None else file_state(self._part.path)
        return super()._signs()

    def finish(self) -> int:
        """End the input, wait for ffmpeg and its output, and return the number of frames it reports as written."""
        self._stdin.close()
        code, log = self.wait_for_end()
        if code:
            raise self._failure(code, log)
        if self._live is not None:
            self._live.join()
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
        """Kill ffmpeg where nobody waits for the end of a transfer."""
        self._drop_output()
        self._end()

    def kill(self) -> None:
        self._drop_output()
        super().kill()

    def release(self) -> None:
        if self._live is not None:
            self._live.join(_PATIENCE)
        super().release()

    def _drop_output(self) -> None:
        if self._live is not None:
            self._live.is_cancelled = True

    def _raise_output_error(self) -> None:
        if self._live is not None and self._live.error is not None:
            raise self._live.error

    def _failure(self, code: int, log: Sequence[str]) -> WriterError:
        self._raise_output_error()  # the cause, if ffmpeg has failed because nobody reads what it writes
        if self._part is not None:
            with writing_to(self.name):
                os.stat(self._part.path)  # which fails if it was removed
        return WriterError(f"{self.name}: ffmpeg failed: {find_reason(log, code)}.")


class VideoWriter(Sink):
    """Mp4, mov, mkv or webm file, or an mp4 in a file object that plays while it grows (`fragmented`).

        with VideoWriter("out.mp4", size=(768, 512), fps=24, audio="voice.wav") as out:
            for frames in chunks:  # uint8 (n, 512, 768, 3)
                out.write(frames)

    A fragmented video plays while it is written, through a pipe or in a browser. A fragment comes after every half
    second of video, and the video is larger. What the file object has received stays there after an error.

    Args:
        path: the file; its ending selects the container. If fragmented, a binary file object, such as
            `sys.stdout.buffer`, which gets an mp4 and stays open. A thread calls its `write`, which may block: the
            frames then wait, as does their writer.
        size: `(width, height)` in pixels; odd sizes are kept exactly (see `codecs`).
        fps: frames per second: 24, 23.976, "30000/1001" (see `parse_fps`).
        audio: a file whose first audio stream is added, whole even if it is longer or shorter than the video. Or an
            iterator of audio: of arrays (2, n), or an `AudioStream`. It is taken as frames are written, and must be as
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
        sample_rate: of an iterator of audio, if that has no `sample_rate` itself.
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
        audio: str | os.PathLike | Audio | None = None,
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
        name, is_path = target_name(path), isinstance(path, (str, os.PathLike))
        ending = Path(name).suffix.lower() if is_path else ".mp4"
        frames = format or frame_format(bit_depth, WriterError, name)
        if ending not in CONTAINERS:
            raise WriterError(f"{name}: a video file must end in {', '.join(CONTAINERS)}.")
        options = OutputOptions(
            audio=audio, codec=codec, crf=crf, fragmented=fragmented, overwrite=overwrite, shortest=shortest,
            metadata=metadata or {}, encoder_preset=encoder_preset, pix_fmt=pix_fmt, audio_codec=audio_codec,
            sample_rate=sample_rate, frames=FrameOutput(frames),
        )  # fmt: skip
        check_size(name, size)
        rate = find_fps(name, fps, WriterError)
        if is_path:
            check_not_live(name, options)
        elif not fragmented:
            raise WriterError(f"{name}: only a fragmented video needs no file name; add fragmented=True.")
        entries = keep_metadata(name, ending, options.metadata, is_live=fragmented)
        output = SinkRequest(name, size, rate, replace(options, metadata=entries), num_frames)
        self._open(path, output, rate, warns_of_audio=True)

    @classmethod
    def from_output(cls, output: SinkRequest) -> "VideoWriter":
        """Make the writer of a video or an animation for `open_sink`, which has checked the output.

        `check_output` warns its callers of the audio.
        """
        writer, target = cls.__new__(cls), StandardOutput("the video") if output.name == "-" else output.name
        output = replace(output, name=target if isinstance(target, str) else target.name)
        fps = find_fps(output.name, output.fps, WriterError)
        writer._open(target, output, fps, warns_of_audio=output.num_frames is None)
        return writer

    def _open(self, target: Target, output: SinkRequest, fps: Fraction, *, warns_of_audio: bool) -> None:
        name, options, self.fps, self._options = output.name, output.options, fps, output.options
        self._ending = Path(name).suffix.lower() if isinstance(target, (str, os.PathLike)) else ".mp4"
        self._num_frames, self._warns_of_audio = output.num_frames, warns_of_audio
        encoding = output.encoding or video_arguments(
            name, self._ending, output.size, fps, options, output.num_frames, output.codec
        )
        overwrite, audio = bool(options.overwrite), options.audio
        file: PartFile | LiveOutput = (
            PartFile(Path(name), overwrite=overwrite) if isinstance(target, (str, os.PathLike)) else LiveOutput(target)
        )
        self._audio: AudioTrack | None = None
        with ExitStack() as on_error, ExitStack() as stack, writing_to(name):
            on_error.callback(file.discard)
            pipes = {}  # what stands for a pipe among the arguments, and the open file that ffmpeg gets
            if options.metadata:
                pipes[METADATA_INPUT] = stack.enter_context(metadata_file(options.metadata))
            if audio is not None and not isinstance(audio, (str, os.PathLike)):
                rate = find_sample_rate(name, audio, options.sample_rate)
                self._audio = AudioTrack(name, audio, rate, fps, output.num_frames, cuts=options.shortest)
                pipe, self._samples = open_audio_pipe()
                on_error.callback(self._samples.cancel)
                weakref.finalize(self, self._samples.arrays.put, None)  # as in `Sink`
                pipes[AUDIO_INPUT] = stack.enter_context(pipe).fileno()
            arguments = [f"pipe:{pipes[word]}" if word in pipes else word for word in encoding]
            raw_video = ["-f", "rawvideo", "-pixel_format", options.format.pixel_format]
            raw_video += ["-video_size", format_size(*output.size), "-framerate", str(fps)]
            raw_video += [*content_light_arguments(options.format), "-i", "pipe:0"]
            self._ffmpeg = FfmpegEncoder(name, [*raw_video, *arguments], file, [*pipes.values()])
            on_error.pop_all()
        if self._audio is not None:
            self._samples.start()
        Cleanup(self, _end_and_remove, self._ffmpeg, file.discard)
        super().__init__(name, output.size, options.format, self._ffmpeg.write, lambda _: file.complete(), file.discard)

    def write(self, frames: np.ndarray) -> None:
        self._check_owner()
        if self._audio is not None and not self._closed and isinstance(frames, np.ndarray):
            for samples in self._audio.until(self.frames_written + len(frames)):
                self._samples.put(samples)
        super().write(frames)

    def close(self) -> None:
        if self._audio is not None and not self._closed and self.frames_written:
            self._check_owner()
            try:
                for samples in self._audio.finish(self.frames_written):
                    self._samples.put(samples)
                self._samples.end()
            except BaseException:
                self.abort()
                raise
        super().close()

    @property
    def num_waiting(self) -> int:
        """Number of frames that ffmpeg has not encoded yet, as it says twice a second."""
        return self.frames_written - self._ffmpeg.num_encoded

    def _finish(self) -> None:
        check_count(self.name, self.frames_written, self._num_frames)
        encoded = self._ffmpeg.finish()
        if encoded != self.frames_written:
            raise WriterError(f"{self.name}: ffmpeg received {self.frames_written} frames and wrote {encoded}.")
        super()._finish()
        if self._warns_of_audio:
            with suppress(WriterError):  # the output is complete, whatever has become of an audio file
                warn_of_audio(self.name, self._ending, self.frames_written, self.fps, self._options)

    def _interrupt(self) -> None:
        self._ffmpeg.kill()

    def _discard(self) -> None:
        self._ffmpeg.release()
        super()._discard()
        if self._audio is not None:
            self._samples.cancel()
            self._audio.close()


def _end_and_remove(ffmpeg: FfmpegEncoder, remove: Callable[[], None]) -> None:
    ffmpeg.end()
    remove()  # only now: ffmpeg might create the file again
