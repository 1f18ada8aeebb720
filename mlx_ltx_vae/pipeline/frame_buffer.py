"""Buffers frames on disk until their last rows or columns are decoded."""

import math
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import mlx.core as mx
import numpy as np

from ..errors import PlanError
from ..streaming.axis import Axis
from ..units import format_bytes

_FRAMES_AT_ONCE = 8

# numpy has no bfloat16, so the bits are stored as unsigned integers.
_BITS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}


class FrameBuffer:
    """A context manager that stores a whole video in a memory-mapped file in a temporary folder.

    Args:
        shape: (B, F, H, W, 3).
        dtype: dtype of the frames.

    Raises:
        PlanError: if the disk of the temporary folder does not have enough free space.
    """

    def __init__(self, shape: tuple[int, ...], dtype: mx.Dtype) -> None:
        self._dtype = dtype
        self._folder = tempfile.TemporaryDirectory(prefix="mlx_ltx_vae-")
        needed = math.prod(shape) * dtype.size
        free = shutil.disk_usage(self._folder.name).free
        if needed > free:
            place = Path(self._folder.name).parent
            self._folder.cleanup()
            raise PlanError(
                f"decoding by rows or columns keeps {format_bytes(needed)} of frames in {place}, which has "
                f"{format_bytes(free)} left; set TMPDIR to a larger disk, or decode with order time."
            )
        item = np.dtype(f"u{dtype.size}")
        self._frames = np.memmap(Path(self._folder.name) / "frames", item, "w+", shape=shape)

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

    def __enter__(self) -> "FrameBuffer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._frames
        self._folder.cleanup()
