"""Arrays that stay in their file, and latents among them: each slice is read when it is asked for."""

# Files are not mapped: reading a mapped page behind the end of a file that has shrunk ends the process (SIGBUS).

import hashlib
import math
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import IO, Any

import mlx.core as mx
import numpy as np

from ..backend.device import check_process
from ..backend.mlx_utils import count_nonfinite, to_float, to_int, to_mlx
from ..errors import LatentsError, excerpt, option
from ..files import file_state
from ..shapes import LatentShape

_BLOCK_BYTES = 2**20
_MAX_GAP = 2**14  # bytes; to read as many takes as long as another call

# uint16 may be the bits of bfloat16: the files of programs whose numpy has no bfloat16.
_BITS = ("bfloat16", "uint16")
_READABLE_DTYPES = ("float16", "float32", "float64", *_BITS)
_MIN_PLAUSIBLE, _MAX_PLAUSIBLE = 1e-3, 1e3  # the range of any clip's largest magnitude
_SAMPLED_FRAMES = 8
_HASHED_VALUES = 2**22  # at a time

MeanAndStd = tuple[mx.array, mx.array]  # mean and standard deviation of each channel, (C,)
GivenStatistics = tuple[mx.array | None, mx.array | None]  # `(vae.mean, vae.std)`; a VAE may have none


class OpenFile:
    """A file that stays open as long as this object exists, also if its name is deleted or becomes another file's."""

    def __init__(self, file: IO[bytes], source: str) -> None:
        self.source = source  # its name in errors
        self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self.state = file_state(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """So many bytes, or fewer at the end of the file."""
        content = os.pread(self._descriptor, size, offset)
        while len(content) < size and (more := os.pread(self._descriptor, size - len(content), offset + len(content))):
            content += more
        return content

    def check_unchanged(self) -> None:
        if file_state(self._descriptor) != self.state:
            raise self.changed()

    def changed(self) -> LatentsError:
        return LatentsError(
            f"{self.source}: cannot be read, as the file changed while it was read; wait until the program that "
            "writes it is done."
        )

    @contextmanager
    def reader(self) -> Iterator[IO[bytes]]:
        """A file object at the start of the file. Use one at a time: all share one position."""
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            yield file


@contextmanager
def reading(file: OpenFile) -> Iterator[None]:
    """Turn any error of a parser into a `LatentsError` of one line. A file that changes meanwhile is one, too."""
    try:
        yield
    except LatentsError:
        raise
    except Exception as error:  # a damaged header can make each of the parsers fail in its own way
        file.check_unchanged()
        reason = excerpt(str(error).split("\n")[0].rstrip("."), 120) or "it is damaged"
        raise LatentsError(f"{file.source}: cannot be read as safetensors, .npy or .npz ({reason}).") from error
    file.check_unchanged()


@dataclass(frozen=True)
class StoredArray:
    """An array whose values are in a file, or a part of one, described as numpy describes arrays in memory."""

    file: OpenFile
    name: str  # of its dtype: "float32", "bfloat16"; for what numpy does not have, the file's own, such as "F8_E4M3"
    dtype: np.dtype  # uint16 for bfloat16; a void, such as `V1`, for other types that numpy does not have
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes between neighbors along each axis
    offset: int  # of the first value in the file

    @classmethod
    def whole(
        cls, file: OpenFile, name: str, dtype: np.dtype, shape: tuple[int, ...], offset: int, is_fortran: bool = False
    ) -> "StoredArray":
        numbers = (math.prod(shape[:axis] if is_fortran else shape[axis + 1 :]) for axis in range(len(shape)))
        return cls(file, name, dtype, shape, tuple(number * dtype.itemsize for number in numbers), offset)

    def __getitem__(self, index: tuple[slice, ...]) -> "StoredArray":
        """A part of it, of which no value is read either. `index` has a slice for each of the first axes."""
        parts = [range(size)[axis] for size, axis in zip(self.shape, index, strict=False)]
        known, others = self.strides[: len(parts)], self.strides[len(parts) :]
        return replace(
            self,
            shape=(*map(len, parts), *self.shape[len(parts) :]),
            strides=(*(part.step * stride for part, stride in zip(parts, known, strict=True)), *others),
            offset=self.offset + sum(part.start * stride for part, stride in zip(parts, known, strict=True)),
        )

    def read(self, dtype: type[np.generic] | None = None) -> np.ndarray:
        """Its values, cast to a dtype if one is given. A `LatentsError` if the file is damaged or has changed."""
        values = np.empty(self.shape, dtype or self.dtype.newbyteorder("="))
        with reading(self.file):
            if self.dtype.hasobject:
                raise ValueError("it holds Python objects, which could run any code when read")
            if values.size:
                self._read_into(values)
        return values

    def _read_into(self, values: np.ndarray) -> None:
        """Read all at once if it lies in 1 MB of the file without large gaps, or else the two halves."""
        span, gap, longest = self.dtype.itemsize, 0, None
        for axis in sorted(range(len(self.shape)), key=lambda axis: abs(self.strides[axis])):
            if self.shape[axis] > 1:
                stride = abs(self.strides[axis])
                gap, longest = max(gap, stride - span), axis
                span += (self.shape[axis] - 1) * stride
        if longest is None or (span <= _BLOCK_BYTES and gap <= _MAX_GAP):
            reversed_axes = (axis for axis, stride in enumerate(self.strides) if stride < 0)
            before = sum(-self.strides[axis] * (self.shape[axis] - 1) for axis in reversed_axes)
            content = self.file.read(self.offset - before, span)
            if len(content) < span:
                raise self.file.changed()
            values[...] = np.ndarray(self.shape, self.dtype, content, before, self.strides)
            return
        middle = self.shape[longest] // 2
        for half in (slice(middle), slice(middle, None)):
            index = (*[slice(None)] * longest, half)
            self[index]._read_into(values[index])

    @property
    def mlx_dtype(self) -> mx.Dtype:
        """The dtype of `read_floats`."""
        return mx.bfloat16 if self.name in _BITS else mx.float16 if self.name == "float16" else mx.float32

    def read_floats(self) -> mx.array:
        """Its values as float16, bfloat16 or float32, evaluated."""
        dtype = self.mlx_dtype
        with mx.stream(mx.cpu):  # to wait for a GPU would stop the decode that these are for
            # numpy does not have bfloat16.
            values = mx.array(self.read({mx.float16: np.float16, mx.bfloat16: np.uint16}.get(dtype, np.float32)))
            values = values.view(dtype)
            mx.eval(values)
        return values


class MappedLatents:
    """Latents (B, C, F', H', W') in an open file. Indexing reads, checks and normalizes a slice, in any thread.

    Stored uint16 are the bits of bfloat16. `statistics` normalize them: mean and std (C,), evaluated. `source` is their
    name in errors, by default that of the file. `was_unnormalized` is whether the caller said that they need it.
    """

    ndim = 5

    def __init__(
        self,
        stored: StoredArray,
        statistics: MeanAndStd | None,
        source: str | None = None,
        *,
        was_unnormalized: bool = False,
    ) -> None:
        self.was_unnormalized = was_unnormalized
        self.source = source or stored.file.source
        self.shape = LatentShape(*stored.shape)
        self.dtype = stored.mlx_dtype if statistics is None else mx.float32  # of the slices
        self._stored = stored
        self._statistics = statistics

    def __getitem__(self, index: tuple[slice, ...]) -> mx.array:
        """The slice, normalized and evaluated. `index` has a slice for each of the first axes, at most five.

        A `LatentsError` if the file is damaged or has changed, or has values in the slice that are not finite.
        """
        if not isinstance(index, tuple) or len(index) > self.ndim or not all(isinstance(each, slice) for each in index):
            raise TypeError(f"latents in a file are indexed with a tuple of up to five slices, not {index!r}.")
        check_process()
        index += (slice(None),) * (self.ndim - len(index))
        latents = self._checked[index].read_floats()
        with mx.stream(mx.cpu):
            part = [range(size)[axis] for size, axis in zip(self.shape, index, strict=True)]
            check_finite(latents, self.source, None if latents.shape == self.shape else part)
            if self._statistics is not None:
                mean, std = (array[index[1]].reshape(-1, 1, 1, 1) for array in self._statistics)
                latents = (latents.astype(mx.float32) - mean) / std
                mx.eval(latents)
        return latents

    def item(self, index: int) -> "MappedLatents":
        part = self._stored[(slice(index, index + 1),)]
        return MappedLatents(part, self._statistics, self.source, was_unnormalized=self.was_unnormalized)

    def digest(self) -> str:
        """A hash of the values."""
        frames = self.shape.frames
        step = max(1, _HASHED_VALUES * frames // math.prod(self.shape))
        total = hashlib.sha256()
        for start in range(0, frames, step):
            total.update(np.array(self[:, :, start : start + step].view(mx.uint8)).tobytes())
        return total.hexdigest()

    @cached_property
    def _checked(self) -> StoredArray:
        if self._stored.name == "uint16":
            frames = sampled_frames(self.shape.frames)
            sample = (self._stored[(slice(None), slice(None), slice(f, f + 1))].read_floats() for f in frames)
            check_plausible(sample, self.source)
        return self._stored


def choose_statistics(
    source: str, stated: bool | None, channels: int, statistics: GivenStatistics | None, unnormalized: bool | None
) -> MeanAndStd | None:
    """The statistics that normalize latents of a file, float32 (C,) and evaluated; None if they are normalized.

    `stated` is what the metadata says of normalization, and `unnormalized` what the caller says. A `LatentsError` if
    these contradict each other, or if statistics are missing or of other channels.
    """
    if unnormalized is not None and unnormalized is stated:
        first, second = ("normalized", "unnormalized") if unnormalized else ("unnormalized", "normalized")
        raise LatentsError(
            f"{source}: its metadata says that these latents are {first}, and {option('the caller', '--unnormalized')} "
            f"that they are {second}; leave out {option('unnormalized=', '--unnormalized')}."
        )
    if not (stated is False if unnormalized is None else unnormalized):
        return None
    mean, std = statistics or (None, None)
    if mean is None or std is None:
        raise LatentsError(f"{source}: is unnormalized; give the VAE's statistics=(vae.mean, vae.std) with it.")
    if any(array.shape != (channels,) for array in (mean, std)):
        found = f"{mean.shape} and {std.shape}"
        raise LatentsError(f"{source}: these latents need statistics {(channels,)}, and these are {found}.")
    mean, std = mean.astype(mx.float32), std.astype(mx.float32)
    mx.eval(mean, std)  # lazy, they could be used in this thread only
    return mean, std


def check_plausible(sample: Iterable[mx.array], source: str) -> None:
    """Raise a `LatentsError` unless a sample of values stored as uint16 can be the bits of bfloat16."""
    largest = max(to_float(mx.abs(values.astype(mx.float32)).max()) for values in sample)
    if not _MIN_PLAUSIBLE < largest < _MAX_PLAUSIBLE:
        raise LatentsError(f"{source}: latents are stored as uint16 and are not bfloat16; save them as float32.")


def sampled_frames(num_frames: int) -> list[int]:
    """The numbers of up to 8 latent frames, spread over a clip."""
    count = min(num_frames, _SAMPLED_FRAMES)
    return [(2 * i + 1) * num_frames // (2 * count) for i in range(count)]


def read_frames(latents: Any, frames: Iterable[int]) -> Iterator[mx.array]:
    """Yield some latent frames of an array or `MappedLatents` (B, C, F', H', W'), float32 (B, C, 1, H', W')."""
    for frame in frames:
        yield to_mlx(latents[(slice(None), slice(None), slice(frame, frame + 1))], "latents").astype(mx.float32)


def check_readable(stored: StoredArray, name: str, source: str) -> None:
    """Raise a `LatentsError` for values that are not floating-point numbers."""
    if stored.name not in _READABLE_DTYPES:
        raise LatentsError(f"{source}: {name} is stored as {stored.name}; save it as float32, float16 or bfloat16.")


def check_finite(
    latents: mx.array, source: str, part: Sequence[range] | None = None, axes: Sequence[str] = "bcfhw"
) -> None:
    """Raise a `LatentsError` for values that are not finite. `part` is where in the whole latents these are."""
    if count := count_nonfinite(latents):
        first = np.unravel_index(to_int(mx.argmax(mx.logical_not(mx.isfinite(latents)))), latents.shape)
        ranges = part or [range(size) for size in latents.shape]
        index = tuple(axis[int(i)] for axis, i in zip(ranges, first, strict=True))
        where = "" if part is None else f" in [{', '.join(f'{axis.start}:{axis.stop}' for axis in part)}]"
        raise LatentsError(
            f"{source}: {count} of {latents.size} values{where} are not finite (NaN or infinite), the first at "
            f"({', '.join(axes)}) = {index}; check the program that made these latents."
        )
