"""Buffer on disk for the frames of a decode by rows or columns, which are complete at its end."""

import errno
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator

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


def buffer_frames(parts: Iterable[mx.array], shape: tuple[int, ...], dtype: mx.Dtype, axis: Axis) -> Iterator[mx.array]:
    """Store parts of every frame, (B, F, h, w, 3) in order along an axis; then yield the frames, a few at a time.

    `shape` is that of all frames (B, F, H, W, 3), which are in a mapped file.
    """
    frames = _map_file(shape, dtype)
    try:
        start = 0
        for part in parts:
            index = [slice(None)] * part.ndim
            index[axis] = slice(start, start + part.shape[axis])
            frames[tuple(index)] = np.asarray(part.view(_BITS[dtype.size]))
            start += part.shape[axis]
            del part
        for start in range(0, shape[1], _FRAMES_AT_ONCE):
            bits = mx.array(np.array(frames[:, start : start + _FRAMES_AT_ONCE]))
            yield bits.view(dtype)
    finally:
        del frames  # and its file, also while a traceback refers to this function


def _map_file(shape: tuple[int, ...], dtype: mx.Dtype) -> np.memmap:
    """Map a new file without a name in the temporary folder; raise a `PlanError` if that cannot hold it."""
    size = math.prod(shape) * dtype.size
    try:
        # The file has no name, so that it is deleted even if the process is killed.
        with uninterrupted():
            file = tempfile.TemporaryFile(prefix="mlx_ltx_vae-")  # noqa: SIM115
        with file:  # it stays open in the mapping
            _reserve(file.fileno(), size)
            return np.memmap(file, np.dtype(f"u{dtype.size}"), "r+", shape=shape)
    except OSError as error:
        raise PlanError(
            f"decoding by rows or columns keeps {format_bytes(size)} of frames in "
            f"{tempfile.tempdir or 'the folder for temporary files'}, which cannot hold them "
            f"({error.strerror or error}); set TMPDIR to a larger disk, or decode with order time."
        ) from error


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
