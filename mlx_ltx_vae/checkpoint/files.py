"""Safetensors files: their headers, checked before anything trusts them, and the tensors that are asked for.

A 40 GB checkpoint holds 1 to 2 GB of VAE. Only headers are read here until somebody asks for tensors by name, and
then only those are read.
"""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from ..errors import CheckpointError

INDEX_SUFFIX = ".safetensors.index.json"
#: The types of numbers that weights may have: what a header calls them, and what everybody else does.
DTYPE_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
# numpy has no bfloat16, only its bits.
_FLOAT_TYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}

# What people have instead of a safetensors file, by its first bytes.
_OTHER_FORMATS = (
    (b"version https://git-lfs", "a git-lfs pointer, not the file itself; fetch the file with `git lfs pull`"),
    (b"PK\x03\x04", "a PyTorch pickle (zip), which is never loaded because it can run code; convert it to safetensors"),
    (b"\x80", "a Python pickle, which is never loaded because it can run code; convert it to safetensors"),
    (b"GGUF", "a GGUF file; use the safetensors file of the VAE"),
    (b"<", "a web page saved in its place; download the file itself"),
)


class TensorInfo(NamedTuple):
    """Where a tensor lies: its bytes are `[start, stop)` of the file at `path`, in C order."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Archive:
    """The tensors of one safetensors file, or of all the shards of an index, known by header only."""

    path: Path
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]


def open_archive(path: Path) -> Archive:
    """Read the header of a safetensors file, or of every shard that a `*.safetensors.index.json` names.

    Raises:
        CheckpointError: the file is missing, of another format, truncated or damaged, or a shard is missing.
    """
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
    """The file names that a `*.safetensors.index.json` spreads its tensors over, each once, sorted."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{index}: expected an index with a 'weight_map'; download it again.")
    return sorted(set(weight_map.values()))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        CheckpointError: it is no JSON, or not an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: expected JSON ({error}); download it again or repair it.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object and found a {type(content).__name__}.")
    return content


def read_tensors(archive: Archive, names: Iterable[str]) -> dict[str, mx.array]:
    """The named tensors in their own dtype (float32, float16 or bfloat16) and shape, lazy, and nothing else.

    MLX refuses a whole file for one tensor of a type that it does not know, wanted or not. The wanted tensors of
    such a file are read at once, by their offsets.

    Raises:
        CheckpointError: a named tensor is not of one of the three types (quantised, say).
    """
    wanted: dict[Path, list[str]] = {}
    for name in names:
        refuse_other_dtypes(archive, [name])
        wanted.setdefault(archive.tensors[name].path, []).append(name)
    result: dict[str, mx.array] = {}
    for path, chosen in wanted.items():
        try:
            arrays = mx.load(str(path), format="safetensors")
        except RuntimeError:
            arrays = {name: _read_by_offset(archive.tensors[name]) for name in chosen}
        result |= {name: arrays[name] for name in chosen}
    return result


def refuse_other_dtypes(archive: Archive, names: Iterable[str]) -> None:
    """See that the named tensors are float32, float16 or bfloat16.

    Raises:
        CheckpointError: naming the first that is not (quantised, say).
    """
    for name in names:
        info = archive.tensors[name]
        if info.dtype not in DTYPE_NAMES:
            raise CheckpointError(
                f"{info.path}: {name} is stored as {info.dtype}; only F32, F16 and BF16 are known, so use a file whose "
                "VAE is not quantised."
            )


def _read_by_offset(info: TensorInfo) -> mx.array:
    dtype = _FLOAT_TYPES[info.dtype]
    values = np.fromfile(info.path, dtype, count=math.prod(info.shape), offset=info.start).reshape(info.shape)
    array = mx.array(values)
    return array.view(mx.bfloat16) if info.dtype == "BF16" else array


def _read_header(path: Path) -> Archive:
    """One file: 8 bytes of header length, a JSON header, then the tensors' bytes."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; check the path.")
    size = os.path.getsize(path)
    with path.open("rb") as stream:
        start = stream.read(32)
        _refuse_other_formats(path, start)
        length = int.from_bytes(start[:8], "little")
        if size < 10 or length > _MAX_HEADER_BYTES or start[8:9] != b"{":
            raise CheckpointError(f"{path}: not a safetensors file; give the .safetensors file of the VAE.")
        stream.seek(8)
        raw = stream.read(length)
    if len(raw) < length:
        raise CheckpointError(f"{path}: truncated within its header ({size} bytes); download it again.")
    try:
        header = json.loads(raw)
    except ValueError as error:
        raise CheckpointError(f"{path}: its header is no JSON ({error}); download it again.") from error
    metadata = header.pop("__metadata__", None)
    metadata = metadata if isinstance(metadata, dict) else {}
    tensors = {name: _tensor_info(path, name, entry, 8 + length) for name, entry in header.items()}
    expected = max((info.stop for info in tensors.values()), default=0)
    if size < expected:
        raise CheckpointError(f"{path}: truncated, {size} of {expected} bytes are there; download it again.")
    return Archive(path, tensors, metadata)


def _tensor_info(path: Path, name: str, entry: dict[str, Any], data_start: int) -> TensorInfo:
    try:
        start, stop = entry["data_offsets"]
        info = TensorInfo(path, entry["dtype"], tuple(entry["shape"]), data_start + start, data_start + stop)
        numbers = (start, stop - start, *info.shape)
        sound = all(isinstance(number, int) and number >= 0 for number in numbers)
        if sound and info.dtype in _FLOAT_TYPES:
            sound = stop - start == math.prod(info.shape) * _FLOAT_TYPES[info.dtype].itemsize
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise CheckpointError(f"{path}: the header's entry for {name} is damaged; download the file again.")
    return info


def _refuse_other_formats(path: Path, start: bytes) -> None:
    for magic, description in _OTHER_FORMATS:
        # A header length can begin with any byte, but a header follows it.
        if start.lstrip().startswith(magic) and start[8:9] != b"{":
            raise CheckpointError(f"{path}: this is {description}.")
