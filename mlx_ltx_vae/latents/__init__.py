"""Reads latent files (safetensors, also ComfyUI's .latent, .npy and .npz), checks latents, and writes safetensors.

Facts about the files of other programs:

- ComfyUI's `.latent` is safetensors with the tensor `latent_tensor`, for LTX normalized, and an empty tensor
  `latent_format_version_0`. ComfyUI's loader multiplies files without that mark by 1/0.18215, the scale of Stable
  Diffusion latents. LTX is newer than the mark: a file without it was written by another program, and is never
  rescaled here.
- diffusers' LTX-Video pipelines return normalized latents, packed or not. Its LTX-2 pipelines return unnormalized
  ones, `latents * std + mean` (their `scaling_factor` is 1 for every LTX release).
- Data sets of the LTX trainers store `num_frames`, `height` and `width` of the latent grid.
- An MLX port's two-stage pipeline stores its result twice, as `stage_2_video_latent` and `final_video_latent`.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import mlx.core as mx

from ..errors import LatentsError, excerpt, option, quote, warn
from ..shapes import Grid, LatentShape, ScaleFactors
from ..units import format_count
from .files import (
    GivenStatistics,
    MappedLatents,
    OpenFile,
    StoredArray,
    check_finite,
    check_plausible,
    check_readable,
    check_shape,
    choose_statistics,
    open_tensor_file,
    source_name,
)
from .keyframes import KEYFRAME_NAMES, STILL_NAMES, KeyframesFile, find_keyframes
from .keyframes import load_keyframes as load_keyframes
from .metadata import (
    AUDIO_LENGTHS,
    AUDIO_NAMES,
    DEFAULT_VAE_NAME,
    find_layout,
    find_video_sizes,
    is_audio_name,
    parse_metadata,
)
from .metadata import LatentSpace as LatentSpace
from .writer import LatentsWriter as LatentsWriter
from .writer import check_latents_name as check_latents_name
from .writer import is_for_comfyui as is_for_comfyui
from .writer import save_latents as save_latents

KNOWN_NAMES = (
    "latents", "latent", "samples", "latent_tensor", "latent_tensor_0", "stage_2_video_latent", "final_video_latent",
)  # fmt: skip
_STAGE_2, _FINAL = KNOWN_NAMES[-2:]
_WORKFLOW_KEYS = ("prompt", "workflow")


@dataclass(frozen=True)
class LatentsInfo:
    """Metadata of a latent file. A value is `None` if the file does not state it."""

    source: str
    tensor: str
    stored_shape: tuple[int, ...]  # in the file's layout
    fps: Fraction | None = None
    num_frames: int | None = None  # frames of the video
    height: int | None = None  # pixels of the video, also the width
    width: int | None = None
    carry: int | None = None  # frames shared with the next window, if the file is a window of a film
    space: LatentSpace = LatentSpace()  # of the VAE that the latents belong to
    workflow: Mapping[str, str] = field(default_factory=dict, hash=False)  # ComfyUI's entries `prompt` and `workflow`
    source_frames: int | None = None  # of the video that was encoded, before it was padded or cut to `num_frames`


@dataclass(frozen=True)
class LatentsFile:
    """Latent file whose header has been read, and whose values are read by `read`."""

    info: LatentsInfo
    shape: LatentShape  # (B, C, F', H', W')
    normalized: bool | None  # as the metadata states; if it states nothing, None, which `read` takes for True
    stored_dtype: str  # such as "bfloat16"
    layout: str  # the axes in the file, such as "(B, tokens, C)"
    _stored: MappedLatents = field(repr=False)  # before they are normalized
    _tensors: Mapping[str, StoredArray] = field(repr=False, hash=False)  # all tensors of the file
    entries: Mapping[str, str] = field(repr=False, hash=False)  # all metadata of the file, as text

    def find_audio(self, tensor: str | None = None) -> "AudioLatentsFile | None":
        """Return the audio latents of the same file, as `find_audio_latents` does."""
        return find_audio_latents(self._tensors, self.entries, self.info.source, tensor=tensor)

    def count_source_frames(self, scale: ScaleFactors) -> int:
        """Return the number of frames without those that only pad the source to a whole last latent frame."""
        frames = scale.video_grid(self.shape.grid)[0]
        source_frames = self.info.source_frames or frames
        return source_frames if frames - scale.time < source_frames < frames else frames

    @property
    def has_keyframes(self) -> bool:
        """Flag: the same file has keyframes, which have not been checked."""
        return not self._tensors.keys().isdisjoint(STILL_NAMES)

    def find_keyframes(self) -> KeyframesFile | None:
        """Return the keyframes of the same file, or `None` if it has none.

        Raises a `LatentsError` for invalid keyframes, and for keyframes on another grid. Warns if the file is from a
        pipeline that may have padded the latents, as the names tell, and does not state `num_frames`.
        """
        keyframes = find_keyframes(self._tensors, self.entries, self.info.source, self.info.num_frames)
        if keyframes is not None:
            keyframes.check(self.shape)
            if STILL_NAMES[1] in self._tensors and self.info.num_frames is None:
                text = "states no num_frames, so padding at the end that its pipeline may have added is decoded too"
                warn(f"{self.info.source}: {text}; {option('slice it off', 'leave it out with --frames')}.")
        return keyframes

    @property
    def file(self) -> OpenFile:
        """Open file."""
        return self._stored.stored.file

    def read(self, *, statistics: GivenStatistics | None = None, unnormalized: bool | None = None) -> mx.array:
        """Return normalized latents `(B, C, F', H', W')` in the file's dtype; float32 if float64 or unnormalized.

        `statistics` are `(vae.mean, vae.std)`, each (C,), which normalize unnormalized latents. `unnormalized` says
        whether the file stores `latents * std + mean`; `None` follows the metadata. Raises a `LatentsError` for a file
        that cannot be read, values that are not finite, and arguments that contradict the metadata.
        """
        return self.map(statistics=statistics, unnormalized=unnormalized)[()]

    def map(self, *, statistics: GivenStatistics | None = None, unnormalized: bool | None = None) -> MappedLatents:
        """Return the latents of `read`, left in the file: each slice is read, checked and normalized when used."""
        channels = self.shape.channels
        mean_and_std = choose_statistics(self.info.source, self.normalized, channels, statistics, unnormalized)
        return replace(self._stored, statistics=mean_and_std, was_unnormalized=unnormalized is True)


def open_latents(
    path: str | os.PathLike,
    *,
    latent_channels: int | None = None,
    tensor: str | None = None,
    grid: Grid | None = None,
    scale: ScaleFactors | None = None,
    vae: str = DEFAULT_VAE_NAME,
) -> LatentsFile:
    """Read the header of a safetensors (also ComfyUI's .latent), .npy or .npz file, and none of its values.

    Args:
        path: "-" is standard input. Standard input and pipes are copied to a temporary file.
        latent_channels: channels of the VAE. If given, files may be channels-last, and other channels are an error.
        tensor: the name of the tensor, for a file with several candidates.
        grid: (F', H', W'), needed for packed latents whose file does not state it, and checked for others.
        scale: scale factors of the VAE. If given, a video size that the file states must be the size at this scale.
        vae: the VAE's name in errors.

    Leaves out latent frames after the last of the `num_frames` that the file states, with a warning. Raises a
    `LatentsError` for a file that cannot be read, is ambiguous, contradicts itself, or fits no decoder.
    """
    source = source_name(path)
    tensors, entries = open_tensor_file(path)
    metadata = parse_metadata(entries, source)
    name = _choose_tensor(list(tensors), tensor, source)
    stored = tensors[name]
    if looks_like_audio(stored.shape, latent_channels):
        command = "give them with --audio-latents beside the video's latents, or decode them alone with -o NAME.wav"
        way = option("read them with load_audio_latents, for AudioVAE", command)
        raise LatentsError(f"{source}: {excerpt(name)} {stored.shape} are audio latents; {way}.")
    layout = find_layout(stored.shape, metadata, source, latent_channels=latent_channels, grid=grid, vae=vae)
    check_shape(layout.shape, latent_channels, source, vae)
    check_readable(stored, excerpt(name))
    sizes, frames = find_video_sizes(metadata, layout.shape.grid, scale, source)
    if padding := layout.shape.frames - frames:
        left_out = format_count(padding, "latent frame")
        warn(f"{source}: states {sizes[0]} frames, which leaves out {left_out} of padding at the end.")
    shape = layout.shape._replace(frames=frames)
    workflow = {key: entries[key] for key in _WORKFLOW_KEYS if key in entries and "\0" not in entries[key]}
    carry, space, source_frames = metadata.carry, metadata.space, metadata.source_frames
    info = LatentsInfo(source, name, stored.shape, metadata.fps, *sizes, carry, space, workflow, source_frames)
    latents = MappedLatents(stored, layout, shape, source)
    return LatentsFile(info, shape, metadata.normalized, stored.dtype_name, str(layout), latents, tensors, entries)


def load_latents(
    path: str | os.PathLike,
    *,
    latent_channels: int | None = None,
    tensor: str | None = None,
    grid: Grid | None = None,
    scale: ScaleFactors | None = None,
    unnormalized: bool | None = None,
    statistics: GivenStatistics | None = None,
) -> tuple[mx.array, LatentsInfo]:
    """Return normalized latents `(B, C, F', H', W')` and the metadata of their file.

    Takes the arguments of `open_latents` and `LatentsFile.read`, and raises their errors. Warns if the file has
    keyframes.
    """
    file = open_latents(path, latent_channels=latent_channels, tensor=tensor, grid=grid, scale=scale)
    if file.has_keyframes:
        warn(f"{file.info.source}: has keyframes too; load_keyframes reads them, for decode(keyframes=).")
    return file.read(statistics=statistics, unnormalized=unnormalized), file.info


def _choose_tensor(names: list[str], tensor: str | None, source: str) -> str:
    latent_names = [name for name in names if name not in KEYFRAME_NAMES]
    # Without video latents, the first audio latents, which `open_latents` refuses.
    video_names = [name for name in latent_names if not is_audio_name(name)] or latent_names[:1]
    candidates = [name for name in names if name in KNOWN_NAMES] or video_names
    if {_STAGE_2, _FINAL} <= set(candidates):
        candidates.remove(_STAGE_2)
    if tensor in names:
        return tensor
    listing = excerpt(", ".join(sorted(candidates if tensor is None else names)[:8]), 120)
    if tensor is not None:
        raise LatentsError(f"{source}: has no tensor {quote(tensor)}; it has {listing or 'nothing'}.")
    if not candidates and names:
        way = option("keyframes=", "--keyframes")
        raise LatentsError(f"{source}: has keyframes and no latents; give it as {way} beside the latents of a video.")
    if not candidates:
        raise LatentsError(f"{source}: has no tensors.")
    if any(name.endswith((".weight", ".bias")) for name in candidates):
        way = option("load it with VideoVAE.from_pretrained", "name it with -m")
        raise LatentsError(f"{source}: has no latents but weights of a network ({listing}); {way}.")
    if len(candidates) > 1:
        way = f"choose one with {option('tensor=', '--tensor')}"
        raise LatentsError(f"{source}: has {len(candidates)} tensors that could be the latents ({listing}); {way}.")
    return candidates[0]


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
        mean_and_std = choose_statistics(self.source, self.normalized, _CHANNELS * _BINS, statistics, unnormalized)
        if mean_and_std is None:
            return values
        mean, std = (array if values.ndim == 3 else array.reshape(_CHANNELS, 1, _BINS) for array in mean_and_std)
        values = (values.astype(mx.float32) - mean) / std
        mx.eval(values)
        return values

    def read_stored(self) -> mx.array:
        """Return the values as they are stored, normalized or not. Raises a `LatentsError` if they are not finite."""
        source = f"{self.source}: audio latents {quote(self.tensor)}"
        values = self._stored.to_floats(self._stored.read())
        values = (values if self.layout.startswith("(B") else values[None])[..., : self.length, :]
        if self._stored.dtype_name == "uint16":
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
    tensors, entries = open_tensor_file(path)
    return find_audio_latents(tensors, entries, source_name(path), is_alone=is_alone, tensor=tensor)


def find_audio_latents(
    tensors: Mapping[str, StoredArray],
    entries: Mapping[str, str],
    source: str,
    *,
    is_alone: bool = False,
    tensor: str | None = None,
) -> AudioLatentsFile | None:
    """Return the audio latents among the tensors of a file, or `None` if there are none.

    They are stored as (B, 8, T, 16), the same without a batch, or packed (B, T, 128). `entries` are the metadata of the
    file. `is_alone` is True if the file may have no other latents. `tensor` is their name, if it is unusual. Raises a
    `LatentsError` for another shape, a name that does not exist, and several tensors with usual names.
    """
    name = _choose_audio(tensors, tensor, source, is_alone=is_alone)
    if name is None:
        return None
    stored = tensors[name]
    shape, layout = stored.shape, "(B, 8, T, 16)"
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
            f"{source}: {problem} the shape {excerpt(stored.shape)}; expected (B, {_CHANNELS}, T, {_BINS}), or packed "
            f"(B, T, {_CHANNELS * _BINS})."
        )
    if 0 in stored.shape:
        raise LatentsError(f"{source}: audio latents {quote(name)} are empty.")
    check_readable(stored, f"audio latents {quote(name)}")
    if AUDIO_LENGTHS in tensors:
        length = _used_length(tensors[AUDIO_LENGTHS], length, source)
    normalized = parse_metadata(dict(entries), source).normalized
    return AudioLatentsFile(source, name, stored.shape, stored.dtype_name, layout, batch, length, normalized, stored)


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
    values = set(stored.read().flat) if math.prod(stored.shape) <= _MAX_LENGTHS else set()
    used = int(values.pop()) if len(values) == 1 and stored.dtype_name.startswith(("int", "uint")) else 0
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
    is_alone = len(names) == 1 and looks_like_audio(tensors[names[0]].shape, latent_channels)
    return bool(tensors) and (not names or is_alone)


def looks_like_audio(shape: Sequence[int], latent_channels: int | None) -> bool:
    """Return whether latents of this shape are audio rather than video."""
    if latent_channels == _BINS or (len(shape) == 4 and shape[0] == (latent_channels or _VIDEO_CHANNELS)):
        return False  # (F', H', W', C), and (C, F', H', W') of 8 frames
    return _is_audio_shape(shape)


def _is_audio_shape(shape: Sequence[int]) -> bool:
    return len(shape) in (3, 4) and (shape[-3], shape[-1]) == (_CHANNELS, _BINS)
