"""Latents that stay in their file: each slice is read when it is asked for."""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property

import mlx.core as mx
import numpy as np

from ..backend.device import check_process
from ..backend.mlx_utils import count_nonfinite, to_float, to_int
from ..errors import LatentsError
from ..shapes import LatentShape
from .stored import StoredArray

# uint16 may be the bits of bfloat16: the files of programs whose numpy has no bfloat16.
_READABLE_DTYPES = ("float16", "bfloat16", "float32", "float64", "uint16")
_ITEMS = {mx.float16: np.float16, mx.bfloat16: np.uint16}  # others are float32
_DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "uint16": mx.bfloat16}
_MIN_PLAUSIBLE, _MAX_PLAUSIBLE = 1e-3, 1e3  # the range of any clip's largest magnitude
_SAMPLED_FRAMES = 8


class MappedLatents:
    """Latents (B, C, F', H', W') in an open file. Indexing reads, checks and normalizes a slice, in any thread.

    Stored uint16 are the bits of bfloat16. `statistics` normalize them: mean and std (C,), evaluated. `axes` has a
    letter for each of the first axes, for errors.
    """

    ndim = 5

    def __init__(
        self, stored: StoredArray, statistics: tuple[mx.array, mx.array] | None, *, axes: str = "bcfhw"
    ) -> None:
        self.source = stored.file.source
        self.shape = LatentShape(*stored.shape)
        self._dtype = _DTYPES.get(stored.name, mx.float32)
        self.dtype = self._dtype if statistics is None else mx.float32  # of the slices
        self._stored = stored
        self._statistics = statistics
        self._axes = axes

    def __getitem__(self, index: tuple[slice, ...]) -> mx.array:
        """The slice, normalized and evaluated. `index` has a slice for each of the first axes, at most five.

        A `LatentsError` if the file is damaged or has changed, or has values in the slice that are not finite.
        """
        if not isinstance(index, tuple) or len(index) > self.ndim or not all(isinstance(each, slice) for each in index):
            raise TypeError(f"latents in a file are indexed with a tuple of up to five slices, not {index!r}.")
        check_process()
        index += (slice(None),) * (self.ndim - len(index))
        if self._stored.name == "uint16" and not self._is_bfloat16:
            raise LatentsError(
                f"{self.source}: latents are stored as uint16 and are not bfloat16; save them as float32."
            )
        with mx.stream(mx.cpu):  # to wait for a GPU would stop the decode that this slice is for
            latents = self._read(index)
            part = [range(size)[axis] for size, axis in zip(self.shape, index, strict=True)]
            check_finite(latents, self.source, None if latents.shape == self.shape else part, self._axes)
            if self._statistics is not None:
                mean, std = (array[index[1]].reshape(-1, 1, 1, 1) for array in self._statistics)
                latents = (latents.astype(mx.float32) - mean) / std
                mx.eval(latents)
            return latents

    def item(self, index: int) -> "MappedLatents":
        item = copy(self)
        item.shape = self.shape._replace(batch=1)
        item._stored = self._stored[(slice(index, index + 1),)]
        return item

    @cached_property
    def _is_bfloat16(self) -> bool:
        """Whether a sample of values stored as uint16 is plausible as bfloat16."""
        parts = (self._read((slice(None), slice(None), slice(f, f + 1))) for f in sampled_frames(self.shape.frames))
        largest = max(to_float(mx.max(mx.abs(part.astype(mx.float32)))) for part in parts)
        return _MIN_PLAUSIBLE < largest < _MAX_PLAUSIBLE

    def _read(self, index: tuple[slice, ...]) -> mx.array:
        stored = self._stored[index]
        values = np.empty(stored.shape, _ITEMS.get(self._dtype, np.float32))
        for where, part in stored.read():
            values[where] = part.view(np.uint16) if self._dtype == mx.bfloat16 else part
        latents = mx.array(values)
        if self._dtype == mx.bfloat16:  # which numpy does not have
            latents = latents.view(mx.bfloat16)
        mx.eval(latents)
        return latents


def sampled_frames(num_frames: int) -> list[int]:
    """The numbers of up to 8 latent frames, spread over a clip."""
    count = min(num_frames, _SAMPLED_FRAMES)
    return [(2 * i + 1) * num_frames // (2 * count) for i in range(count)]


def read_frames(latents: mx.array | MappedLatents, frames: Iterable[int]) -> Iterator[mx.array]:
    """Yield some latent frames of (B, C, F', H', W'), float32 (B, C, 1, H', W')."""
    for frame in frames:
        yield latents[(slice(None), slice(None), slice(frame, frame + 1))].astype(mx.float32)


def channel_moments(frames: Iterable[mx.array]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (C,), float64, of all latent frames (B, C, 1, H', W') together."""
    means, variances = [], []
    for values in frames:
        # In float64, in which no square of a float32 is infinite. Channel by channel, since it takes twice the memory.
        channels = (channel.astype(np.float64) for channel in np.moveaxis(np.array(values), 1, 0))
        moments = np.array([(channel.mean(), channel.var()) for channel in channels])
        means.append(moments[:, 0])
        variances.append(moments[:, 1])
    return np.mean(means, axis=0), np.sqrt(np.mean(variances, axis=0) + np.var(means, axis=0))


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
        index = tuple(axis[int(i)] for axis, i in zip(ranges, first, strict=True))[: len(axes)]
        where = "" if part is None else f" in [{', '.join(f'{axis.start}:{axis.stop}' for axis in part)}]"
        raise LatentsError(
            f"{source}: {count} of {latents.size} values{where} are not finite (NaN or infinite), the first at "
            f"({', '.join(axes)}) = {index}; check the program that made these latents."
        )
