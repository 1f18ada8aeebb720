"""Reads audio latents of a latent file."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from ..errors import LatentsError, excerpt, option, quote, warn
from ..units import format_count
from .formats import StoredArray, TensorFile, check_finite, check_plausible, check_readable, open_tensor_file
from .metadata import AUDIO_LENGTHS, AUDIO_NAMES, is_audio_name, parse_metadata
from .statistics import GivenStatistics, choose_statistics

_CHANNELS, _BINS = 8, 16  # of audio latents, in every release
_VIDEO_CHANNELS = 128  # of video latents
_PLAIN_NAMES = ("latents", "latent", "samples", "latent_tensor")  # of audio latents in a file without a video
_MAX_LENGTHS = 1024  # entries of a batch


@dataclass(frozen=True)
class AudioLatentsFile:
    """Audio latents that have not been read."""

    source: str
    tensor: str
    stored_shape: tuple[int, ...]
    stored_dtype: str
    layout: str  # the axes in the file, such as "(B, T, 128)"
    batch: int
    length: int  # along time
    normalized: bool | None  # as the metadata states
    _stored: StoredArray = field(repr=False)  # in this layout; may have padding at the end of T

    def read(self, *, statistics: GivenStatistics | None = None, unnormalized: bool | None = None) -> mx.array:
        """Return normalized latents (B, 8, T, 16), or packed (B, T, 128). For arguments see `load_audio_latents`."""
        values = self.read_stored()
        latent_statistics = choose_statistics(self.source, self.normalized, _CHANNELS * _BINS, statistics, unnormalized)
        if latent_statistics is not None:
            values = latent_statistics.normalize(values, (-1,) if values.ndim == 3 else (_CHANNELS, 1, _BINS))
            mx.eval(values)
        return values

    def read_stored(self) -> mx.array:
        """Return the values as they are stored, normalized or not. Raises a `LatentsError` if they are not finite."""
        source = f"{self.source}: audio latents {quote(self.tensor)}"
        values = self._stored.to_floats(self._stored.read())
        values = (values if self.layout.startswith("(B") else values[None])[..., : self.length, :]
        if self._stored.header.dtype == "uint16":
            check_plausible([values], source)
        check_finite(values, source, axes="btc" if values.ndim == 3 else "bctf")
        return values


def load_audio_latents(
    path: str | os.PathLike,
    *,
    alone: bool = False,
    tensor: str | None = None,
    unnormalized: bool | None = None,
    statistics: GivenStatistics | None = None,
) -> mx.array | None:
    """Return normalized audio latents of a file, (B, 8, T, 16) or packed (B, T, 128); `None` if it has none.

    Args:
        path: as in `load_latents`, which reads the latents of the video from the same file.
        alone: True if the file has audio latents only, which then may have any name.
        tensor: the name of the tensor, if it is unusual.
        unnormalized: True if the file stores `latents * std + mean`; `None` follows the metadata.
        statistics: `(audio_vae.mean, audio_vae.std)`, each (128,), which normalize unnormalized latents.

    Raises:
        LatentsError: for a file that cannot be read, another shape, values that are not finite, and arguments that
            contradict the metadata.
    """
    file = open_audio_latents(path, is_alone=alone, tensor=tensor)
    return None if file is None else file.read(statistics=statistics, unnormalized=unnormalized)


def open_audio_latents(
    path: str | os.PathLike, *, is_alone: bool = False, tensor: str | None = None
) -> AudioLatentsFile | None:
    """Open a file and return its audio latents, as `find_audio_latents`. Raises a `LatentsError`, too, if it cannot."""
    return find_audio_latents(open_tensor_file(path), is_alone=is_alone, tensor=tensor)


def find_audio_latents(
    file: TensorFile, *, is_alone: bool = False, tensor: str | None = None
) -> AudioLatentsFile | None:
    """Return the audio latents among the tensors of a file, or `None` if there are none.

    They are stored as (B, 8, T, 16), the same without a batch, or packed (B, T, 128). `is_alone` is True if the file
    may have no other latents. `tensor` is their name, if it is unusual. Raises a `LatentsError` for another shape, a
    name that does not exist, and several tensors with usual names.
    """
    tensors, entries, source = file
    name = _choose_audio(tensors, tensor, source, is_alone=is_alone)
    if name is None:
        return None
    stored = tensors[name]
    stored_shape, layout = stored.header.shape, "(B, 8, T, 16)"
    shape = stored_shape
    if _is_audio_shape(shape) and len(shape) == 3:
        shape, layout = (1, *shape), "(8, T, 16)"
    batch, *sizes = shape or (0,)
    if len(sizes) == 3 and (sizes[0], sizes[2]) == (_CHANNELS, _BINS):
        length = sizes[1]
    elif len(sizes) == 2 and sizes[1] == _CHANNELS * _BINS:
        length, layout = sizes[0], "(B, T, 128)"
    else:
        problem = (
            f"audio latents {quote(name)} have" if is_audio_name(name) else f"has no audio latents: {quote(name)} has"
        )
        raise LatentsError(
            f"{source}: {problem} the shape {excerpt(stored_shape)}; expected (B, {_CHANNELS}, T, {_BINS}), or packed "
            f"(B, T, {_CHANNELS * _BINS})."
        )
    if 0 in stored_shape:
        raise LatentsError(f"{source}: audio latents {quote(name)} are empty.")
    check_readable(stored, f"audio latents {quote(name)}")
    if AUDIO_LENGTHS in tensors:
        length = _used_length(tensors[AUDIO_LENGTHS], length, source)
    normalized = parse_metadata(entries, source).normalized
    return AudioLatentsFile(source, name, stored_shape, stored.header.dtype, layout, batch, length, normalized, stored)


def _choose_audio(tensors: Mapping[str, StoredArray], tensor: str | None, source: str, *, is_alone: bool) -> str | None:
    listing = excerpt(", ".join(sorted(tensors)[:8]), 120)
    if tensor is not None:
        if tensor not in tensors:
            raise LatentsError(f"{source}: has no tensor {quote(tensor)}; it has {listing or 'nothing'}.")
        return tensor
    latent_names = [name for name in tensors if name != AUDIO_LENGTHS]
    plain_names = [name for name in _PLAIN_NAMES if name in tensors] or (latent_names if len(latent_names) == 1 else [])
    if names := [name for name in AUDIO_NAMES if name in tensors]:
        return names[0]
    names = [name for name in latent_names if is_audio_name(name)] or (plain_names[:1] if is_alone else [])
    if len(names) > 1:
        way = option("tensor=", "--audio-tensor")
        raise LatentsError(f"{source}: has {len(names)} tensors of audio latents ({listing}); choose one with {way}.")
    return names[0] if names else None


def _used_length(stored: StoredArray, length: int, source: str) -> int:
    """Return the length of audio latents without padding, as the file states it; warn if it is less than `length`."""
    values = set(stored.read().flat) if math.prod(stored.header.shape) <= _MAX_LENGTHS else set()
    used = int(values.pop()) if len(values) == 1 and stored.header.dtype.startswith(("int", "uint")) else 0
    if not 0 < used <= length:
        raise LatentsError(f"{source}: expected {AUDIO_LENGTHS} to be one number from 1 to {length}; correct it.")
    if used < length:
        left_out = format_count(length - used, "audio latent")
        warn(f"{source}: {AUDIO_LENGTHS} is {used}, which leaves out {left_out} of padding at the end.")
    return used


def is_audio_alone(tensors: Mapping[str, StoredArray], latent_channels: int | None) -> bool:
    """Return whether a file with these tensors has audio latents and no others."""
    names = [name for name in tensors if not is_audio_name(name)]
    names = [name for name in names if name in _PLAIN_NAMES] or names
    is_alone = len(names) == 1 and looks_like_audio(tensors[names[0]].header.shape, latent_channels)
    return bool(tensors) and (not names or is_alone)


def looks_like_audio(shape: Sequence[int], latent_channels: int | None) -> bool:
    """Return whether latents of this shape are audio rather than video."""
    if latent_channels == _BINS or (len(shape) == 4 and shape[0] == (latent_channels or _VIDEO_CHANNELS)):
        return False  # (F', H', W', C), and (C, F', H', W') of 8 frames
    return _is_audio_shape(shape)


def _is_audio_shape(shape: Sequence[int]) -> bool:
    return len(shape) in (3, 4) and (shape[-3], shape[-1]) == (_CHANNELS, _BINS)
