"""What a file is, as text or JSON: a checkpoint, latents, or a video. Its first bytes and tensor names decide."""

import os
from contextlib import suppress
from pathlib import Path

from ..audio_vae import find_sound_decoder
from ..checkpoint import open_checkpoint
from ..checkpoint.files import Archive
from ..checkpoint.locate import locate, recognize
from ..checkpoint.weight_files import is_index
from ..errors import CheckpointError, LatentsError, ReaderError, excerpt
from ..files import START_BYTES, Format, expand_home, find_format
from ..latents import KNOWN_NAMES, find_audio_latents, is_sound_alone
from ..latents.files import find_reader, open_tensor_file
from ..latents.keyframes import KEYFRAME_NAMES, find_keyframes
from ..latents.metadata import AUDIO_NAMES
from ..shapes import Grid
from ..video.codecs import ANIMATIONS, CONTAINER_ENDINGS
from .checkpoint import find_audio, inspect_checkpoint
from .latents import inspect_audio_latents, inspect_keyframes, inspect_latents
from .report import Report
from .video import inspect_video

_NAMED_TENSORS = 3
_PICTURE_ENDINGS = (*CONTAINER_ENDINGS, *ANIMATIONS, ".png", ".tif", ".tiff", ".jpg", ".jpeg")


def inspect(
    source: str,
    *,
    vae: str | None = None,
    audio_vae: str | None = None,
    tensor: str | None = None,
    grid: Grid | None = None,
) -> Report:
    """Describe what `open_checkpoint`, `open_latents` or `VideoReader` (one file) accepts, with their errors.

    The options are those of latents, and an error for a checkpoint. `vae` is the checkpoint of latents, which states
    the scale and normalizes unnormalized latents, or of a video. `audio_vae` is that of audio latents; None for that
    of `vae`, if it has the networks.
    """
    path = expand_home(source)
    start = _start_of(path)
    reader = None if start is None else find_reader(start)
    if start is not None and (find_format(start), reader) == (None, None) and (report := _inspect_video(path, vae)):
        if (audio_vae, tensor, grid) != (None, None, None):
            raise LatentsError(
                f"{source}: this is a video; an audio VAE, a tensor and a grid are options of latents only."
            )
        return report
    location, audio = None, None
    if reader is None or find_format(start or b"") is Format.SAFETENSORS:
        try:
            location = locate(source)
        except CheckpointError:
            audio = find_audio(source) if os.path.isdir(path) else None
            if audio is None:
                raise
        else:
            audio = find_audio(location)
    if audio is not None and (location is None or not _has_pictures(location.archives)):
        if (vae, audio_vae, tensor, grid) != (None, None, None, None):
            raise CheckpointError(f"{source}: this is a checkpoint of sound, which takes no such options.")
        return audio
    is_single_file = os.path.isfile(path) and not is_index(path.name)
    if location is None or (is_single_file and _has_latents(location.archives[0], tensor)):
        return _inspect_latents(path, vae, audio_vae, tensor, grid)
    if (vae, audio_vae, tensor, grid) != (None, None, None, None):
        raise CheckpointError(f"{source}: this is a checkpoint; VAEs, a tensor and a grid are options of latents only.")
    return inspect_checkpoint(open_checkpoint(location), audio)


def _inspect_latents(
    path: Path, vae: str | None, audio_vae: str | None, tensor: str | None, grid: Grid | None
) -> Report:
    checkpoint, of_sound = None if vae is None else open_checkpoint(vae), find_sound_decoder(audio_vae, vae)
    if (tensor, grid) == (None, None):
        tensors, stated = open_tensor_file(path)
        if is_sound_alone(tensors, None if checkpoint is None else checkpoint.config.latent_channels):
            file = find_audio_latents(tensors, stated, str(path), is_alone=True)
            assert file is not None
            return inspect_audio_latents(file, of_sound)
        if KEYFRAME_NAMES[0] in tensors and tensors.keys() <= set(KEYFRAME_NAMES):
            keyframes = find_keyframes(tensors, stated, str(path))
            assert keyframes is not None
            return inspect_keyframes(keyframes, is_alone=True)
    return inspect_latents(path, checkpoint, of_sound, tensor=tensor, grid=grid)


def _start_of(path: Path) -> bytes | None:
    """The first bytes of a file that can be read; `locate` reports any other."""
    with suppress(OSError):
        if os.path.isfile(path):
            with path.open("rb") as file:
                return file.read(START_BYTES)
    return None


def _inspect_video(path: Path, vae: str | None) -> Report | None:
    """None for a file that neither is a video nor is named as one."""
    try:
        return inspect_video(path, None if vae is None else open_checkpoint(vae))
    except ReaderError:
        if path.suffix.lower() in _PICTURE_ENDINGS:
            raise
        return None


def _has_pictures(archives: list[Archive]) -> bool:
    return any(found.networks for found in recognize(archives)[1])


def _has_latents(archive: Archive, tensor: str | None) -> bool:
    """Whether to read a safetensors file as latents. Raises `CheckpointError` if it has neither these nor a network."""
    if _has_pictures([archive]):
        return False
    others = archive.tensors.keys() - set(AUDIO_NAMES) - set(KEYFRAME_NAMES)
    is_known = len(others) <= 1 or not others.isdisjoint(KNOWN_NAMES)
    if not archive.tensors or (tensor is None and not is_known):
        names = list(archive.tensors)
        shown = excerpt(", ".join(names[:_NAMED_TENSORS])) + (", ..." if len(names) > _NAMED_TENSORS else "")
        found = f"{len(names)} tensors ({shown})" if names else "no tensor"
        raise CheckpointError(
            f"{archive.path}: expected a video VAE (vae.encoder.*, vae.decoder.* or the like) or latents "
            f"({', '.join(KNOWN_NAMES[:3])} or the like) and found {found}; if one of them is latents, name it with "
            "--tensor."
        )
    return True
