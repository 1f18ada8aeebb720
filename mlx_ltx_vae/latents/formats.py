"""Latent files: a table of readers, tensors whose values are read when they are used, and checks of these values.

Pickles are never read. Files are not mapped: reading a mapped page past the end of a file that has shrunk ends the
process (SIGBUS).
"""

import io
import math
import os
import stat
import weakref
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import IO, ClassVar, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.lib import format as npy_format

from ..backend.device import check_process
from ..backend.mlx_utils import count_nonfinite, from_numpy, to_float, to_int
from ..errors import LatentsError, excerpt, quote
from ..files import (
    MAX_DEFLATION,
    MAX_WHOLE_BYTES,
    START_BYTES,
    UNSUSPECTED_BYTES,
    FileState,
    Format,
    TensorHeader,
    check_header,
    copy_stream,
    expand_path,
    file_state,
    find_format,
    open_file,
    read_header,
    standard_input,
    temporary_folder,
    torch_conversion,
)
from ..shapes import LatentShape, sampled_frames
from ..units import format_bytes
from .metadata import DEFAULT_VAE_NAME, METADATA_KEYS, Layout
from .statistics import Statistics

_STANDARD_INPUT = "-"
# The first value in files of torch.save before PyTorch 1.6; later ones are zip files.
_OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9"
_PICKLE_ENDINGS = (".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".bin")
_MAX_METADATA_BYTES = 1024  # of one value
_NPY_HEADER_BYTES = 2**14  # numpy refuses headers of more than 10,000
_ZIP_ENTRY = b"PK\x01\x02"
_MAX_LENGTH = 100_000_000  # bytes, of a safetensors header: the format's own limit; a text seems to have more
_BLOCK_BYTES, _INFLATED_BYTES = 2**25, 2**20  # read at a time
_READ_BYTES = 2**30  # macOS reads less than 2**31 at once

# uint16 may be the bits of bfloat16: the files of programs whose numpy has no bfloat16.
_BITS = ("bfloat16", "uint16")
_READABLE_DTYPES = ("float16", "float32", "float64", *_BITS)
_MIN_PLAUSIBLE, _MAX_PLAUSIBLE = 1e-3, 1e3  # the range of any clip's largest magnitude


class OpenFile(io.FileIO):
    """File that stays open as long as this object exists, even if its name is deleted or reused for another file.

    What is read later is of the file that was opened, or an error if that file has been written to meanwhile.
    Parsers of headers use it as a stream, which limits how much they read, whatever the header says.
    """

    def __init__(self, file: IO[bytes], source: str) -> None:
        super().__init__(os.dup(file.fileno()), closefd=False)
        weakref.finalize(self, os.close, self.fileno())  # without the warning of an open file that is collected
        self.source = source  # its name in errors
        self.state = file_state(self.fileno())
        self.seek(0)

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a buffer from an offset on, and return how many bytes were read."""
        num_bytes = 0
        while count := os.preadv(self.fileno(), [buffer[num_bytes : num_bytes + _READ_BYTES]], offset + num_bytes):
            num_bytes += count
        return num_bytes

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        try:
            return super().seek(offset, whence)
        except OSError as error:  # the parser of a damaged archive
            raise ValueError("a part of it would begin before the file") from error

    def read(self, size: int | None = -1) -> bytes:
        check_header(self.state[2] - self.tell() if size is None or size < 0 else size, 0)
        content = super().read(size)
        check_header(0, content.count(_ZIP_ENTRY))
        return content

    def check_state(self, state: FileState | None = None) -> None:
        """Raise a `LatentsError` if the file was replaced or written to: if this state, by default its own, is new."""
        if self.state != (file_state(self.fileno()) if state is None else state):
            raise self.changed()

    def changed(self) -> LatentsError:
        return LatentsError(
            f"{self.source}: cannot be read, as the file changed while it was read; wait until the program that "
            "writes it is done."
        )


@contextmanager
def reading(file: OpenFile) -> Iterator[None]:
    """Turn any error of a parser into a `LatentsError` of one line, and raise one if the file changes meanwhile."""
    try:
        yield
    except LatentsError:
        raise
    except Exception as error:  # a damaged header can raise any exception in a parser
        file.check_state()
        names = [reader.name for reader in READERS]
        reason = excerpt(str(error).split("\n")[0].rstrip("."), 120) or "it is damaged"
        raise LatentsError(f"{file.source}: cannot be read as {_join(names)} ({reason}).") from error
    file.check_state()


@dataclass(frozen=True, eq=False)
class StoredArray:
    """Tensor of a file, whose header and values are read when they are used. Errors are `LatentsError`s."""

    file: OpenFile
    name: str
    load_header: Callable[[], TensorHeader]
    load_values: Callable[[TensorHeader], np.ndarray] | None = None  # of a tensor in an archive

    @cached_property
    def header(self) -> TensorHeader:
        with reading(self.file):
            return self.load_header()

    @property
    def stored_dtype(self) -> np.dtype:
        """Dtype in the file: uint16 for bfloat16; a void, such as `V1`, for other types that numpy does not have."""
        header = self.header
        if header.numpy_dtype is not None:
            return header.numpy_dtype
        size = header.num_bytes // max(1, math.prod(header.shape))
        name = "u2" if header.dtype == "bfloat16" else f"V{size}" if header.dtype.isupper() else header.dtype
        return np.dtype(name).newbyteorder("<")

    @cached_property
    def values(self) -> np.ndarray:
        """All values, which are kept."""
        return self.read()

    def read(self, frames: range | None = None) -> np.ndarray:
        """Return all values, or consecutive frames of a tensor (..., F', H', W') in C order that is in no archive."""
        header = self.header
        if frames is None and header.num_bytes > MAX_WHOLE_BYTES:
            raise LatentsError(
                f"{self.file.source}: {excerpt(self.name, 40)} {header.shape} takes {format_bytes(header.num_bytes)}, "
                f"and more than {format_bytes(MAX_WHOLE_BYTES)} are read frame by frame only; save latents "
                "(1, C, F', H', W') as safetensors."
            )
        with reading(self.file):
            if header.has_objects:
                raise ValueError("it holds Python objects, which could run any code when read")
            if self.load_values is not None:
                return self.load_values(header)
            shape, num_planes, start = header.shape, 1, header.begin
            if frames is not None:
                *planes, length, height, width = shape
                shape, num_planes = (*planes, len(frames), height, width), math.prod(planes)
                start += header.num_bytes // (num_planes * length) * frames.start
            values = np.empty((num_planes, math.prod(shape) // num_planes), self.stored_dtype)
            for plane, part in enumerate(values if values.size else ()):
                offset = start + header.num_bytes // num_planes * plane
                if self.file.pread_into(part.view(np.uint8).data, offset) < part.nbytes:
                    raise self.file.changed()
            return values.reshape(shape, order=header.order)

    @property
    def mlx_dtype(self) -> mx.Dtype:
        """Dtype of `to_floats`."""
        name = self.header.dtype
        return mx.bfloat16 if name in _BITS else mx.float16 if name == "float16" else mx.float32

    @property
    def numpy_dtype(self) -> np.dtype:
        """Dtype that `to_floats` converts from: uint16 for bfloat16, which numpy does not have."""
        return np.dtype({mx.float16: np.float16, mx.bfloat16: np.uint16}.get(self.mlx_dtype, np.float32))

    def to_floats(self, values: np.ndarray) -> mx.array:
        """Return values of the tensor as float16, bfloat16 or float32, evaluated."""
        with mx.stream(mx.cpu):  # waiting for the GPU would stop the decode that reads these values
            array = from_numpy(values.astype(self.numpy_dtype, copy=False)).view(self.mlx_dtype)
            mx.eval(array)
        return array


#: Tensors of a file by name, and its metadata.
Content = tuple[dict[str, StoredArray], dict[str, str]]


class TensorFile(NamedTuple):
    """Tensors of an open file by name, its metadata, and its path, or its name in errors."""

    tensors: dict[str, StoredArray]
    entries: dict[str, str]
    source: str


def _open_safetensors(file: OpenFile) -> Content:
    headers, metadata = read_header(file)
    return {name: StoredArray(file, name, partial(headers.__getitem__, name)) for name in headers}, metadata


def _open_npy(file: OpenFile) -> Content:
    header = _read_npy(file)
    if not header.has_objects and file.state[2] < header.end:
        raise ValueError(f"it has {file.state[2]} bytes of {header.end}, so it was cut short")
    name = Path(file.source).stem
    return {name: StoredArray(file, name, lambda: header)}, {}


def _read_npy(stream: IO[bytes] | io.RawIOBase) -> TensorHeader:
    """Read the header of a .npy file, from the position of the stream on."""
    text = io.BytesIO(stream.read(_NPY_HEADER_BYTES))
    version = npy_format.read_magic(text)
    read_array_header = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    shape, is_fortran, dtype = read_array_header(text)
    if min(shape, default=0) < 0:
        raise ValueError(f"its shape is {excerpt(shape)}")
    is_bfloat16 = dtype == np.dtype("V2")
    name, dtype = ("bfloat16", np.dtype("<u2")) if is_bfloat16 else (dtype.name, dtype)
    begin, num_bytes = text.tell(), math.prod(shape) * dtype.itemsize
    return TensorHeader(name, shape, begin, begin + num_bytes, dtype, "F" if is_fortran else "C")


def _open_npz(file: OpenFile) -> Content:
    archive = zipfile.ZipFile(file)
    members = archive.infolist()
    if any(member.filename.endswith("data.pkl") for member in members):  # whatever the file is called
        raise _torch_error(file.source)
    tensors: dict[str, StoredArray] = {}
    for member in (member for member in members if member.filename.endswith(".npy")):
        name = member.filename.removesuffix(".npy")
        if name in tensors:
            raise ValueError(f"it has two members {quote(member.filename, 40)}")
        load_header, load_values = partial(_read_member, archive, member), partial(_inflate, file, archive, member)
        tensors[name] = StoredArray(file, name, load_header, load_values)
    return tensors, {}


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> TensorHeader:
    """Read the header of a tensor in a .npz file."""
    title = excerpt(member.filename.removesuffix(".npy"), 40)
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{title} is compressed in a way that numpy does not write")
    with archive.open(member) as stream:
        header = _read_npy(stream)
    if not header.has_objects and member.file_size != header.end:
        shape = excerpt(header.shape, 40)
        raise ValueError(f"{title} has {member.file_size} bytes, where its shape {shape} takes {header.end}")
    return header


def _inflate(file: OpenFile, archive: zipfile.ZipFile, member: zipfile.ZipInfo, header: TensorHeader) -> np.ndarray:
    """Return the values of a tensor in a .npz file."""
    if member.file_size > max(UNSUSPECTED_BYTES, MAX_DEFLATION * member.compress_size):
        sizes = f"takes {format_bytes(member.compress_size)} and would take {format_bytes(member.file_size)}"
        raise LatentsError(
            f"{file.source}: {sizes} decompressed, which is a decompression bomb, or values that are all alike; save "
            "it uncompressed."
        )
    content = bytearray()
    with archive.open(member) as stream:
        stream.seek(header.begin)
        while block := stream.read(_INFLATED_BYTES):
            content += block
    return np.ndarray(header.shape, header.numpy_dtype, content, order=header.order)


@dataclass(frozen=True)
class Reader:
    """Format of latent files. To add one, define its `open` and add an entry to `READERS`."""

    name: str  # in messages
    endings: tuple[str, ...]  # of file names, for `--help`; the format is detected by content
    starts: Callable[[bytes], bool]  # whether a file that starts with these bytes has this format
    open: Callable[[OpenFile], Content]  # may raise any exception, whose text is the reason in a `LatentsError`


READERS = [
    Reader(
        "safetensors",
        (".safetensors", ".latent"),
        lambda start: find_format(start) is Format.SAFETENSORS and int.from_bytes(start[:8], "little") <= _MAX_LENGTH,
        _open_safetensors,
    ),
    Reader(".npy", (".npy",), lambda start: find_format(start) is Format.NPY, _open_npy),
    Reader(".npz", (".npz",), lambda start: find_format(start) is Format.ZIP, _open_npz),
]


def find_reader(start: bytes) -> Reader | None:
    """Return the reader of a file that starts with these bytes, or `None` if it has another format."""
    return next((reader for reader in READERS if reader.starts(start)), None)


def _join(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


@dataclass(eq=False)
class MappedLatents:
    """Latents (B, C, F', H', W') in an open file. Indexing reads, checks and normalizes a slice, in any thread.

    If the tensor has this layout, with a batch of one or none, its frames are read separately. Any other tensor is read
    completely at the first use, and kept. Stored uint16 values are the bits of bfloat16.
    """

    ndim: ClassVar = 5

    stored: StoredArray
    layout: Layout
    shape: LatentShape  # may leave out videos and the last frames of the tensor
    source: str  # the name in errors
    first_video: int = 0
    statistics: Statistics | None = None  # normalize the latents; evaluated
    was_unnormalized: bool = False  # the caller said that the latents are not normalized
    is_checked: bool = False  # the values that are decoded have been read, and are finite
    _has_checked_bits: bool = field(default=False, init=False)

    @property
    def dtype(self) -> mx.Dtype:
        """Dtype of the slices."""
        return self.stored.mlx_dtype if self.statistics is None else mx.float32

    def __getitem__(self, index: tuple[slice, ...]) -> mx.array:
        """Return a slice, normalized and evaluated. `index` has a slice for each of the first axes, at most five.

        Raises a `LatentsError` if the file is damaged or has changed, or has values in the slice that are not finite.
        """
        if not isinstance(index, tuple) or len(index) > self.ndim or not all(isinstance(part, slice) for part in index):
            raise TypeError(f"latents in a file are indexed with a tuple of up to five slices, not {index!r}.")
        check_process()
        if not self._has_checked_bits and self.stored.header.dtype == "uint16":
            full = slice(None)
            frames = (slice(frame, frame + 1) for frame in sampled_frames(self.shape.frames))
            check_plausible((self._read((full, full, frame, full, full)) for frame in frames), self.source)
        self._has_checked_bits = True
        index += (slice(None),) * (self.ndim - len(index))
        latents = self._read(index)
        with mx.stream(mx.cpu):
            ranges = [range(size)[part] for size, part in zip(self.shape, index, strict=True)]
            check_finite(latents, self.source, None if latents.shape == self.shape else ranges)
            if self.statistics is not None:
                latents = Statistics(*(values[index[1]] for values in self.statistics)).normalize(latents)
                mx.eval(latents)
        return latents

    def _read(self, index: tuple[slice, ...]) -> mx.array:
        """Return a slice as it is stored. A few of its frames are in memory twice, fewer if they are large."""
        ranges = [range(size)[part] for size, part in zip(self.shape, index, strict=True)]
        stored, header = self.stored, self.stored.header
        frames, step = ranges[2], max(1, _BLOCK_BYTES * self.shape.frames // header.num_bytes)
        values = np.empty([len(indices) for indices in ranges], stored.numpy_dtype)
        is_in_order = "".join(self.layout.sizes).removeprefix("B") == "CFHW" and header.order == "C"
        reads_frames = is_in_order and stored.load_values is None and self.layout.shape.batch == 1
        crop = (*index[:2], slice(None), *index[3:])
        for start in range(0, len(frames) if values.size else 0, step):
            part = frames[start : start + step]
            first, stop = min(part), max(part) + 1
            if reads_frames:
                block = stored.read(range(first, stop)).reshape(1, self.shape.channels, -1, *self.shape[3:])
            else:
                block = self.layout.to_channels_first(stored.values)[:, :, first:stop]
            block = block[self.first_video : self.first_video + self.shape.batch, :, :: part.step]
            values[:, :, start : start + step] = block[crop]
        return stored.to_floats(values)

    def item(self, index: int) -> "MappedLatents":
        """Return the latents of one video of the batch."""
        return replace(self, shape=self.shape._replace(batch=1), first_video=self.first_video + index)


def open_tensor_file(path: str | os.PathLike) -> TensorFile:
    """Open a file, "-" for standard input. Headers of tensors may be read later."""
    with _open_source(expand_path(path, LatentsError)) as file, reading(file):
        reader = _find_reader(file.read(START_BYTES), file.source)
        file.seek(0)
        tensors, metadata = reader.open(file)
        return TensorFile(tensors, _take_metadata(tensors) | metadata, file.source)


def _take_metadata(tensors: dict[str, StoredArray]) -> dict[str, str]:
    """Remove the one-element tensors in which some programs store metadata, and return their values as text."""
    metadata: dict[str, str] = {}
    for name in [key for key in METADATA_KEYS if key in tensors and math.prod(tensors[key].header.shape) == 1]:
        tensor = tensors.pop(name)
        if (size := tensor.stored_dtype.itemsize) > _MAX_METADATA_BYTES:
            problem = f"{name} takes {format_bytes(size)}, where a single value was expected"
            raise LatentsError(f"{tensor.file.source}: {problem}.")
        values = tensor.read()
        # As the shortest text that stands for the value: 23.976 in float32 is "23.976".
        values = np.array(tensor.to_floats(values).astype(mx.float32)) if tensor.header.dtype == "bfloat16" else values
        metadata[name] = str(values.flat[0])
    return metadata


@contextmanager
def _open_source(path: str) -> Iterator[OpenFile]:
    """Open a file. A pipe and standard input are copied to a file without a name."""
    is_standard_input = path == _STANDARD_INPUT
    source = "standard input" if is_standard_input else path
    with nullcontext(standard_input("a latent file", LatentsError)) if is_standard_input else _open(source) as stream:
        if not is_standard_input and stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            yield OpenFile(stream, source)
            return
        start = stream.read(START_BYTES)
        _find_reader(start, source)  # refuses an endless stream of something else
        with temporary_folder() as folder:
            copy_stream(stream, folder / "latents", source, LatentsError, start)
            with (folder / "latents").open("rb") as file:
                yield OpenFile(file, source)


def _open(source: str) -> IO[bytes]:
    title = excerpt(source, 200)
    try:
        return open_file(source, pipes=True)
    except IsADirectoryError:
        raise LatentsError(f"{source}: is a folder; name one latent file.") from None
    except FileNotFoundError:
        raise LatentsError(f"{title}: there is no such file.") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise LatentsError(f"{title}: cannot be read ({reason}).") from error


def _find_reader(start: bytes, source: str) -> Reader:
    """Return the reader of a file that starts with these bytes; raise a `LatentsError` if there is none."""
    if reader := find_reader(start):
        return reader
    names = [reader.name for reader in READERS]
    if not start:
        raise LatentsError(f"{source}: is empty; expected latents as {_join(names)}.")
    if start.startswith(_OLD_TORCH):
        raise _torch_error(source)
    if find_format(start) is Format.PICKLE or source.lower().endswith(_PICKLE_ENDINGS):
        raise LatentsError(
            f"{source}: is a pickle, which could run any code when read; save the latents as safetensors, in the "
            "program that made them."
        )
    raise LatentsError(
        f"{source}: is neither {' nor '.join(names)}; save the latents as one of them, or turn a video into latents "
        "with encode."
    )


def _torch_error(source: str) -> LatentsError:
    return LatentsError(
        f"{source}: is a pickle of torch.save, which could run any code when read; {torch_conversion(source)}"
    )


def check_plausible(sample: Iterable[mx.array], source: str) -> None:
    """Raise a `LatentsError` unless a sample of values stored as uint16 can be the bits of bfloat16."""
    largest = max(to_float(mx.abs(values.astype(mx.float32)).max()) for values in sample)
    if not _MIN_PLAUSIBLE < largest < _MAX_PLAUSIBLE:
        raise LatentsError(f"{source}: latents are stored as uint16 and are not bfloat16; save them as float32.")


def check_shape(shape: Sequence[int], latent_channels: int | None, source: str, vae: str = DEFAULT_VAE_NAME) -> None:
    """Raise a `LatentsError` unless a shape is (B, C, F', H', W'), with `latent_channels` if these are not `None`.

    `vae` names the VAE that has them.
    """
    shape = tuple(shape)
    if len(shape) == 3:
        raise LatentsError(f"{source}: latents {shape} look packed, (B, tokens, C); unpack them to (B, C, F', H', W').")
    if len(shape) != 5:
        raise LatentsError(f"{source}: latents {shape} should have five axes, (B, C, F', H', W').")
    if 0 in shape:
        raise LatentsError(f"{source}: latents {shape} are empty; no axis may have the length 0.")
    if latent_channels not in (None, shape[1]):
        raise LatentsError(f"{source}: latents {shape} have {shape[1]} channels where {vae} has {latent_channels}.")


def check_readable(stored: StoredArray, name: str) -> None:
    """Raise a `LatentsError` for values that are not floating-point numbers."""
    if stored.header.dtype not in _READABLE_DTYPES:
        raise LatentsError(
            f"{stored.file.source}: {name} is stored as {stored.header.dtype}; save it as float32, float16 or bfloat16."
        )


def check_finite(
    latents: mx.array, source: str, part: Sequence[range] | None = None, axes: Sequence[str] = "bcfhw"
) -> None:
    """Raise a `LatentsError` for values that are not finite. `part` is the position of a part in all latents."""
    if count := count_nonfinite(latents):
        first = np.unravel_index(to_int(mx.argmax(mx.logical_not(mx.isfinite(latents)))), latents.shape)
        ranges = part or [range(size) for size in latents.shape]
        index = tuple(indices[int(i)] for indices, i in zip(ranges, first, strict=True))
        where = "" if part is None else f" in [{', '.join(f'{indices.start}:{indices.stop}' for indices in part)}]"
        raise LatentsError(
            f"{source}: {count} of {latents.size} values{where} are not finite (NaN or infinite), the first at "
            f"({', '.join(axes)}) = {index}; check the program that made these latents."
        )
