"""The headers of safetensors files, read and checked by the safetensors library. No tensor is read, and no MLX."""

import json
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
    begin: int  # where its values begin and end in the file
    end: int


def read_header(path: Path) -> tuple[dict[str, TensorHeader], dict[str, str]]:
    """The tensors of a safetensors file by name, in the order of their data, and its metadata; else a `ValueError`."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        start = stream.read(min(length, _MAX_BYTES + 1))
    if len(start) > _MAX_BYTES or start.count(b'"data_offsets"') > _MAX_TENSORS:  # seconds and gigabytes to parse
        raise ValueError(f"header too large; expected at most {_MAX_BYTES >> 20} MB and {_MAX_TENSORS} tensors")
    try:
        with safe_open(path, framework="numpy") as file:
            names, metadata = file.offset_keys(), file.metadata() or {}
    except SafetensorError as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        if "file not fully covered" in reason:
            reason = f"it has {path.stat().st_size} bytes, not as many as its header says: it is truncated or damaged"
        raise ValueError(excerpt(reason, 120)) from error
    entries, tensors = json.loads(start), {}
    for name in names:
        dtype, (begin, end) = entries[name]["dtype"], entries[name]["data_offsets"]
        shape = tuple(entries[name]["shape"])
        tensors[name] = TensorHeader(_DTYPES.get(dtype, dtype), shape, 8 + length + begin, 8 + length + end)
    return tensors, metadata
