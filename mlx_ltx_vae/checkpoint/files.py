"""Safetensors files: their headers, validated when they are read, and single tensors.

The VAE is 1 to 2 GB of a 40 GB checkpoint, so a file is known by its header, and only requested tensors are read.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from ..dtypes import SAFETENSORS_NAMES
from ..errors import CheckpointError
from ..mlx_utils import load_safetensors

INDEX_SUFFIX = ".safetensors.index.json"

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
# numpy has no bfloat16; its bits are read as integers.
_NUMPY_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}

# Other formats that users pass, by their first bytes.
_OTHER_FORMATS = (
    (b"version https://git-lfs", "a git-lfs pointer instead of the file; fetch the file with `git lfs pull`"),
    (b"PK\x03\x04", "a PyTorch pickle (zip), which is never loaded because it can run code; convert it to safetensors"),
    (b"\x80", "a Python pickle, which is never loaded because it can run code; convert it to safetensors"),
    (b"GGUF", "a GGUF file; use the safetensors file of the VAE"),
    (b"<", "a web page instead of the file; download the file again"),
)


class TensorInfo(NamedTuple):
    """Where a tensor is stored: the bytes `[start, stop)` of the file at `path`, in C order."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Archive:
    """The tensors of one safetensors file, or of all shards of an index, known by header only."""

    path: Path
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]


def open_archive(path: Path) -> Archive:
    """Read the header of a safetensors file, or of every shard that a `*.safetensors.index.json` names."""
    if not path.name.endswith(INDEX_SUFFIX):
        return _read_header(path)
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, str] = {}
    for shard in shard_names(path):
        if not (path.parent / shard).is_file():
            raise CheckpointError(f"{path}: its shard {shard} is missing; download all the files that the index names.")
        part = _read_header(path.parent / shard)
        tensors |= part.tensors
        metadata |= part.metadata
    return Archive(path, tensors, metadata)


def shard_names(index: Path) -> list[str]:
    """The file names in a `*.safetensors.index.json`, sorted, each once."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{index}: expected an index with a 'weight_map'; download it again.")
    return sorted(set(weight_map.values()))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: expected JSON ({error}); download it again or repair it.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object and found a {type(content).__name__}.")
    return content


def check_dtypes(tensors: Iterable[TensorInfo]) -> None:
    """Refuse tensors that are not float32, float16 or bfloat16: quantized ones, for example."""
    for info in tensors:
        if info.dtype not in SAFETENSORS_NAMES:
            raise CheckpointError(
                f"{info.path}: {info.name} is stored as {info.dtype}, and only F32, F16 and BF16 are supported; use a "
                "file whose VAE is not quantized."
            )


def read_tensors(tensors: Mapping[str, TensorInfo]) -> Iterator[tuple[str, mx.array]]:
    """Each tensor under its key in `tensors`, in its stored shape and dtype, which `check_dtypes` must have accepted.

    The arrays are lazy, with one exception: MLX rejects a file if any tensor in it, requested or not, has a type that
    MLX does not know. The tensors of such a file are read by offset, when the iterator reaches them.
    """
    for path in {info.path: None for info in tensors.values()}:
        requested = {key: info for key, info in tensors.items() if info.path == path}
        try:
            arrays = load_safetensors(path)
        except RuntimeError:
            yield from ((key, _read_by_offset(info)) for key, info in requested.items())
        else:
            yield from ((key, arrays.pop(info.name)) for key, info in requested.items())


def _read_by_offset(info: TensorInfo) -> mx.array:
    count = math.prod(info.shape)
    array = mx.array(np.fromfile(info.path, _NUMPY_DTYPES[info.dtype], count, offset=info.start).reshape(info.shape))
    return array.view(mx.bfloat16) if info.dtype == "BF16" else array


def _read_header(path: Path) -> Archive:
    """One file: 8 bytes of header length, a JSON header, then the tensors' bytes."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; check the path.")
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(32)
        for magic, description in _OTHER_FORMATS:
            # A header length can have any first byte, but a header follows it.
            if start.lstrip().startswith(magic) and start[8:9] != b"{":
                raise CheckpointError(f"{path}: this is {description}.")
        length = int.from_bytes(start[:8], "little")
        if size < 10 or length > _MAX_HEADER_BYTES or start[8:9] != b"{":
            raise CheckpointError(f"{path}: not a safetensors file; give the .safetensors file of the VAE.")
        stream.seek(8)
        raw = stream.read(length)
    if len(raw) < length:
        raise CheckpointError(f"{path}: truncated within its header (after {size} bytes); download it again.")
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its header is not JSON ({error}); download it again.") from error
    metadata = header.pop("__metadata__", None)
    metadata = metadata if isinstance(metadata, dict) else {}
    tensors = {name: _tensor_info(path, name, entry, 8 + length) for name, entry in header.items()}
    expected = max((info.stop for info in tensors.values()), default=0)
    if size < expected:
        raise CheckpointError(f"{path}: truncated, it has {size} of {expected} bytes; download it again.")
    return Archive(path, tensors, metadata)


def _tensor_info(path: Path, name: str, entry: dict[str, Any], data_start: int) -> TensorInfo:
    try:
        start, stop = entry["data_offsets"]
        info = TensorInfo(path, name, entry["dtype"], tuple(entry["shape"]), data_start + start, data_start + stop)
        numbers = (start, stop - start, *info.shape)
        valid = all(isinstance(number, int) and number >= 0 for number in numbers)
        if valid and info.dtype in _NUMPY_DTYPES:
            valid = stop - start == math.prod(info.shape) * _NUMPY_DTYPES[info.dtype].itemsize
    except (KeyError, TypeError, ValueError):
        valid = False
    if not valid:
        raise CheckpointError(f"{path}: the header's entry for {name} is damaged; download the file again.")
    return info
