"""Containers of tensors, written in blocks: safetensors, and the zip files of `torch.save`, without torch."""

import json
import math
import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import mlx.core as mx
import numpy as np

from ..backend.mlx_utils import dtype_name

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int32": "I32"}  # as safetensors calls them
_ALIGNMENT = 8  # bytes, of the header
_STORAGES = {"float32": "FloatStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage"}  # as torch calls them


class TensorBlocks(NamedTuple):
    """Tensor to be written, whose values come in blocks of bytes, in C order."""

    name: str
    dtype: mx.Dtype
    shape: Sequence[int]
    blocks: Iterable[bytes]

    @classmethod
    def of(cls, name: str, array: mx.array) -> "TensorBlocks":
        """Return the blocks of an array."""
        return cls(name, array.dtype, array.shape, map(to_bytes, [array]))


def to_bytes(array: mx.array) -> bytes:
    """Return the values of an array in C order."""
    return b"" if not array.size else np.array(mx.contiguous(array).view(mx.uint8)).tobytes()  # numpy has no bfloat16


def write_safetensors(file: IO[bytes], tensors: Iterable[TensorBlocks], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file. Tensors with the largest values come first, so that each is aligned."""
    ordered_tensors = sorted(tensors, key=lambda tensor: -tensor.dtype.size)
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, dtype, shape, _ in ordered_tensors:
        start, end = end, end + dtype.size * math.prod(shape)
        entries[name] = {"dtype": _DTYPES[dtype_name(dtype)], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in ordered_tensors:
        file.writelines(tensor.blocks)


def write_torch(file: IO[bytes], tensor: TensorBlocks, values: Mapping[str, int | float]) -> None:
    """Write what `torch.save` writes of a dictionary with a tensor and numbers. `torch.load` reads it, weights only."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        folder = Path(file.name).stem if isinstance(file.name, str) else "archive"
        archive.writestr(f"{folder}/data.pkl", _pickle_dictionary(tensor, values))
        archive.writestr(f"{folder}/byteorder", "little")
        with archive.open(f"{folder}/data/0", "w", force_zip64=True) as data:
            for block in tensor.blocks:
                data.write(block)
        archive.writestr(f"{folder}/version", "3\n")


def _pickle_dictionary(tensor: TensorBlocks, values: Mapping[str, int | float]) -> bytes:
    """Return the pickle, protocol 2, of a dictionary with a tensor and numbers.

    torch pickles a tensor as a call that rebuilds it from a storage, which is a member of the zip file.
    """
    name, dtype, shape, _ = tensor
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    storage = [
        _pickle_text("storage"),
        _pickle_global("torch", _STORAGES[dtype_name(dtype)]),
        _pickle_text("0"),
        _pickle_text("cpu"),
        _pickle_number(math.prod(shape)),
    ]
    hooks = _pickle_call(_pickle_global("collections", "OrderedDict"))
    sizes, steps = (_pickle_tuple(map(_pickle_number, numbers)) for numbers in (shape, strides))
    rebuilt_tensor = _pickle_call(
        _pickle_global("torch._utils", "_rebuild_tensor_v2"),
        _pickle_tuple(storage) + b"Q",  # BINPERSID
        _pickle_number(0),  # the offset in the storage
        sizes,
        steps,
        b"\x89",  # NEWFALSE: it requires no gradient
        hooks,
    )
    items = _pickle_text(name) + rebuilt_tensor
    items += b"".join(_pickle_text(key) + _pickle_number(value) for key, value in values.items())
    return b"\x80\x02}(" + items + b"u."  # PROTO 2, EMPTY_DICT, MARK, items, SETITEMS, STOP


def _pickle_text(text: str) -> bytes:
    content = text.encode()
    return b"X" + struct.pack("<I", len(content)) + content  # BINUNICODE


def _pickle_number(number: float) -> bytes:
    if isinstance(number, float):
        return b"G" + struct.pack(">d", number)  # BINFLOAT
    if number < 2**31:
        return b"J" + struct.pack("<i", number)  # BININT
    return b"\x8a\x08" + number.to_bytes(8, "little", signed=True)  # LONG1


def _pickle_global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()  # GLOBAL


def _pickle_tuple(items: Iterable[bytes]) -> bytes:
    return b"(" + b"".join(items) + b"t"  # MARK, items, TUPLE


def _pickle_call(function: bytes, *arguments: bytes) -> bytes:
    return function + _pickle_tuple(arguments) + b"R"  # REDUCE
