"""The contents of safetensors, .npy and .npz files: metadata, and tensors known by their headers.

Some programs store metadata as one-element arrays beside the tensors. They are returned as metadata.
"""

import math
import os
from functools import partial
from pathlib import Path

import numpy as np

from ..errors import LatentsError
from ..files.formats import START_BYTES, Format
from ..files.opening import file_state
from ..files.safetensors_header import read_header, read_positions
from ..units import format_bytes
from .metadata import METADATA_KEYS
from .numpy_files import open_npy, open_npz
from .source import check_format, open_source
from .stored import OpenFile, StoredArray, StoredTensor, reading

_MAX_METADATA_BYTES = 1024


def open_tensor_file(path: str | os.PathLike) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors of a file by name, and its metadata."""
    with open_source(path) as (file, readable_path), reading(file):
        file_format = check_format(file.read(0, START_BYTES), file.source)
        if file_format is Format.NPY:
            return {Path(path).stem: open_npy(file)}, {}
        if file_format is Format.ZIP:
            tensors = open_npz(file)
            metadata: dict[str, str] = {}
        else:
            tensors, metadata = _open_safetensors(file, readable_path)
        return tensors, _take_metadata(tensors) | metadata


def _open_safetensors(file: OpenFile, path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    headers, metadata = read_header(path)
    if file_state(path) != file.state:
        raise file.changed()
    positions = read_positions(file.read)
    tensors = {}
    for name, (dtype, shape) in headers.items():
        begin, end = positions[name]
        open_array = partial(_open_safetensor, file, dtype, shape, begin)
        tensors[name] = StoredTensor(file, shape, dtype, end - begin, open_array)
    return tensors, metadata


def _open_safetensor(file: OpenFile, dtype: str, shape: tuple[int, ...], offset: int) -> StoredArray:
    return StoredArray.whole(file, np.dtype("V2" if dtype == "bfloat16" else dtype).newbyteorder("<"), shape, offset)


def _take_metadata(tensors: dict[str, StoredTensor]) -> dict[str, str]:
    """Remove the one-element tensors with a metadata key, and return their values as text.

    The text is the shortest that stands for the value: 23.976 in float32 is "23.976".
    """
    names = [key for key in METADATA_KEYS if key in tensors and math.prod(tensors[key].shape) == 1]
    metadata: dict[str, str] = {}
    for name in names:
        tensor = tensors.pop(name)
        if tensor.num_bytes > _MAX_METADATA_BYTES:
            size = format_bytes(tensor.num_bytes)
            raise LatentsError(f"{tensor.file.source}: {name} takes {size}, where a single value was expected.")
        metadata.update((name, str(values.flat[0])) for _, values in tensor.open().read())
    return metadata
