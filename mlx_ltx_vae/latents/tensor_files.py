"""The files, pipes and standard input that users name as latents: metadata, and tensors known by their headers.

Pickles are never read.
"""

import io
import math
import os
import shutil
import stat
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

import mlx.core as mx
import numpy as np
from numpy.lib import format as npy_format

from ..errors import LatentsError, check_is_path, excerpt
from ..files import (
    START_BYTES,
    Format,
    copy_stream,
    file_state,
    find_format,
    open_file,
    read_header,
    standard_input,
    torch_conversion,
)
from ..process import temporary_folder
from ..units import format_bytes
from .metadata import METADATA_KEYS
from .stored import OpenFile, StoredArray, reading

_STANDARD_INPUT = "-"

# The first value in files of torch.save before PyTorch 1.6; later ones are zip files.
_OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9"
_MAX_SAFETENSORS_HEADER = 100_000_000  # bytes; the format's own limit
_PICKLE_ENDINGS = (".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".bin")

_MAX_METADATA_BYTES = 1024
_MAX_NPY_HEADER = 2**14  # bytes; numpy itself refuses headers of more than 10,000
_ZIP_HEADER = 30  # bytes before the name; the lengths of the name and of what follows it are the last four
_MAX_COMPRESSION, _MAX_UNSUSPECTED = 100, 10**8  # deflate makes noise 1 to 2 times smaller, and zeros 1,000 times
_SHOWN = 40  # characters of a name or shape in an error


def open_tensor_file(path: str | os.PathLike) -> tuple[dict[str, StoredArray], dict[str, str]]:
    """The tensors of a file by name, and its metadata."""
    with _open_source(path) as (file, readable_path), reading(file):
        file_format = _check_format(file.read(0, START_BYTES), file.source)
        if file_format is Format.NPY:
            return {Path(path).stem: _open_npy(file)}, {}
        if file_format is Format.ZIP:
            tensors = _open_npz(file)
            return tensors, _take_metadata(tensors)
        tensors, metadata = _open_safetensors(file, readable_path)
        return tensors, _take_metadata(tensors) | metadata


def _open_safetensors(file: OpenFile, path: Path) -> tuple[dict[str, StoredArray], dict[str, str]]:
    headers, metadata = read_header(path)
    if file_state(path) != file.state:
        raise file.changed()
    tensors = {}
    for name, (dtype_name, shape, begin, end) in headers.items():
        is_void = dtype_name.isupper()  # the file's own name for it
        size = (end - begin) // max(1, math.prod(shape))
        dtype = np.dtype("u2" if dtype_name == "bfloat16" else f"V{size}" if is_void else dtype_name)
        tensors[name] = StoredArray.whole(file, dtype_name, dtype.newbyteorder("<"), shape, begin)
    return tensors, metadata


def _take_metadata(tensors: dict[str, StoredArray]) -> dict[str, str]:
    """Remove the one-element tensors in which some programs store metadata, and return their values as text."""
    metadata: dict[str, str] = {}
    for name in [key for key in METADATA_KEYS if key in tensors and math.prod(tensors[key].shape) == 1]:
        tensor = tensors.pop(name)
        if tensor.dtype.itemsize > _MAX_METADATA_BYTES:
            size = format_bytes(tensor.dtype.itemsize)
            raise LatentsError(f"{tensor.file.source}: {name} takes {size}, where a single value was expected.")
        # As the shortest text that stands for the value: 23.976 in float32 is "23.976".
        values = np.array(tensor.read_floats().astype(mx.float32)) if tensor.name == "bfloat16" else tensor.read()
        metadata[name] = str(values.flat[0])
    return metadata


def _open_npy(file: OpenFile) -> StoredArray:
    """The array of a .npy file. Raises `ValueError` for an invalid header and a file that is too short for it."""
    with file.reader() as reader:
        tensor, expected = _read_npy(reader, file, 0)
        size = reader.seek(0, os.SEEK_END)
    if expected is not None and size < expected:
        raise ValueError(f"it has {size} bytes of {expected}, so it was cut short")
    return tensor


def _read_npy(stream: IO[bytes], file: OpenFile, start: int) -> tuple[StoredArray, int | None]:
    """The array whose .npy header a stream has, and the bytes of both; None for objects, whose pickles have any size.

    They begin at `start` of the file.
    """
    head = io.BytesIO(stream.read(_MAX_NPY_HEADER))
    version = npy_format.read_magic(head)
    read_header = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    shape, is_fortran, dtype = read_header(head)
    if min(shape, default=0) < 0:
        raise ValueError(f"its shape is {excerpt(shape)}")
    size, name = head.tell(), dtype.name
    if dtype == np.dtype("V2"):
        dtype, name = np.dtype("<u2"), "bfloat16"
    tensor = StoredArray.whole(file, name, dtype, shape, start + size, is_fortran)
    return tensor, None if dtype.hasobject else size + math.prod(shape) * dtype.itemsize


def _open_npz(file: OpenFile) -> dict[str, StoredArray]:
    """The arrays of a .npz file by name. What is stored uncompressed is read in the file itself."""
    tensors = {}
    with file.reader() as reader, zipfile.ZipFile(reader) as archive:
        if any(entry.endswith("data.pkl") for entry in archive.namelist()):  # whatever the file is called
            raise _torch_error(file.source)
        for entry in archive.infolist():
            name, ending = os.path.splitext(entry.filename)
            if ending == ".npy":
                tensors[name] = _open_member(file, archive, entry, name)
    return tensors


def _open_member(file: OpenFile, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str) -> StoredArray:
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{excerpt(name, _SHOWN)} is compressed in a way that numpy does not write")
    if entry.compress_type == zipfile.ZIP_STORED:
        sizes = file.read(entry.header_offset + _ZIP_HEADER - 4, 4)
        names_bytes = int.from_bytes(sizes[:2], "little") + int.from_bytes(sizes[2:], "little")
        holder, start = file, entry.header_offset + _ZIP_HEADER + names_bytes
    else:
        holder, start = _CompressedFile(file, entry), 0
    with archive.open(entry) as member:
        tensor, expected = _read_npy(member, holder, start)
    if expected is not None and entry.file_size != expected:
        found = f"{excerpt(name, _SHOWN)} has {entry.file_size} bytes"
        raise ValueError(f"{found}, where its shape {excerpt(tensor.shape, _SHOWN)} takes {expected}")
    return tensor


class _CompressedFile(OpenFile):
    """A compressed part of a zip file. The first use decompresses it."""

    def __init__(self, archive: OpenFile, entry: zipfile.ZipInfo) -> None:
        self.source = archive.source
        self._archive, self._entry = archive, entry
        self._copy: OpenFile | None = None
        self._lock = threading.Lock()

    def read(self, offset: int, size: int) -> bytes:
        with self._lock:
            self._copy = self._copy or _decompress(self._archive, self._entry)
        return self._copy.read(offset, size)

    def check_unchanged(self) -> None:
        self._archive.check_unchanged()


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
            shutil.copyfileobj(member, copy)
        copy.flush()
        return OpenFile(copy, source)


def source_name(path: str | os.PathLike) -> str:
    """The name of a source in errors."""
    check_is_path(path, LatentsError)
    return "standard input" if os.fspath(path) == _STANDARD_INPUT else os.fspath(path)


@contextmanager
def _open_source(path: str | os.PathLike) -> Iterator[tuple[OpenFile, Path]]:
    """The open file, and a path to it until the end of the block: a temporary one for a pipe and standard input."""
    source, is_standard_input = source_name(path), os.fspath(path) == _STANDARD_INPUT
    with nullcontext(standard_input("a latent file", LatentsError)) if is_standard_input else _open(source) as stream:
        if not is_standard_input and stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            yield OpenFile(stream, source), Path(path)
            return
        with temporary_folder() as folder:
            path, start = folder / "latents", stream.read(START_BYTES)
            _check_format(start, source)  # refuses an endless stream of something else
            copy_stream(stream, path, source, LatentsError, start)
            with path.open("rb") as file:
                yield OpenFile(file, source), path


def _open(source: str) -> IO[bytes]:
    shown = excerpt(source, 200)
    try:
        return open_file(source, pipes=True)
    except IsADirectoryError:
        raise LatentsError(f"{source}: is a folder; name one latent file.") from None
    except FileNotFoundError:
        raise LatentsError(f"{shown}: there is no such file.") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise LatentsError(f"{shown}: cannot be read ({reason}).") from error


def _check_format(start: bytes, source: str) -> Format:
    """The format of a latent file that starts with these bytes. Raises a `LatentsError` for any that is not read."""
    found = find_format(start)
    if found is Format.SAFETENSORS and int.from_bytes(start[:8], "little") > _MAX_SAFETENSORS_HEADER:
        found = None  # another text
    if found in (Format.SAFETENSORS, Format.NPY, Format.ZIP):
        return found
    if not start:
        raise LatentsError(f"{source}: is empty; expected latents as safetensors, .npy or .npz.")
    if start.startswith(_OLD_TORCH):
        raise _torch_error(source)
    if found is Format.PICKLE or source.lower().endswith(_PICKLE_ENDINGS):
        raise LatentsError(
            f"{source}: is a pickle, which could run any code when read; save the latents as safetensors, in the "
            "program that made them."
        )
    raise LatentsError(
        f"{source}: is neither safetensors nor .npy nor .npz; save the latents as one of them, or turn a video into "
        "latents with encode."
    )


def _torch_error(source: str) -> LatentsError:
    return LatentsError(
        f"{source}: is a pickle of torch.save, which could run any code when read; {torch_conversion(source)}"
    )
