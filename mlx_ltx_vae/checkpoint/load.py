"""`load_checkpoint`: from what a user names to a configuration and two dictionaries of weights."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..config import VAEConfig, parse_vae_config
from ..errors import CheckpointError
from .configuration import find_config
from .diffusers import DiffusersVAE, has_diffusers_names, is_diffusers_config, read_diffusers_config
from .files import Archive, read_tensors
from .kernels import KernelLayout, kernel_layout, to_mlx
from .locate import locate
from .original import HALVES, half_names, statistics_names
from .recognise import HalfShapes, recognise

_NAMED_TENSORS = 3


@dataclass(frozen=True)
class Checkpoint:
    """A video VAE as read: everything that the networks are built from, nothing evaluated yet.

    Evaluate the weights one by one: all at once, every kernel exists in the file's layout and in MLX's together.

    Attributes:
        name: what error messages call it.
        config: the configuration.
        raw_config: the configuration in the original vocabulary, as a converter would write it out.
        encoder: tensors by the original's names within the half ("conv_in.conv.weight"), in the checkpoint's dtype:
            kernels (O, D, H, W, I), kernels of size one (O, I), vectors (C,), `timestep_scale_multiplier` (). None if
            not asked for or not there.
        decoder: the same for the decoder.
        mean: (C,) float32, the mean of the latents per channel.
        std: (C,) float32, their standard deviation.
    """

    name: str
    config: VAEConfig
    raw_config: dict[str, Any]
    encoder: dict[str, mx.array] | None
    decoder: dict[str, mx.array] | None
    mean: mx.array
    std: mx.array


@dataclass(frozen=True)
class _Half:
    """One half, not read yet. `names`: name within the half -> full name in the archive."""

    archive: Archive
    names: dict[str, str]
    layout: KernelLayout

    @property
    def shapes(self) -> HalfShapes:
        return HalfShapes({name: self.archive.tensors[full].shape for name, full in self.names.items()}, self.layout)

    def read(self) -> dict[str, mx.array]:
        arrays = read_tensors(self.archive, self.names.values())
        return {name: to_mlx(name, arrays[full], self.layout) for name, full in self.names.items()}


def load_checkpoint(source: str | os.PathLike, *, encoder: bool = True, decoder: bool = True) -> Checkpoint:
    """Read a video VAE from a file, a folder or a hub repository.

    Known are the original files (with everything or the VAE alone), diffusers folders, and packs of MLX ports.

    Args:
        source: a path, or "owner/name" or "owner/name:file" on the hub.
        encoder: whether to hand over the encoder's weights.
        decoder: whether to hand over the decoder's weights.

    Returns:
        The configuration and lazy weights. A half that is not there is None if the other was asked for and is.

    Raises:
        CheckpointError: nothing there, not readable, incomplete, or not a VAE that is known.
    """
    wanted = [half for half, asked in zip(HALVES, (encoder, decoder), strict=True) if asked]
    if not wanted:
        raise ValueError("load_checkpoint: ask for the encoder, the decoder or both.")
    location = locate(source)
    name = location.name
    halves = _find_halves(location.archives, name)
    if not any(half in halves for half in wanted):
        raise CheckpointError(f"{name}: it holds no {' and no '.join(wanted)}; use a file that has both halves.")
    raw_config = find_config(location.archives, location.folders)
    translation = None
    if raw_config is not None and is_diffusers_config(raw_config):
        translation = read_diffusers_config(raw_config, name)
        raw_config = translation.raw_config
    halves = {half: _with_original_names(half, found, translation, name) for half, found in halves.items()}
    if raw_config is None:
        raw_config = recognise({half: found.shapes for half, found in halves.items()}, name)
    config = parse_vae_config(raw_config, name)
    mean, std = _read_statistics(location.archives, config.latent_channels, name)
    weights = {half: halves[half].read() for half in wanted if half in halves}
    return Checkpoint(name, config, raw_config, weights.get("encoder"), weights.get("decoder"), mean, std)


def _find_halves(archives: Sequence[Archive], name: str) -> Mapping[str, _Half]:
    halves: dict[str, _Half] = {}
    for archive in archives:
        for half in HALVES:
            names = half_names(archive, half)
            if names:
                layout = kernel_layout((archive.tensors[full].shape for full in names.values()), name)
                halves[half] = _Half(archive, names, layout)
    if not halves:
        there = [tensor for archive in archives for tensor in archive.tensors]
        shown = ", ".join(there[:_NAMED_TENSORS]) + (" ..." if len(there) > _NAMED_TENSORS else "")
        raise CheckpointError(
            f"{name}: expected a video VAE (vae.encoder.*, vae.decoder.* or the like) and found "
            f"{shown or 'no tensor'}; give the file of the VAE."
        )
    return halves


def _with_original_names(half: str, found: _Half, translation: DiffusersVAE | None, name: str) -> _Half:
    if not has_diffusers_names(found.names):
        return found
    if translation is None:
        raise CheckpointError(
            f"{name}: its tensors have the names of the diffusers library, so that library's config.json is needed "
            "beside it."
        )
    renamed = translation.original_names(half, found.names)
    return _Half(found.archive, {renamed[old]: full for old, full in found.names.items()}, found.layout)


def _read_statistics(archives: Sequence[Archive], latent_channels: int, name: str) -> tuple[mx.array, mx.array]:
    """The mean and standard deviation of the latents, each (C,) float32."""
    for archive in archives:
        names = statistics_names(archive)
        if names is not None:
            arrays = read_tensors(archive, names)
            mean, std = (arrays[full].reshape(-1).astype(mx.float32) for full in names)
            if mean.size == std.size == latent_channels:
                return mean, std
            raise CheckpointError(
                f"{name}: {names.mean} and {names.std} have {mean.size} and {std.size} values, and its latents "
                f"{latent_channels} channels; use statistics and weights of one release."
            )
    raise CheckpointError(
        f"{name}: the statistics of the latents (per_channel_statistics.mean-of-means and std-of-means) are missing; "
        "use a file that has them."
    )
