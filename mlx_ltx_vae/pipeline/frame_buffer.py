"""Frames that wait on disk until the last of their rows or columns is done."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..errors import PlanError

_FRAMES_AT_ONCE = 8
_GB = 1e9


class FrameSpool:
    """A whole video in a file mapped into memory, in a temporary folder that goes with this object.

    A context manager: the folder is gone when the block is left, however it is left.

    Args:
        shape: (B, F, H, W, 3).
        dtype: what is kept of each sample.

    Raises:
        PlanError: where the temporary folder has no room for it.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mlx_ltx_vae-")
        needed = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        free = shutil.disk_usage(self._folder.name).free
        if needed > free:
            place = Path(self._folder.name).parent
            self._folder.cleanup()
            raise PlanError(
                f"decoding by rows or columns keeps {needed / _GB:.1f} GB of frames in {place}, which has "
                f"{free / _GB:.1f} GB left; set TMPDIR to a larger disk, or decode with order time."
            )
        self._frames: np.memmap | None = np.memmap(Path(self._folder.name) / "frames", dtype, "w+", shape=shape)

    def put(self, part: np.ndarray, axis: int, start: int) -> None:
        """Store a part of every frame: (B, F, h, w, 3), from `start` on along `axis`."""
        index = [slice(None)] * part.ndim
        index[axis] = slice(start, start + part.shape[axis])
        self._frames[tuple(index)] = part

    def frames(self) -> Iterator[np.ndarray]:
        """The stored frames in order, copied out a few at a time: (B, n, H, W, 3)."""
        for start in range(0, self._frames.shape[1], _FRAMES_AT_ONCE):
            yield np.array(self._frames[:, start : start + _FRAMES_AT_ONCE])

    def __enter__(self) -> "FrameSpool":
        return self

    def __exit__(self, *exception: object) -> None:
        self._frames = None
        self._folder.cleanup()
