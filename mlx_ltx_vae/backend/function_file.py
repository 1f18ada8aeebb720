"""Exported MLX functions, written so that equal functions are equal bytes, for a device that need not be here.

A `.mlxfn` file names arrays by their addresses, and the device on which it was traced. Both are replaced here. MLX
documents no format; there are two, see `Reader`.
"""

import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..errors import LTXVAEError, suggest
from .machine import READERS, Backend, Reader
from .mlx_utils import disk_errors

MLX_VERSION: str = getattr(mx, "__version__")  # noqa: B009 - not in MLX's stubs
_CPU, _GPU = 0, 1  # MLX's device types

# In the entry of a computed array: the type and index of its device, and the length and the start of a primitive's
# name. Before them are the address of the array, a byte of 1, the number and the addresses of its inputs, and the index
# of the stream.
_PRIMITIVE = re.compile(rb"(?=[\0\1]\0{7}(.)\0{7}([A-Za-z]\w*))", re.DOTALL)
_STREAM_INDEX_BYTES = 4


def find_reader(name: str) -> Reader:
    """Return a reader of exported functions by its name. Raises an `LTXVAEError` for names that `--for` has not."""
    readers = {"mlx": Reader(*map(int, re.findall(r"\d+", MLX_VERSION)[:3])), **READERS}
    if name not in readers:
        raise LTXVAEError(f"the reader {name!r} is not known{suggest(name, readers)}; expected {', '.join(readers)}.")
    return readers[name]


def describe_function(function: Callable[..., list[mx.array]], arguments: Sequence[mx.array]) -> str:
    """Return the graph of a function of arguments like these, as text that is the same for equal functions."""
    entries: list[dict[str, Any]] = []
    mx.export_function(entries.append, function, *arguments)
    constants = [array.tolist() for entry in entries for _, array in entry.get("constants", ())]
    return f"{entries}{constants}"  # an array's own text may be rounded


def write_function(
    path: Path,
    function: Callable[..., list[mx.array]],
    arguments: Sequence[mx.array],
    backend: Backend,
    file_format: int,
) -> int:
    """Trace a function of arguments like these, write it for a backend, and return the size of the file.

    Raises:
        LTXVAEError: if MLX cannot export it, or writes another format.
    """
    try:
        with disk_errors():
            mx.export_function(str(path), function, *arguments)
    except ValueError as error:
        if "Unable to serialize" not in str(error):
            raise
        raise LTXVAEError(f"MLX {MLX_VERSION} cannot export this network: {error}.") from error
    try:
        content = rewrite(path.read_bytes(), _CPU if backend is Backend.CPU else _GPU, file_format)
    except (IndexError, struct.error) as error:
        raise LTXVAEError(
            f"MLX {MLX_VERSION} writes functions in a format that is not known here; export with MLX 0.32."
        ) from error
    return path.write_bytes(content)


def rewrite(content: bytes, device_type: int, file_format: int) -> bytes:
    """Return a file with other names of arrays, 1, 2, 3, ..., and the default stream of a device, in a format.

    Raises an `IndexError` or a `struct.error` for content of an unknown format.
    """
    data = bytearray(content)
    names: dict[int, int] = {}

    def read(at: int) -> int:
        return struct.unpack_from("<Q", data, at)[0]

    def name_all(at: int) -> int:
        """Name the arrays of a list, and return its end."""
        end = at + 8 + 8 * read(at)
        for address in struct.unpack_from(f"<{read(at)}Q", data, at + 8):
            names.setdefault(address, len(names) + 1)
        return end

    at = header_end = 8 + read(0) + struct.calcsize("<i?")  # the version of MLX, the number of functions and a flag
    while read(at) == 0:
        at += 8  # no metadata, which there is in format 2, and no keyword arguments
    keywords = at - 8
    at = name_all(at)
    num_inputs, at = read(at), at + 8
    for _ in range(num_inputs):
        at += 8 + 4 * read(at) + struct.calcsize("<iB")  # its shape and dtype
    at = name_all(at)
    for match in _PRIMITIVE.finditer(content, at):
        inputs_end, name = match.start() - _STREAM_INDEX_BYTES, match[2][: match[1][0]]
        counts = range((inputs_end - at) // 8)
        count = next((n for n in counts if read(inputs_end - 8 * n - 8) == n), -1)
        start = inputs_end - 8 * count - 8
        if len(name) == match[1][0] and count >= 0 and data[start - 1] == 1:
            name_all(start)
            names.setdefault(read(start - 9), len(names) + 1)
            struct.pack_into("<iii", data, inputs_end, 0, device_type, 0)
    values = np.lib.stride_tricks.sliding_window_view(np.frombuffer(content, np.uint8), 8).copy().view("<u8")[:, 0]
    for at in np.flatnonzero((values >= min(names)) & (values <= max(names))).tolist():
        struct.pack_into("<Q", data, at, names.get(int(values[at]), int(values[at])))
    return bytes(data[:header_end] + bytes(8 * (file_format - 1)) + data[keywords:])
