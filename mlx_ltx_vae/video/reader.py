"""A video file or images into frames, a few at a time."""

import os
from pathlib import Path
from types import TracebackType

import numpy as np

from ..errors import ReaderError
from .codecs import SCALER
from .ffmpeg import FfmpegFrames, describe, pixel_formats
from .fit import Fit, Size, fit_size, show_size
from .probe import VideoInfo, parse_log
from .source import find_source

_FRAMES_AT_ONCE = 8
# Where a stream does not say its matrix, players take BT.709 from one of these on and BT.601 below. ffmpeg takes
# BT.601 always.
_HD_WIDTH, _HD_HEIGHT = 1280, 577
# What ffmpeg says where frames change their size, see `_same_size`.
_OTHER_SIZE = "non positive size for width"


class VideoReader:
    """Reads a video: an iterator over its frames in order, and a context manager.

        with VideoReader("clip.mp4", size=(768, 512), fit=Fit.CROP) as video:
            for frames in video:  # uint8 (n, 512, 768, 3)
                ...

    Frames are full-range RGB. The stream's range and matrix (BT.601, BT.709, BT.2020) are undone; its primaries and
    its transfer function stay as they are, so that HDR stays HDR. It is rotated where the file asks for that.
    Transparent pixels are put over black. Pixels that are not square are taken for square. Where frames come at
    irregular times, some are repeated or left out, so that they come at `fps`.

    Closing the reader ends ffmpeg at once; so do an exception in the with-block and Ctrl-C.

    Args:
        path: a video or GIF, a folder of images (in natural order: 2 before 10), or a pattern such as `a_%05d.png`.
        size: `(width, height)` that frames should have; None for their own or the nearest to it.
        fit: what is done to frames of another size.
        multiple: what both sides must be a multiple of.
        max_frames: how many are read at most; None for all.

    Attributes:
        size: `(width, height)` of the frames that come.
        source_size: of those that there are, rotated.
        fps: frames per second, exactly; None for images.
        num_frames: about how many frames will come; None where that is not known.
        dtype: uint8; uint16 over the full range where the source has more than 8 bits.

    Raises:
        ReaderError: for what cannot be read, or not be fitted; and later, instead of frames, for a file that is
            damaged or was cut short and for images of different sizes.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        size: Size | None = None,
        fit: Fit = Fit.EXACT,
        multiple: int = 32,
        max_frames: int | None = None,
    ) -> None:
        self.name = os.fspath(path)
        if max_frames is not None and max_frames < 1:
            raise ReaderError(f"{self.name}: at most {max_frames} frames are none; read 1 or more.")
        self._source = find_source(Path(path))
        try:
            info = parse_log(describe(self.name, self._source.arguments), self.name)
            pixels = pixel_formats()[info.pixel_format]
            scaled, self.size = fit_size(self.name, info.size, size, fit, multiple)
            self.source_size = info.size
            self.fps = info.fps
            self.num_frames = _count(info, self._source.num_images, max_frames)
            self.dtype = np.dtype(np.uint16 if pixels.bits > 8 else np.uint8)
            filters = [_same_size(info.size)]
            if info.fps is not None:
                filters.append(f"fps={info.fps}")
            filters += _to_rgb(info, scaled, bits=8 * self.dtype.itemsize, has_alpha=pixels.has_alpha)
            filters.append(_crop(scaled, self.size))
            limit = [] if max_frames is None else ["-frames:v", str(max_frames)]
            output = ["-map", "0:V:0", "-vf", ",".join(filters), "-fps_mode", "passthrough", *limit, "-f", "rawvideo"]
            self._ffmpeg: FfmpegFrames | None = FfmpegFrames(self.name, [*self._source.arguments, *output, "pipe:1"])
        except BaseException:
            self._source.close()
            raise

    def __iter__(self) -> "VideoReader":
        return self

    def __next__(self) -> np.ndarray:
        """The next frames `(n, height, width, 3)`, n at most 8. A closed reader has none.

        Raises:
            ReaderError: if there should be more than could be read.
        """
        if self._ffmpeg is None:
            raise StopIteration
        width, height = self.size
        frames = np.empty((_FRAMES_AT_ONCE, height, width, 3), self.dtype)
        try:
            num_frames, rest = divmod(self._ffmpeg.read_into(memoryview(frames).cast("B")), frames[0].nbytes)
            if num_frames < _FRAMES_AT_ONCE:
                self._see_that_all_is_read(rest)
                self.close()
        except BaseException:  # Ctrl-C too
            self.close()
            raise
        if num_frames == 0:
            raise StopIteration
        return frames[:num_frames]

    def close(self) -> None:
        """Stop reading. A second call does nothing."""
        if self._ffmpeg is not None:
            self._ffmpeg.kill()
            self._ffmpeg.release()
            self._ffmpeg = None
            self._source.close()

    def __enter__(self) -> "VideoReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _see_that_all_is_read(self, rest: int) -> None:
        """`rest`: how many bytes there were after the last whole frame."""
        try:
            self._ffmpeg.finish()
        except ReaderError as error:
            if _OTHER_SIZE not in str(error):
                raise
            raise ReaderError(
                f"{self.name}: its frames have different sizes, of which the first is {show_size(self.source_size)}."
            ) from error
        if rest:
            raise ReaderError(f"{self.name}: ffmpeg ended in the middle of a frame.")


def _count(info: VideoInfo, num_images: int | None, max_frames: int | None) -> int | None:
    """About how many frames will come."""
    num_frames = num_images
    if num_images is None and None not in (info.fps, info.seconds):
        num_frames = max(1, round(info.seconds * info.fps))
    return num_frames if None in (num_frames, max_frames) else min(num_frames, max_frames)


def _same_size(size: Size) -> str:
    """A filter that fails for frames of another size, which ffmpeg would stretch, and leaves the others as they are."""
    return "crop=w='iw*eq(iw,{})':h='ih*eq(ih,{})':exact=1".format(*size)


def _to_rgb(info: VideoInfo, size: Size, *, bits: int, has_alpha: bool) -> list[str]:
    """Filters from the stream's pixels to full-range RGB of a size and of 8 or 16 bits."""
    is_hd = info.size[0] >= _HD_WIDTH or info.size[1] >= _HD_HEIGHT
    matrix = "auto" if info.has_matrix else "bt709" if is_hd else "bt601"

    def scale(width: int, height: int) -> str:
        return f"scale={width}:{height}:in_color_matrix={matrix}:flags={SCALER}"

    rgb = "format=rgb24" if bits == 8 else "format=rgb48le"
    if not has_alpha:
        return [scale(*size), rgb]
    # Put over black before it is scaled: afterwards the colours of transparent pixels would have run into others.
    planes = "format=gbrap" if bits == 8 else "format=gbrap16le"
    return [scale(*info.size), planes, "premultiply=inplace=1", scale(*size), rgb]


def _crop(size: Size, target: Size) -> str:
    """A filter that cuts off the same on both sides."""
    left, top = ((size[axis] - target[axis]) // 2 for axis in range(2))
    return f"crop={target[0]}:{target[1]}:{left}:{top}"
