"""Reads the latents of a video, which may have audio latents and keyframes beside them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import mlx.core as mx

from ..errors import LatentsError, excerpt, option, quote, warn
from ..shapes import Grid, LatentShape, ScaleFactors
from ..units import format_count
from .audio import AudioLatentsFile, find_audio_latents, looks_like_audio
from .formats import MappedLatents, OpenFile, TensorFile, check_readable, check_shape, open_tensor_file
from .keyframes import KEYFRAME_NAMES, STILL_NAMES, KeyframesFile, find_keyframes
from .metadata import (
    DEFAULT_VAE_NAME,
    LatentSpace,
    find_layout,
    find_video_sizes,
    is_audio_name,
    is_sized_video_name,
    parse_metadata,
)
from .statistics import GivenStatistics, choose_statistics

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
    content: TensorFile = field(repr=False, hash=False)

    def find_audio(self, tensor: str | None = None) -> AudioLatentsFile | None:
        """Return the audio latents of the same file, as `find_audio_latents` does."""
        return find_audio_latents(self.content, tensor=tensor)

    def count_source_frames(self, scale: ScaleFactors) -> int:
        """Return the number of frames without those that only pad the source to a whole last latent frame."""
        frames = scale.video_grid(self.shape.grid)[0]
        source_frames = self.info.source_frames or frames
        return source_frames if frames - scale.time < source_frames < frames else frames

    @property
    def has_keyframes(self) -> bool:
        """Flag: the same file has keyframes, which have not been checked."""
        return not self.content.tensors.keys().isdisjoint(STILL_NAMES)

    def find_keyframes(self) -> KeyframesFile | None:
        """Return the keyframes of the same file, or `None` if it has none.

        Raises a `LatentsError` for invalid keyframes, and for keyframes on another grid. Warns if the file is from a
        pipeline that may have padded the latents, as the names tell, and does not state `num_frames`.
        """
        keyframes = find_keyframes(self.content, self.info.num_frames)
        if keyframes is not None:
            keyframes.check(self.shape)
            if STILL_NAMES[1] in self.content.tensors and self.info.num_frames is None:
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
        latent_statistics = choose_statistics(self.info.source, self.normalized, channels, statistics, unnormalized)
        return replace(self._stored, statistics=latent_statistics, was_unnormalized=unnormalized is True)


def read_latent_space(path: str | os.PathLike) -> LatentSpace:
    """Return the VAE that a latent file states. Raises a `LatentsError` for a file that cannot be read."""
    _, entries, source = open_tensor_file(path)
    return parse_metadata(entries, source).space


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
    content = open_tensor_file(path)
    tensors, entries, source = content
    metadata = parse_metadata(entries, source)
    name = _choose_tensor(list(tensors), tensor, source)
    stored, stored_shape = tensors[name], tensors[name].header.shape
    if looks_like_audio(stored_shape, latent_channels):
        command = "give them with --audio-latents beside the video's latents, or decode them alone with -o NAME.wav"
        way = option("read them with load_audio_latents, for AudioVAE", command)
        raise LatentsError(f"{source}: {excerpt(name)} {stored_shape} are audio latents; {way}.")
    layout = find_layout(stored_shape, metadata, source, latent_channels=latent_channels, grid=grid, vae=vae)
    check_shape(layout.shape, latent_channels, source, vae)
    check_readable(stored, excerpt(name))
    sizes, frames = find_video_sizes(metadata, layout.shape.grid, scale, source)
    if padding := layout.shape.frames - frames:
        left_out = format_count(padding, "latent frame")
        warn(f"{source}: states {sizes[0]} frames, which leaves out {left_out} of padding at the end.")
    shape = layout.shape._replace(frames=frames)
    workflow = {key: entries[key] for key in _WORKFLOW_KEYS if key in entries and "\0" not in entries[key]}
    carry, space, source_frames = metadata.carry, metadata.space, metadata.source_frames
    info = LatentsInfo(source, name, stored_shape, metadata.fps, *sizes, carry, space, workflow, source_frames)
    latents = MappedLatents(stored, layout, shape, source)
    return LatentsFile(info, shape, metadata.normalized, stored.header.dtype, str(layout), latents, content)


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
    candidates = [name for name in names if name in KNOWN_NAMES or is_sized_video_name(name)] or video_names
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
