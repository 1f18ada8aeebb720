"""Exported MLX functions, written so that equal functions are equal bytes, for a device that need not be here.

A `.mlxfn` file refers to arrays by their addresses, and to the device on which it was traced. Both are replaced here.
MLX documents no format; this module reads those of 0.31 and 0.32, and raises an error for anything else.
"""

import struct
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import mlx.core as mx

from ..errors import LTXVAEError
from .machine import Backend

_MOST_AXES = 8
_LONGEST_NAME = 64  # of a primitive
_ITEM_SIZES = (1, 2, 4, 8)
MLX_VERSION: str = getattr(mx, "__version__")  # noqa: B009 - not in MLX's stubs
_CPU, _GPU = 0, 1  # MLX's device types
_STREAM = struct.Struct("<iii")  # its index, and the type and the index of its device
_ADDRESSES = 2**32, 2**48  # of arrays, on 64-bit systems

_state_sizes: dict[bytes, set[int]] = {}  # of primitives by name, as seen so far: where to look first


class _UnknownFormat(Exception):
    pass


def write_function(
    path: Path, function: Callable[..., list[mx.array]], arguments: Sequence[mx.array], backend: Backend
) -> None:
    """Trace a function with arguments of these shapes and dtypes, and write it for a backend.

    Raises:
        LTXVAEError: if MLX cannot export it, or writes another format than the known ones.
    """
    try:
        mx.export_function(str(path), function, *arguments)
    except ValueError as error:
        if "Unable to serialize" not in str(error):
            raise
        raise LTXVAEError(f"MLX {MLX_VERSION} cannot export this network: {error}.") from error
    try:
        data = _Rewriter(path.read_bytes(), _CPU if backend is Backend.CPU else _GPU).rewrite()
    except (_UnknownFormat, struct.error) as error:
        raise LTXVAEError(
            f"MLX {MLX_VERSION} writes functions in a format that is not known here; export with MLX 0.32."
        ) from error
    path.write_bytes(data)


class _Rewriter:
    """Rewriting of one file. Array ids become 1, 2, 3, ..., and streams the default one of a device.

    What belongs to a primitive is not read: it ends where the shape of its result and a next entry follow, which name
    only known arrays.
    """

    def __init__(self, data: bytes, device_type: int) -> None:
        self._data = bytearray(data)
        self._at = 0
        self._numbers: dict[int, int] = {}
        self._device_type = device_type

    def rewrite(self) -> bytes:
        self._skip_text()  # the version
        count, is_shapeless = self._read("<i?")
        if count != 1 or is_shapeless:
            raise _UnknownFormat
        while struct.unpack_from("<Q", self._data, self._at) == (0,):
            self._at += 8  # no metadata, which MLX has since 0.32.1, and no keyword arguments
        self._replace_ids()
        for _ in range(self._count()):
            self._at = self._skip_array(self._at)
        self._replace_ids()
        for entries_left in reversed(range(self._count())):
            self._rewrite_entry(is_last=entries_left == 0)
        if self._at != len(self._data):
            raise _UnknownFormat
        return bytes(self._data)

    def _rewrite_entry(self, *, is_last: bool) -> None:
        self._replace_id()
        (is_computed,) = self._read("<?")
        if is_computed:
            self._replace_ids()
            _STREAM.pack_into(self._data, self._at, 0, self._device_type, 0)
            self._at += _STREAM.size
            start = self._at
            self._skip_text()
            self._find_result(bytes(self._data[start + 8 : self._at]), is_last=is_last)
        else:
            (is_constant,) = self._read("<?")
            if is_constant:
                start = self._at
                self._at = self._skip_array(start)
                self._at += self._num_bytes(start)

    def _find_result(self, name: bytes, *, is_last: bool) -> None:
        """Go to the end of the entry, and replace the ids of its further results."""
        sizes = _state_sizes.setdefault(name, set())
        for start in chain((self._at + size for size in tuple(sizes)), range(self._at, len(self._data))):
            try:
                end, ids_at = self._skip_result(start)
                is_end = end == len(self._data) if is_last else self._is_entry(end, self._ids(ids_at))
            except (_UnknownFormat, struct.error, IndexError):
                continue
            if is_end:
                sizes.add(start - self._at)
                if ids_at is not None:
                    self._at = ids_at
                    self._replace_ids()
                self._at = end
                return
        raise _UnknownFormat

    def _skip_result(self, at: int) -> tuple[int, int | None]:
        """Return the end of the shapes and dtypes of a result, and where the ids of several results are."""
        (siblings,) = struct.unpack_from("<Q", self._data, at)
        at += 8
        if not siblings:
            return self._skip_array(at), None
        (count,) = struct.unpack_from("<Q", self._data, at)
        if count != siblings + 1 or count > len(self._data):
            raise _UnknownFormat
        ids_at = at
        at += 8 + 8 * count
        if struct.unpack_from("<Q", self._data, at) != (count,):
            raise _UnknownFormat
        at += 8
        for _ in range(count):
            at = self._skip_shape(at)
        if struct.unpack_from("<Q", self._data, at) != (count,):
            raise _UnknownFormat
        at += 8
        for _ in range(count):
            at = self._skip_dtype(at)
        return at, ids_at

    def _ids(self, at: int | None) -> tuple[int, ...]:
        if at is None:
            return ()
        (count,) = struct.unpack_from("<Q", self._data, at)
        if count > len(self._data):
            raise _UnknownFormat
        return struct.unpack_from(f"<{count}Q", self._data, at + 8)

    def _is_entry(self, at: int, siblings: tuple[int, ...]) -> bool:
        """Return whether an entry begins here: a result of known arrays by a primitive, an input, or a constant."""
        address, is_computed, kind = struct.unpack_from("<Q?B", self._data, at)
        if not _ADDRESSES[0] <= address < _ADDRESSES[1]:
            return False
        if not is_computed:
            return address in self._numbers if kind == 0 else kind == 1 and self._skip_array(at + 10) > 0
        ids = self._ids(at + 9)
        at += 17 + 8 * len(ids) + _STREAM.size
        (length,) = struct.unpack_from("<Q", self._data, at)
        name = self._data[at + 8 : at + 8 + length] if length <= _LONGEST_NAME else b""
        return name.isalnum() and all(other in self._numbers or other in siblings for other in ids)

    def _skip_array(self, at: int) -> int:
        return self._skip_dtype(self._skip_shape(at))

    def _skip_shape(self, at: int) -> int:
        (axes,) = struct.unpack_from("<Q", self._data, at)
        if axes > _MOST_AXES or min(struct.unpack_from(f"<{axes}i", self._data, at + 8), default=0) < 0:
            raise _UnknownFormat
        return at + 8 + 4 * axes

    def _skip_dtype(self, at: int) -> int:
        value, size = struct.unpack_from("<iB", self._data, at)
        if not 0 <= value < 32 or size not in _ITEM_SIZES:
            raise _UnknownFormat
        return at + 5

    def _num_bytes(self, at: int) -> int:
        """Return the bytes of the values of an array whose shape is here."""
        (axes,) = struct.unpack_from("<Q", self._data, at)
        size = self._data[self._skip_array(at) - 1]
        for extent in struct.unpack_from(f"<{axes}i", self._data, at + 8):
            size *= extent
        return size

    def _read(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _count(self) -> int:
        return self._read("<Q")[0]

    def _skip_text(self) -> None:
        length = self._count()
        if length > _LONGEST_NAME:
            raise _UnknownFormat
        self._at += length

    def _replace_ids(self) -> None:
        for _ in range(self._count()):
            self._replace_id()

    def _replace_id(self) -> None:
        (address,) = struct.unpack_from("<Q", self._data, self._at)
        number = self._numbers.setdefault(address, len(self._numbers) + 1)
        struct.pack_into("<Q", self._data, self._at, number)
        self._at += 8
