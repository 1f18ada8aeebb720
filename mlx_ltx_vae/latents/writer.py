"""A latent file written while later latents are still being computed, in memory that does not grow with the clip."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from ..errors import LatentsError, WriterError
from ..part_file import PartFile, writing_to
from .metadata import make_metadata
from .tensor_files import safetensors_header

#: numpy has no bfloat16; its two bytes come as a void, as `tensor_files` has them.
_DTYPE_NAMES = {np.dtype("<f4"): "F32", np.dtype("<f2"): "F16", np.dtype("V2"): "BF16"}
_BFLOAT16_EXPONENT = 0x7F80  # all ones in what is not finite
_BLOCK_BYTES = 2**24


class LatentsWriter:
    """Writes what `save_latents` writes, from latents that come piece by piece. A context manager.

        with LatentsWriter("clip.safetensors", fps=24, height=512, width=768) as out:
            for latents in pieces:  # (B, C, n, 16, 24)
                out.write(latents)
            out.num_frames = 121

    A file has its latents channel by channel, each with the whole of time. So they wait in an unnamed file beside it,
    frame by frame, and are brought into that order at the end.

    Leaving the with-block closes the writer: the file appears under its name. An exception in the block, Ctrl-C
    included, aborts it: nothing is left behind.

    Args:
        path: ends in .safetensors.
        fps: frames per second of the video (see `parse_fps`).
        height, width: of the video, in pixels.

    Attributes:
        num_frames: of the video, to be set before the end by whoever knows it; None is not noted.
        shape: (B, C, F', H', W') of what was written so far, or None.

    Raises:
        WriterError: for a file that cannot be written, and for a frame rate that is none.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        fps: str | float | Fraction | None = None,
        height: int | None = None,
        width: int | None = None,
    ) -> None:
        target = Path(path)
        if target.suffix != ".safetensors":
            raise WriterError(f"{target}: latents are written as safetensors; let the name end in .safetensors.")
        self.num_frames: int | None = None
        self.shape: tuple[int, ...] | None = None
        self._metadata = {"fps": fps, "height": height, "width": width}
        make_metadata(target, num_frames=None, **self._metadata)  # or a bad frame rate would show at the very end
        self._dtype: np.dtype | None = None
        self._closed = False
        self._part = PartFile(target)
        try:
            with writing_to(target):
                self._spool = tempfile.TemporaryFile(dir=target.parent)  # noqa: SIM115  (`abort` closes it)
        except BaseException:
            self._part.discard()
            raise

    @property
    def target(self) -> Path:
        """The file."""
        return self._part.target

    def write(self, latents: np.ndarray) -> None:
        """Append latents (B, C, n, H', W'), normalised: float32, float16, or bfloat16 as two-byte voids (`V2`).

        Raises:
            LatentsError: for another shape or type than the first, and for values that are not finite.
            WriterError: for a closed writer and a full disk.
        """
        if self._closed:
            raise WriterError(f"{self.target}: is closed and takes no more latents.")
        self._check(latents)
        with writing_to(self.target):
            self._spool.write(np.ascontiguousarray(latents.transpose(2, 0, 1, 3, 4)))
        batch, channels, frames, height, width = latents.shape
        before = self.shape[2] if self.shape else 0
        self.shape = (batch, channels, before + frames, height, width)

    def close(self) -> None:
        """Write the file and give it its name. A second call does nothing.

        Raises:
            WriterError: if it cannot be written or there is nothing to write; then nothing is left behind.
        """
        if self._closed:
            return
        try:
            if self.shape is None:
                raise WriterError(f"{self.target}: no latents were written.")
            with writing_to(self.target), self._part.path.open("wb") as file:
                self._write_header(file)
                for block in self._blocks():
                    file.write(block)
            self._part.complete()
        finally:
            self.abort()

    def abort(self) -> None:
        """Leave nothing behind. Does nothing to a closed writer."""
        self._closed = True
        with suppress(OSError):  # closing writes what is buffered, which a full disk refuses once more
            self._spool.close()
        self._part.discard()

    def __enter__(self) -> "LatentsWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _check(self, latents: np.ndarray) -> None:
        shape = latents.shape
        if latents.ndim != 5 or 0 in shape:
            raise LatentsError(f"{self.target}: latents {shape} should have five axes, (B, C, F', H', W'), none empty.")
        if latents.dtype not in _DTYPE_NAMES:
            raise LatentsError(
                f"{self.target}: latents are {latents.dtype}; they should be float32, float16, or bfloat16 as V2."
            )
        alike = self.shape is None or (shape[:2] + shape[3:] == self.shape[:2] + self.shape[3:])
        if not alike or self._dtype not in (None, latents.dtype):
            raise LatentsError(
                f"{self.target}: latents {shape} of type {latents.dtype} follow such of {self.shape} and type "
                f"{self._dtype}; only their number of frames may differ."
            )
        if not _is_finite(latents):
            raise LatentsError(f"{self.target}: latents hold NaN or infinite values; whatever made them failed.")
        self._dtype = latents.dtype

    def _write_header(self, file: BinaryIO) -> None:
        size = int(np.prod(self.shape, dtype=np.int64)) * self._dtype.itemsize
        entry = {"dtype": _DTYPE_NAMES[self._dtype], "shape": self.shape, "data_offsets": [0, size]}
        metadata = make_metadata(self.target, num_frames=self.num_frames, **self._metadata)
        file.write(safetensors_header({"latents": entry}, metadata))

    def _blocks(self) -> Iterator[np.ndarray]:
        """The latents in the file's order, a few MB at a time: whole channels, or parts of one that is long."""
        batch, channels, frames, height, width = self.shape
        self._spool.flush()
        stored = np.memmap(self._spool, self._dtype, "r", shape=(frames, batch, channels, height, width))
        cell = height * width * self._dtype.itemsize
        channel_step = max(1, _BLOCK_BYTES // (frames * cell))
        frame_step = max(1, _BLOCK_BYTES // cell)  # all of them, where several channels fit
        for item in range(batch):
            for channel in range(0, channels, channel_step):
                for frame in range(0, frames, frame_step):
                    block = stored[frame : frame + frame_step, item, channel : channel + channel_step]
                    yield np.ascontiguousarray(block.swapaxes(0, 1))


def _is_finite(latents: np.ndarray) -> bool:
    if latents.dtype.kind == "f":
        return bool(np.isfinite(latents).all())
    return bool((latents.view(np.uint16) & _BFLOAT16_EXPONENT != _BFLOAT16_EXPONENT).all())
