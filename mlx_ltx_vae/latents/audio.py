"""Audio latents in latent files: beside those of a video, or alone."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import mlx.core as mx

from ..errors import LatentsError, excerpt, quote
from .metadata import parse_metadata
from .stored import GivenStatistics, StoredArray, check_finite, check_plausible, check_readable, choose_statistics
from .tensor_files import open_tensor_file, source_name

#: Names of audio latents beside those of a video, the final ones first.
AUDIO_NAMES = (
    "audio_latents",
    "audio_latent",
    "final_audio_latent",
    "stage_2_audio_latent",
    "stage_1_audio_latent",
    "audio_samples",
)
_CHANNELS, _BINS = 8, 16  # of every release
_VIDEO_CHANNELS = 128  # of the latents of its videos
_OWN_NAMES = ("latents", "latent", "samples", "latent_tensor")  # in a file of audio latents alone


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
    normalized: bool | None  # what the metadata states
    _stored: StoredArray = field(repr=False)  # (B, 8, T, 16), or packed (B, T, 128)

    def read(self, *, statistics: GivenStatistics | None = None, unnormalized: bool | None = None) -> mx.array:
        """Normalized latents (B, 8, T, 16), or packed (B, T, 128). Arguments and errors: see `load_audio_latents`."""
        values = self.read_stored()
        found = choose_statistics(self.source, self.normalized, _CHANNELS * _BINS, statistics, unnormalized)
        if found is None:
            return values
        mean, std = (each if values.ndim == 3 else each.reshape(_CHANNELS, 1, _BINS) for each in found)
        values = (values.astype(mx.float32) - mean) / std
        mx.eval(values)
        return values

    def read_stored(self) -> mx.array:
        """As they are stored, normalized or not. A `LatentsError` if they are not finite."""
        source = f"{self.source}: audio latents {quote(self.tensor)}"
        values = self._stored.read_floats()
        if self._stored.name == "uint16":
            check_plausible([values], source)
        check_finite(values, source, axes="btc" if values.ndim == 3 else "bctf")
        return values


def load_audio_latents(
    path: str | os.PathLike,
    *,
    alone: bool = False,
    unnormalized: bool | None = None,
    statistics: GivenStatistics | None = None,
) -> mx.array | None:
    """Normalized audio latents of a latent file, (B, 8, T, 16) or packed (B, T, 128); None if it has none.

    Args:
        path: as of `load_latents`, which reads the video's latents beside them.
        alone: whether they are all that the file has, under any name.
        unnormalized: whether the file stores `latents * std + mean`; None follows the metadata.
        statistics: `(audio_vae.mean, audio_vae.std)`, each (128,), which normalize unnormalized latents.

    Raises:
        LatentsError: for a file that cannot be read, another shape, values that are not finite, and arguments that
            contradict the metadata.
    """
    file = open_audio_latents(path, is_alone=alone)
    return None if file is None else file.read(statistics=statistics, unnormalized=unnormalized)


def open_audio_latents(path: str | os.PathLike, *, is_alone: bool = False) -> AudioLatentsFile | None:
    """As `find_audio_latents`, in a file. A `LatentsError` for one that cannot be read, too."""
    tensors, stated = open_tensor_file(path)
    return find_audio_latents(tensors, stated, source_name(path), is_alone=is_alone)


def find_audio_latents(
    tensors: Mapping[str, StoredArray], stated: Mapping[str, str], source: str, *, is_alone: bool = False
) -> AudioLatentsFile | None:
    """The audio latents among tensors; None if there are none. `is_alone` is whether there may be nothing else.

    Stored are (B, 8, T, 16), the same without a batch, or packed (B, T, 128). A `LatentsError` for another shape.
    """
    names = [name for name in (*AUDIO_NAMES, *(_OWN_NAMES if is_alone else ())) if name in tensors]
    if not names and is_alone and len(tensors) == 1:
        names = list(tensors)
    if not names:
        return None
    name, stored = names[0], tensors[names[0]]
    whole, layout = stored, "(B, 8, T, 16)"
    if _is_audio_shape(stored.shape) and len(stored.shape) == 3:
        whole, layout = replace(stored, shape=(1, *stored.shape), strides=(0, *stored.strides)), "(8, T, 16)"
    batch, *rest = whole.shape or (0,)
    if len(rest) == 3 and (rest[0], rest[2]) == (_CHANNELS, _BINS):
        length = rest[1]
    elif len(rest) == 2 and rest[1] == _CHANNELS * _BINS:
        length, layout = rest[0], "(B, T, 128)"
    else:
        what = (
            f"audio latents {quote(name)} have" if name in AUDIO_NAMES else f"has no audio latents: {quote(name)} has"
        )
        raise LatentsError(
            f"{source}: {what} the shape {excerpt(stored.shape)}; expected (B, {_CHANNELS}, T, {_BINS}), or packed "
            f"(B, T, {_CHANNELS * _BINS})."
        )
    if 0 in stored.shape:
        raise LatentsError(f"{source}: audio latents {quote(name)} are empty.")
    check_readable(stored, f"audio latents {quote(name)}", source)
    normalized = parse_metadata(dict(stated), source).normalized
    return AudioLatentsFile(source, name, stored.shape, stored.name, layout, batch, length, normalized, whole)


def is_sound_alone(shapes: Mapping[str, Sequence[int]], latent_channels: int | None) -> bool:
    """Whether a file with tensors of these shapes has audio latents and no others."""
    others = [name for name in shapes if name not in AUDIO_NAMES]
    others = [name for name in others if name in _OWN_NAMES] or others
    return bool(shapes) and (not others or (len(others) == 1 and looks_like_audio(shapes[others[0]], latent_channels)))


def looks_like_audio(shape: Sequence[int], latent_channels: int | None) -> bool:
    """Whether latents of this shape are those of sound rather than of a video."""
    if latent_channels == _BINS or (len(shape) == 4 and shape[0] == (latent_channels or _VIDEO_CHANNELS)):
        return False  # (F', H', W', C), and (C, F', H', W') of 8 frames
    return _is_audio_shape(shape)


def _is_audio_shape(shape: Sequence[int]) -> bool:
    return len(shape) in (3, 4) and (shape[-3], shape[-1]) == (_CHANNELS, _BINS)
