"""The contents of safetensors, .npy and .npz files: metadata, and tensors known by their headers.

Some programs store metadata as one-element arrays beside the tensors. They are returned as metadata. Objects, which
would be pickles, are never loaded.
"""

import io
import math
import os
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy_format

from ..errors import LatentsError, excerpt
from ..files.formats import START_BYTES, Format
from ..files.opening import file_state
from ..files.safetensors_header import read_header, read_positions
from ..units import format_bytes
from .metadata import METADATA_KEYS
from .source import check_format, open_source, torch_error
from .stored import OpenFile, StoredArray, StoredTensor, reading

_MAX_METADATA_BYTES = 1024
_MAX_NPY_HEADER = 2**14  # bytes; numpy itself refuses headers of more than 10,000
_ZIP_HEADER = 30  # bytes before the name; the lengths of the name and of what follows it are the last four
_COPIED_AT_ONCE = 2**20  # bytes
_MAX_COMPRESSION, _MAX_UNSUSPECTED = 100, 10**8  # deflate makes noise 1 to 2 times smaller, and zeros 1,000 times
_SHOWN = 40  # characters of a name or shape in an error


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


def open_npy(file: OpenFile) -> StoredTensor:
    """The array of a .npy file. Raises `ValueError` for an invalid header and a file that is too short for it."""
    with file.reader() as reader:
        tensor, expected = _read_npy(reader, file, 0, lambda: file)
        size = reader.seek(0, os.SEEK_END)
    if expected is not None and size < expected:
        raise ValueError(f"it has {size} bytes of {expected}, so it was cut short")
    return tensor


def _read_npy(
    stream: IO[bytes], file: OpenFile, start: int, open_file: Callable[[], OpenFile]
) -> tuple[StoredTensor, int | None]:
    """The array whose .npy header a stream has, and the bytes of both; None for objects, whose pickles have any size.

    `open_file` returns the file in which they begin at `start`.
    """
    head = io.BytesIO(stream.read(_MAX_NPY_HEADER))
    version = npy_format.read_magic(head)
    read_header = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    shape, is_fortran, dtype = read_header(head)
    if min(shape, default=0) < 0:
        raise ValueError(f"its shape is {excerpt(shape)}")
    size, num_bytes = head.tell(), 0 if dtype.hasobject else math.prod(shape) * dtype.itemsize

    def open_array() -> StoredArray:
        if dtype.hasobject:
            raise ValueError("it holds Python objects, which could run any code when read")
        return StoredArray.whole(open_file(), dtype, shape, start + size, "F" if is_fortran else "C")

    name = "bfloat16" if dtype == np.dtype("V2") else dtype.name
    return StoredTensor(file, shape, name, num_bytes, open_array), None if dtype.hasobject else size + num_bytes


def open_npz(file: OpenFile) -> dict[str, StoredTensor]:
    """The arrays of a .npz file by name. What is stored uncompressed is read in the file itself.

    Raises `LatentsError` for files of torch, and `ValueError` for headers that do not fit the sizes in the zip file.
    """
    tensors = {}
    with file.reader() as reader, zipfile.ZipFile(reader) as archive:
        if any(entry.endswith("data.pkl") for entry in archive.namelist()):  # whatever the file is called
            raise torch_error(file.source)
        for entry in archive.infolist():
            name, ending = os.path.splitext(entry.filename)
            if ending == ".npy":
                tensors[name] = _open_member(file, archive, entry, name)
    return tensors


def _open_member(file: OpenFile, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str) -> StoredTensor:
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{excerpt(name, _SHOWN)} is compressed in a way that numpy does not write")
    start, lock, copies = 0, threading.Lock(), list[OpenFile]()
    if entry.compress_type == zipfile.ZIP_STORED:
        sizes = file.read(entry.header_offset + _ZIP_HEADER - 4, 4)
        names_bytes = int.from_bytes(sizes[:2], "little") + int.from_bytes(sizes[2:], "little")
        start = entry.header_offset + _ZIP_HEADER + names_bytes
        copies.append(file)

    def open_file() -> OpenFile:
        with lock:  # the first use decompresses it
            if not copies:
                copies.append(_decompress(file, entry))
        return copies[0]

    with archive.open(entry) as member:
        tensor, expected = _read_npy(member, file, start, open_file)
    if expected is not None and entry.file_size != expected:
        found = f"{excerpt(name, _SHOWN)} has {entry.file_size} bytes"
        raise ValueError(f"{found}, where its shape {excerpt(tensor.shape, _SHOWN)} takes {expected}")
    return tensor


def _decompress(file: OpenFile, entry: zipfile.ZipInfo) -> OpenFile:
    """A nameless temporary file with the bytes of a compressed part of a zip file."""
    source, place, needed = file.source, tempfile.gettempdir(), entry.file_size
    if needed > max(_MAX_UNSUSPECTED, _MAX_COMPRESSION * entry.compress_size):
        raise LatentsError(
            f"{source}: takes {format_bytes(entry.compress_size)} and would take {format_bytes(needed)} decompressed, "
            "which is a decompression bomb, or values that are all alike; save it uncompressed."
        )
    free = shutil.disk_usage(place).free
    if needed > free:
        raise LatentsError(
            f"{source}: is compressed, and takes {format_bytes(needed)} in {place}, which has {format_bytes(free)} "
            "left; set TMPDIR to a larger disk, or save the latents uncompressed."
        )
    with tempfile.TemporaryFile(prefix="mlx_ltx_vae-") as copy:
        with file.reader() as reader, zipfile.ZipFile(reader) as archive, archive.open(entry) as member:
            shutil.copyfileobj(member, copy, _COPIED_AT_ONCE)
        copy.flush()
        return OpenFile(copy, source)
