"""Video files written by ffmpeg while later frames are still being computed."""

import os
from abc import abstractmethod
from fractions import Fraction
from pathlib import Path

import numpy as np

from ..errors import WriterError
from ..frame_rate import parse_fps
from ..part_file import PartFile
from ..shapes import format_size
from .codecs import (
    CONTAINER_ENDINGS,
    audio_arguments,
    color_filter,
    container_arguments,
    find_codec,
    quality_arguments,
)
from .ffmpeg import FfmpegEncoder, file_url
from .sink import Sink

_RAW_FORMATS = {8: "rgb24", 10: "rgb48le"}
_MAX_GIF_FPS = 50


class FfmpegSink(Sink):
    """A file written by ffmpeg. A subclass returns the arguments between the input and the file.

    Args:
        path: the file.
        size: `(width, height)` in pixels; the file has exactly this size.
        fps: frames per second (see `parse_fps`).
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
            self._ffmpeg = FfmpegEncoder(
                self.name, [*self._input_arguments(), *output_arguments, file_url(self._part.path)]
            )
        except BaseException:
            self._part.discard()
            raise

    @abstractmethod
    def _output_arguments(self) -> list[str]:
        """ffmpeg's arguments after the video input and before the file. Raises `WriterError` for invalid options."""

    def _input_arguments(self) -> list[str]:
        layout = ["-pixel_format", _RAW_FORMATS[self.bit_depth], "-video_size", format_size(*self.size)]
        return ["-f", "rawvideo", *layout, "-framerate", str(self.fps), "-i", "pipe:0"]

    def _consume(self, frames: np.ndarray) -> None:
        self._ffmpeg.write(frames.data.cast("B"))

    def _finish(self) -> None:
        encoded = self._ffmpeg.finish()
        if encoded != self.frames_written:
            raise WriterError(f"{self.name}: ffmpeg received {self.frames_written} frames and wrote {encoded}.")
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
        path: the file; its ending selects the container.
        size: `(width, height)` in pixels; odd sizes are kept exactly (see `codecs`).
        fps: frames per second: 24, 23.976, "30000/1001" (see `parse_fps`).
        audio: a file whose first audio stream is added, whole even if it is longer or shorter than the video.
        codec: h264 (the default), hevc, prores, ffv1 (lossless), vp9 (the default for webm) or av1.
        crf: quality, 0 is the best; by default 18 for h264, 20 for hevc, 24 for vp9 and av1.
        bit_depth: 8 (uint8 frames) or 10 (uint16 frames that use all 16 bits).

    Raises:
        WriterError: for invalid options, before ffmpeg is started.
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
            raise WriterError(f"{self.name}: a video file must end in {', '.join(CONTAINER_ENDINGS)}.")
        codec = find_codec(self.name, ending, self._codec)
        arguments = ["-map", "0:v:0", "-c:v", codec.encoder, *codec.options]
        arguments += quality_arguments(self.name, codec, self._crf)
        arguments += ["-vf", color_filter(codec.pixel_format(self.size, self.bit_depth))]
        if self._audio is not None:
            if not self._audio.is_file():
                raise WriterError(f"{self._audio}: there is no such audio file.")
            # Without -shortest, which would cut the longer of the two.
            arguments = ["-i", file_url(self._audio), *arguments, "-map", "1:a:0", *audio_arguments(ending)]
        return arguments + container_arguments(ending, codec)


class GifWriter(FfmpegSink):
    """An animated GIF that loops.

    Each frame has its own palette. A shared palette needs all frames before the first can be written, and 256 colors
    for a whole clip cause banding. The dithering is ordered, since error diffusion flickers from frame to frame.

    Args:
        fps: at most 50: GIF delays are in hundredths of a second, and players slow down delays below two.
    """

    def _output_arguments(self) -> list[str]:
        if self.bit_depth != 8:
            raise WriterError(f"{self.name}: a GIF has 8 bits per color; leave out the bit depth.")
        if self.fps > _MAX_GIF_FPS:
            raise WriterError(f"{self.name}: a GIF plays at most {_MAX_GIF_FPS} frames per second, not {self.fps}.")
        palette = "split[frames][source];[source]palettegen=stats_mode=single:reserve_transparent=0[palette]"
        return ["-vf", f"{palette};[frames][palette]paletteuse=new=1:dither=bayer:bayer_scale=4", "-f", "gif"]
