"""Open files and the arrays in them: no value is read before it is used."""

# Files are not mapped: reading a mapped page behind the end of a file that has shrunk ends the process (SIGBUS).

import math
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import IO

import numpy as np

from ..errors import LatentsError, excerpt
from ..files import file_state

_BLOCK_BYTES = 2**20
_MAX_GAP = 2**14  # bytes; to read as many takes as long as another call


class OpenFile:
    """A file that stays open as long as this object exists, also if its name is deleted or becomes another file's."""

    def __init__(self, file: IO[bytes], source: str) -> None:
        self.source = source  # its name in errors
        self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self.state = file_state(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes."""
        return os.pread(self._descriptor, size, offset)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        while buffer:
            count = os.preadv(self._descriptor, [buffer], offset)
            if not count:
                raise self.changed()
            buffer, offset = buffer[count:], offset + count

    def check_unchanged(self) -> None:
        if file_state(self._descriptor) != self.state:
            raise self.changed()

    def changed(self) -> LatentsError:
        return LatentsError(
            f"{self.source}: cannot be read, as the file changed while it was read; wait until the program that "
            "writes it is done."
        )

    @contextmanager
    def reader(self) -> Iterator[IO[bytes]]:
        """A file object at the start of the file. Use one at a time: all share one position."""
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            yield file


@dataclass(frozen=True)
class StoredArray:
    """An array whose values are in a file, or a part of one, described as numpy describes arrays in memory."""

    file: OpenFile
    name: str  # of its dtype: "float32", "bfloat16"; for what numpy does not have, the file's own, such as "F8_E4M3"
    dtype: np.dtype  # a void, such as `V2`, for what numpy does not have
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes between neighbors along each axis
    offset: int  # of the first value in the file

    @classmethod
    def whole(
        cls, file: OpenFile, name: str, dtype: np.dtype, shape: tuple[int, ...], offset: int, is_fortran: bool = False
    ) -> "StoredArray":
        numbers = (math.prod(shape[:axis] if is_fortran else shape[axis + 1 :]) for axis in range(len(shape)))
        return cls(file, name, dtype, shape, tuple(number * dtype.itemsize for number in numbers), offset)

    def __getitem__(self, index: tuple[slice, ...]) -> "StoredArray":
        """A part of it, of which no value is read either. `index` has a slice for each of the first axes."""
        parts = [range(size)[axis] for size, axis in zip(self.shape, index, strict=False)]
        starts = sum(part.start * stride for part, stride in zip(parts, self.strides, strict=False))
        strides = (part.step * stride for part, stride in zip(parts, self.strides, strict=False))
        return replace(
            self,
            shape=(*map(len, parts), *self.shape[len(parts) :]),
            strides=(*strides, *self.strides[len(parts) :]),
            offset=self.offset + starts,
        )

    def read(self) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
        """Yield where each part is in the array, and its values, which the next part overwrites."""
        buffer = bytearray()
        with reading(self.file):
            if self.dtype.hasobject:
                raise ValueError("it holds Python objects, which could run any code when read")
            for where in self._parts():
                part = self[where]
                reaches = [(length - 1) * stride for length, stride in zip(part.shape, part.strides, strict=True)]
                first = sum(-reach for reach in reaches if reach < 0)  # of its bytes; an axis may be reversed
                size = sum(map(abs, reaches)) + self.dtype.itemsize
                if size > len(buffer):
                    buffer = bytearray(size)
                self.file.read_into(memoryview(buffer)[:size], part.offset - first)
                yield where, np.ndarray(part.shape, self.dtype, buffer, first, part.strides)

    def _parts(self) -> Iterator[tuple[slice, ...]]:
        """Slices that together are the whole array, each in at most 1 MB of the file and without large gaps."""
        size, steps = self.dtype.itemsize, [1] * len(self.shape)
        for axis in sorted(range(len(self.shape)), key=lambda axis: abs(self.strides[axis])):
            stride = abs(self.strides[axis])
            if self.shape[axis] > 1 and stride - size > _MAX_GAP:
                break
            steps[axis] = min(self.shape[axis], max(1, _BLOCK_BYTES // max(1, stride)))
            size += (steps[axis] - 1) * stride
        ranges = [range(0, length, max(1, step)) for length, step in zip(self.shape, steps, strict=True)]
        for starts in product(*ranges):
            yield tuple(slice(start, start + step) for start, step in zip(starts, steps, strict=True))


@contextmanager
def reading(file: OpenFile) -> Iterator[None]:
    """Turn any error of a parser into a `LatentsError` of one line. A file that changes meanwhile is one, too."""
    try:
        yield
    except LatentsError:
        raise
    except Exception as error:  # a damaged header can make each of the parsers fail in its own way
        file.check_unchanged()
        reason = excerpt(str(error).split("\n")[0].rstrip("."), 120) or "it is damaged"
        raise LatentsError(f"{file.source}: cannot be read as safetensors, .npy or .npz ({reason}).") from error
    file.check_unchanged()
