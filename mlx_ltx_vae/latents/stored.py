"""Open files whose arrays are mapped: no value is read before it is used."""

import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Literal

import numpy as np

from ..errors import LatentsError, excerpt


class OpenFile:
    """A file that stays open as long as this object exists, also if its name is deleted or becomes another file's.

    Attributes:
        source: its name in errors.
    """

    def __init__(self, file: IO[bytes], source: str) -> None:
        self.source = source
        self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes."""
        return os.pread(self._descriptor, size, offset)

    @contextmanager
    def reader(self) -> Iterator[IO[bytes]]:
        """A file object at the start of the file. Use one at a time: all share one position."""
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            yield file

    def map(self, dtype: np.dtype, shape: tuple[int, ...], offset: int, order: Literal["C", "F"] = "C") -> np.ndarray:
        """An array whose values are in the file. The memory that they take when read is freed with the array.

        Raises:
            TypeError: if the file is too short for it.
        """
        content = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
        return np.ndarray(shape, dtype, content, offset, order=order)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file, known by its header.

    Attributes:
        source: the file's name in errors.
        dtype: "float32", "bfloat16" and so on; for what numpy does not have, the file's own name, such as "F8_E4M3".
        num_bytes: of the values.
    """

    source: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    _map: Callable[[], np.ndarray]

    def map(self) -> np.ndarray:
        """An array whose values are read when they are used; bfloat16 as two-byte voids (`V2`), as numpy has none.

        Raises:
            LatentsError: for a damaged file.
        """
        with reading(self.source):
            return self._map()


@contextmanager
def reading(source: str) -> Iterator[None]:
    """Turn any error of a parser into a `LatentsError` of one line."""
    try:
        yield
    except LatentsError:
        raise
    except Exception as error:  # a damaged header can make each of the parsers fail in its own way
        reason = excerpt(str(error).split("\n")[0].rstrip("."), 120) or type(error).__name__
        raise LatentsError(f"{source}: cannot be read as safetensors, .npy or .npz ({reason}).") from error
