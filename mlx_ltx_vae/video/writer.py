"""Frames into a video file, while later frames are still being computed."""

import os
from abc import abstractmethod
from fractions import Fraction
from pathlib import Path

import numpy as np

from ..errors import WriterError
from ..frame_rate import parse_fps
from ..part_file import PartFile
from .codecs import (
    CONTAINER_ENDINGS,
    audio_arguments,
    colour_filter,
    container_arguments,
    find_codec,
    quality_arguments,
)
from .ffmpeg import FfmpegPipe, file_url
from .sink import Sink

_RAW_FORMATS = {8: "rgb24", 10: "rgb48le"}
_MAX_GIF_FPS = 50


class FfmpegSink(Sink):
    """A file made by ffmpeg. A subclass says what comes between the input and the file.

    Args:
        path: the file.
        size: `(width, height)` in pixels; the file has exactly this size.
        fps: see `parse_fps`.
        bit_depth: of the frames, 8 or 10.
    """

    def __init__(
        self, path: str | os.PathLike, *, size: tuple[int, int], fps: str | float | Fraction, bit_depth: int = 8
    ) -> None:
        super().__init__(os.fspath(path), size, bit_depth)
        self.path = Path(path)
        try:
            self.fps = parse_fps(fps)
        except ValueError as error:
            raise WriterError(f"{self.name}: {error}") from error
        output_arguments = self._output_arguments()
        self._part = PartFile(self.path)
        try:
            self._ffmpeg = FfmpegPipe(
                self.name, [*self._input_arguments(), *output_arguments, file_url(self._part.path)]
            )
        except BaseException:
            self._part.discard()
            raise

    @abstractmethod
    def _output_arguments(self) -> list[str]:
        """ffmpeg's arguments after the video input and before the file. Raises `WriterError` for bad wishes."""

    def _input_arguments(self) -> list[str]:
        width, height = self.size
        layout = ["-pixel_format", _RAW_FORMATS[self.bit_depth], "-video_size", f"{width}x{height}"]
        return ["-f", "rawvideo", *layout, "-framerate", str(self.fps), "-i", "pipe:0"]

    def _consume(self, frames: np.ndarray) -> None:
        self._ffmpeg.write(memoryview(frames).cast("B"))

    def _finish(self) -> None:
        encoded = self._ffmpeg.finish()
        if encoded != self.frames_written:
            raise WriterError(f"{self.name}: ffmpeg was given {self.frames_written} frames and has written {encoded}.")
        self._part.complete()

    def _interrupt(self) -> None:
        self._ffmpeg.kill()

    def _discard(self) -> None:
        self._ffmpeg.release()
        self._part.discard()


class VideoWriter(FfmpegSink):
    """An mp4, mov, mkv or webm file.

        with VideoWriter("out.mp4", size=(768, 512), fps=24, audio="voice.wav") as out:
            for frames in chunks:  # uint8 (n, 512, 768, 3)
                out.write(frames)

    Args:
        path: the file; its ending chooses the container.
        size: `(width, height)` in pixels, kept exactly, odd ones included (see `codecs`).
        fps: frames per second: 24, 23.976, "30000/1001" (see `parse_fps`).
        audio: a file whose first audio stream is added in full, be it longer or shorter than the video.
        codec: h264 (the default), hevc, prores, ffv1 (lossless), vp9 (the default for webm) or av1.
        crf: quality, 0 the best; by default 18 for h264, 20 for hevc, 24 for vp9 and av1.
        bit_depth: 8 (uint8 frames) or 10 (uint16 frames that use all 16 bits).

    Raises:
        WriterError: for wishes that cannot be fulfilled, before ffmpeg is started.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        size: tuple[int, int],
        fps: str | float | Fraction,
        audio: str | os.PathLike | None = None,
        codec: str | None = None,
        crf: int | None = None,
        bit_depth: int = 8,
    ) -> None:
        self._audio = None if audio is None else Path(audio)
        self._codec = codec
        self._crf = crf
        super().__init__(path, size=size, fps=fps, bit_depth=bit_depth)

    def _output_arguments(self) -> list[str]:
        ending = self.path.suffix.lower()
        if ending not in CONTAINER_ENDINGS:
            raise WriterError(f"{self.name}: a video file ends in {', '.join(CONTAINER_ENDINGS)}.")
        codec = find_codec(self.name, ending, self._codec)
        arguments = ["-map", "0:v:0", "-c:v", codec.encoder, *codec.options]
        arguments += quality_arguments(self.name, codec, self._crf)
        arguments += ["-vf", colour_filter(codec.pixel_format(self.size, self.bit_depth))]
        if self._audio is not None:
            if not self._audio.is_file():
                raise WriterError(f"{self._audio}: there is no such audio file.")
            # No -shortest: it would cut the longer of the two.
            arguments = ["-i", file_url(self._audio), *arguments, "-map", "1:a:0", *audio_arguments(ending)]
        return arguments + container_arguments(ending, codec)


class GifWriter(FfmpegSink):
    """An animated GIF that loops.

    Each frame gets a palette of its own. One palette for all frames would need all frames before the first could
    be written, and 256 colours for a whole clip show bands. Ordered dithering stays where it is from frame to
    frame, where error diffusion crawls.

    Args:
        fps: at most 50, as GIF counts in hundredths of a second and players slow down anything below two.
    """

    def _output_arguments(self) -> list[str]:
        if self.bit_depth != 8:
            raise WriterError(f"{self.name}: a GIF has 8 bits; leave out the bit depth.")
        if self.fps > _MAX_GIF_FPS:
            raise WriterError(f"{self.name}: a GIF plays at most {_MAX_GIF_FPS} frames per second, not {self.fps}.")
        palette = "split[frames][source];[source]palettegen=stats_mode=single:reserve_transparent=0[palette]"
        return ["-vf", f"{palette};[frames][palette]paletteuse=new=1:dither=bayer:bayer_scale=4", "-f", "gif"]
