"""The contents of safetensors, .npy and .npz files: metadata, shapes, and each tensor as a numpy array on request.

Some programs store metadata as one-element arrays beside the tensors. They are returned as metadata.

numpy has no bfloat16; such tensors are returned as two-byte voids (dtype `V2`), which is how numpy loads them itself.
"""

import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from ..errors import LatentsError
from .metadata import METADATA_KEYS

_PICKLES = (".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".bin")
_SAFETENSORS_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "V2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file, known by its header.

    Attributes:
        dtype: "float32", "bfloat16" and so on; for what numpy cannot read, the file's own name, such as "F8_E4M3".
    """

    path: Path
    shape: tuple[int, ...]
    dtype: str
    _load: Callable[[], np.ndarray]

    def read(self) -> np.ndarray:
        """The values. Raises `LatentsError` for a damaged file."""
        with _reading(self.path):
            return self._load()


def open_tensor_file(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors of a file by name, and its metadata. Its first bytes decide its format, not its name.

    Raises:
        LatentsError: for a file that is missing, truncated or of another format, and for a pickle.
    """
    if path.suffix.lower() in _PICKLES:
        raise _pickle_error(path)
    if not path.is_file():
        raise LatentsError(f"{path}: there is no such file.")
    with _reading(path):
        with path.open("rb") as file:
            start = file.read(9)
            file.seek(0)
            if start.startswith(b"\x93NUMPY"):
                return {path.stem: _stored_array(path, file, partial(np.load, path, allow_pickle=False))}, {}
        if start.startswith(b"PK"):
            tensors = _open_npz(path)
            return tensors, _take_metadata(tensors)
        if start.startswith(b"\x80") and not start.endswith(b"{"):  # a safetensors header of 128 bytes begins so too
            raise _pickle_error(path)
        tensors, metadata = _open_safetensors(path)
        return tensors, _take_metadata(tensors) | metadata


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except LatentsError:
        raise
    except Exception as error:  # a damaged header can make each of the parsers fail in its own way
        reason = str(error).split("\n")[0].rstrip(".") or type(error).__name__
        raise LatentsError(f"{path}: cannot be read as safetensors, .npy or .npz ({reason}).") from error


def _pickle_error(path: Path) -> LatentsError:
    return LatentsError(f"{path}: is a pickle, which could run any code when read; save the latents as safetensors.")


def _open_npz(path: Path) -> dict[str, StoredTensor]:
    with zipfile.ZipFile(path) as archive:
        if any(entry.endswith("data.pkl") for entry in archive.namelist()):  # torch.save, under another name
            raise _pickle_error(path)
        tensors = {}
        for entry in archive.namelist():
            name, suffix = os.path.splitext(entry)
            if suffix == ".npy":
                with archive.open(entry) as file:
                    tensors[name] = _stored_array(path, file, partial(_load_npz, path, name))
    return tensors


def _load_npz(path: Path, name: str) -> np.ndarray:
    with np.load(path, allow_pickle=False) as arrays:
        return arrays[name]


def _stored_array(path: Path, file: IO[bytes], load: Callable[[], np.ndarray]) -> StoredTensor:
    """From a file at the start of a .npy header."""
    version = npy_format.read_magic(file)
    read_header = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    return StoredTensor(path, shape, _dtype_name(dtype), load)


def _open_safetensors(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    size = os.path.getsize(path)
    with path.open("rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        if size < 8 or header_size > _MAX_HEADER_BYTES:
            raise ValueError("its first bytes fit none of them")
        header = json.loads(file.read(header_size))
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    metadata = header.pop("__metadata__", None) or {}  # MLX writes null where it was given none
    data_start = 8 + header_size
    expected = data_start + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size < expected:
        raise ValueError(f"it has {size} bytes of {expected}, so it was cut short")
    tensors = {name: _stored_safetensor(path, name, entry, data_start) for name, entry in header.items()}
    return tensors, {key: str(value) for key, value in metadata.items()}


def _stored_safetensor(path: Path, name: str, entry: Mapping[str, Any], data_start: int) -> StoredTensor:
    """From an entry of the header: dtype, shape, and the first and last byte after `data_start`."""
    shape = tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    code = _SAFETENSORS_DTYPES.get(entry["dtype"])
    dtype = np.dtype(code or np.uint8)
    num_bytes = math.prod(shape) * dtype.itemsize if code else end - begin
    if not 0 <= begin <= end or min(shape, default=0) < 0 or end - begin != num_bytes:
        raise ValueError(f"{name} has {end - begin} bytes, which do not fit its shape {shape}")

    def load() -> np.ndarray:
        return np.fromfile(path, dtype, count=math.prod(shape), offset=data_start + begin).reshape(shape)

    return StoredTensor(path, shape, _dtype_name(dtype) if code else str(entry["dtype"]), load)


def _dtype_name(dtype: np.dtype) -> str:
    return "bfloat16" if dtype == np.dtype("V2") else dtype.name


def _take_metadata(tensors: dict[str, StoredTensor]) -> dict[str, str]:
    """Remove the one-element tensors with a metadata key, and return their values as text.

    The text is the shortest that stands for the value: 23.976 in float32 is "23.976".
    """
    names = [key for key in METADATA_KEYS if key in tensors and math.prod(tensors[key].shape) == 1]
    return {name: str(tensors.pop(name).read().reshape(-1)[0]) for name in names}
