"""What is in a safetensors, .npy or .npz file: names, metadata, and each tensor as a numpy array when asked for.

Some programs write what they know of a video as arrays of one element beside the tensors. These are metadata here.

numpy has no bfloat16; such tensors come as two-byte voids (dtype `V2`), as numpy itself keeps them.
"""

import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LatentsError

_PICKLES = (".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".bin")
_SCALAR_METADATA = (
    "fps", "num_frames", "height", "width", "latent_num_frames", "latent_height", "latent_width", "grid", "normalized",
    "layout",
)  # fmt: skip
_SAFETENSORS_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "V2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_HEADER_ALIGNMENT = 8
_UNREADABLE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, MemoryError, RecursionError,
    NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclass(frozen=True)
class TensorFile:
    """Tensors by name, each read by calling its entry, and the file's metadata."""

    tensors: Mapping[str, Callable[[], np.ndarray]]
    metadata: Mapping[str, str]


def open_tensor_file(path: Path) -> TensorFile:
    """Look into a file. What it is follows from its first bytes, not from its name.

    Raises:
        LatentsError: for a missing, foreign or truncated file, and for a pickle, which could run any code. Reading
            a tensor may raise it too.
    """
    if path.suffix.lower() in _PICKLES:
        raise _pickle_error(path)
    if not path.is_file():
        raise LatentsError(f"{path}: there is no such file.")
    with _reading(path):
        with path.open("rb") as file:
            start = file.read(9)
        if start.startswith(b"\x93NUMPY"):
            return TensorFile({path.stem: partial(_read_npy, path)}, {})
        if start.startswith(b"PK"):
            return _open_npz(path)
        if start.startswith(b"\x80") and not start.endswith(b"{"):  # a safetensors header of 128 bytes begins so too
            raise _pickle_error(path)
        return _open_safetensors(path)


def safetensors_header(entries: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    """What stands in front of the tensors in a safetensors file: the header's length, and the header as JSON.

    Args:
        entries: per tensor its dtype, shape and data_offsets, as the format has them.
        metadata: whatever else is to be noted.
    """
    text = json.dumps({"__metadata__": dict(metadata), **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        reason = str(error).split("\n")[0].rstrip(".") or type(error).__name__
        raise LatentsError(f"{path}: cannot be read as safetensors, .npy or .npz ({reason}).") from error


def _pickle_error(path: Path) -> LatentsError:
    return LatentsError(f"{path}: is a pickle, which could run any code when read; save the latents as safetensors.")


def _read_npy(path: Path) -> np.ndarray:
    with _reading(path):
        return np.load(path, allow_pickle=False)


def _open_npz(path: Path) -> TensorFile:
    with zipfile.ZipFile(path) as archive:
        entries = archive.namelist()
    if any(entry.endswith("data.pkl") for entry in entries):  # torch.save, under another name
        raise _pickle_error(path)
    with np.load(path, allow_pickle=False) as arrays:
        scalars = {name: arrays[name] for name in _SCALAR_METADATA if name in arrays.files}
        metadata = {name: _scalar_text(array) for name, array in scalars.items() if array.size == 1}
        names = [name for name in arrays.files if name not in metadata]
    return TensorFile({name: partial(_read_npz, path, name) for name in names}, metadata)


def _read_npz(path: Path, name: str) -> np.ndarray:
    with _reading(path), np.load(path, allow_pickle=False) as arrays:
        return arrays[name]


def _scalar_text(array: np.ndarray) -> str:
    """The one element as the shortest text that means it: 23.976 in float32 is "23.976"."""
    return str(array.reshape(-1)[0])


def _open_safetensors(path: Path) -> TensorFile:
    size = os.path.getsize(path)
    with path.open("rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        if size < 8 or header_size > _MAX_HEADER_BYTES:
            raise ValueError("it begins like none of them")
        header = json.loads(file.read(header_size))
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    metadata = header.pop("__metadata__", None) or {}  # MLX writes null where it was given none
    data_start = 8 + header_size
    expected = data_start + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size < expected:
        raise ValueError(f"it has {size} bytes of {expected}, so it was cut short")
    tensors = {name: partial(_read_safetensor, path, name, entry, data_start) for name, entry in header.items()}
    scalars = [name for name in _SCALAR_METADATA if name in header and math.prod(header[name]["shape"]) == 1]
    beside = {name: _scalar_text(tensors.pop(name)()) for name in scalars}
    return TensorFile(tensors, beside | {str(key): str(value) for key, value in metadata.items()})


def _read_safetensor(path: Path, name: str, entry: Mapping[str, Any], data_start: int) -> np.ndarray:
    """One tensor. `entry` is its part of the header: dtype, shape, and first and last byte after `data_start`."""
    with _reading(path):
        if entry["dtype"] not in _SAFETENSORS_DTYPES:
            raise LatentsError(f"{path}: {name} is stored as {entry['dtype']}; save it as F32, F16 or BF16.")
        dtype, shape = np.dtype(_SAFETENSORS_DTYPES[entry["dtype"]]), tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end or end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name} has {end - begin} bytes, which do not fit its shape {shape}")
        return np.fromfile(path, dtype, count=math.prod(shape), offset=data_start + begin).reshape(shape)
