"""Buffer on disk for the frames of a decode by rows or columns, which are complete at its end."""

import errno
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack

import mlx.core as mx
import numpy as np

from ..errors import PlanError
from ..process import uninterrupted
from ..shapes import Axis
from ..units import format_bytes

_FRAMES_AT_ONCE = 8
_ZEROS_AT_ONCE = 2**20  # bytes

# numpy has no bfloat16, so the bits are stored as unsigned integers.
_BITS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}


class FrameBuffer(AbstractContextManager["FrameBuffer"]):
    """Context manager that stores frames (B, F, H, W, 3) in a mapped file without a name in the temporary folder."""

    def __init__(self, shape: tuple[int, ...], dtype: mx.Dtype) -> None:
        self._dtype = dtype
        size = math.prod(shape) * dtype.size
        try:
            # The file has no name, so that it is deleted even if the process is killed.
            with uninterrupted():
                self._file = tempfile.TemporaryFile(prefix="mlx_ltx_vae-")  # noqa: SIM115
            with ExitStack() as stack:
                stack.callback(self._file.close)
                _reserve(self._file.fileno(), size)
                self._frames = np.memmap(self._file, np.dtype(f"u{dtype.size}"), "r+", shape=shape)
                stack.pop_all()
        except OSError as error:
            raise PlanError(
                f"decoding by rows or columns keeps {format_bytes(size)} of frames in "
                f"{tempfile.tempdir or 'the folder for temporary files'}, which cannot hold them "
                f"({error.strerror or error}); set TMPDIR to a larger disk, or decode with order time."
            ) from error

    def write(self, part: mx.array, axis: Axis, start: int) -> None:
        """Store a part of every frame, (B, F, h, w, 3), at index `start` along `axis`."""
        index = [slice(None)] * part.ndim
        index[axis] = slice(start, start + part.shape[axis])
        self._frames[tuple(index)] = np.asarray(part.view(_BITS[self._dtype.size]))

    def read(self) -> Iterator[mx.array]:
        """Yield the stored frames in order, a few at a time: (B, n, H, W, 3)."""
        for start in range(0, self._frames.shape[1], _FRAMES_AT_ONCE):
            bits = mx.array(np.array(self._frames[:, start : start + _FRAMES_AT_ONCE]))
            yield bits.view(self._dtype)

    def __exit__(self, *_: object) -> None:
        del self._frames
        self._file.close()


def _reserve(descriptor: int, size: int) -> None:
    """Extend an empty file to a size in bytes, with all its blocks on the disk, or raise an `OSError`.

    A mapped file whose blocks are missing when the disk is full ends the process with SIGBUS.
    """
    free = shutil.disk_usage(descriptor).free  # the folder may be gone
    if size > free:  # do not fill the disk first
        raise OSError(errno.ENOSPC, f"{format_bytes(free)} left")
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    zeros = memoryview(bytes(_ZEROS_AT_ONCE))  # macOS
    while size:
        size -= os.write(descriptor, zeros[:size])
