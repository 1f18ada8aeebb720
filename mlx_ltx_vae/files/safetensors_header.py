"""The headers of safetensors files, read and checked by the safetensors library. No tensor is read, and no MLX."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from ..errors import excerpt

_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64", "BOOL": "bool",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
}  # fmt: skip
_MAX_BYTES, _MAX_TENSORS = 2**24, 2**16  # of a header: more than ten times those of any whole model


class TensorHeader(NamedTuple):
    """A tensor of a file, known by the header."""

    dtype: str  # "float32", "bfloat16", "uint8"; for what neither numpy nor MLX has, the file's name, as "F8_E4M3"
    shape: tuple[int, ...]


def read_header(path: Path) -> tuple[dict[str, TensorHeader], dict[str, str]]:
    """The tensors of a safetensors file by name, in the order of their data, and its metadata; else a `ValueError`."""
    with path.open("rb") as stream:
        start = stream.read(min(int.from_bytes(stream.read(8), "little"), _MAX_BYTES + 1))
    if len(start) > _MAX_BYTES or start.count(b'"data_offsets"') > _MAX_TENSORS:  # seconds and gigabytes to parse
        raise ValueError(f"header too large; expected at most {_MAX_BYTES >> 20} MB and {_MAX_TENSORS} tensors")
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {}
            for name in file.offset_keys():
                stored = file.get_slice(name)
                dtype = stored.get_dtype()
                tensors[name] = TensorHeader(_DTYPES.get(dtype, dtype), tuple(stored.get_shape()))
            return tensors, file.metadata() or {}
    except SafetensorError as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        if "file not fully covered" in reason:
            reason = f"it has {path.stat().st_size} bytes, not as many as its header says: it is truncated or damaged"
        raise ValueError(excerpt(reason, 120)) from error


def read_positions(read: Callable[[int, int], bytes]) -> dict[str, tuple[int, int]]:
    """Where the values of each tensor begin and end in a file that `read_header` has accepted. `read(start, size)`."""
    length = int.from_bytes(read(0, 8), "little")
    entries = json.loads(read(8, length))
    spans = {name: entry["data_offsets"] for name, entry in entries.items() if name != "__metadata__"}
    return {name: (8 + length + begin, 8 + length + end) for name, (begin, end) in spans.items()}
