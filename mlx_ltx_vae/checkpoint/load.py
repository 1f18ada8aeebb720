"""From what a user names to a configuration, by headers alone, and on to two dictionaries of weights."""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..errors import CheckpointError
from ..models.video_vae.config import VAEConfig, parse_vae_config
from .configuration import find_config
from .diffusers import DiffusersVAE, has_diffusers_names, is_diffusers_config, read_diffusers_config
from .files import DTYPE_NAMES, Archive, TensorInfo, read_tensors, refuse_other_dtypes
from .infer_config import HalfShapes, recognise
from .locate import locate
from .original import HALVES, StatisticsNames, half_names, statistics_names
from .weight_layout import KernelLayout, kernel_layout, stated_layout, to_mlx

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
class StoredHalf:
    """One half as its file has it, not read yet.

    Attributes:
        archive: where it is.
        names: name within the half, as the original has it -> full name in the archive.
        layout: of its kernels.
    """

    archive: Archive
    names: dict[str, str]
    layout: KernelLayout

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """Where each tensor lies, by its name within the half."""
        return {name: self.archive.tensors[full] for name, full in self.names.items()}

    @property
    def shapes(self) -> HalfShapes:
        """The shapes of its tensors."""
        return HalfShapes({name: info.shape for name, info in self.tensors.items()}, self.layout)

    @property
    def dtype(self) -> str:
        """That of its first convolution, in which the network computes: "bfloat16", for one."""
        return DTYPE_NAMES[self.tensors["conv_in.conv.weight"].dtype]

    @property
    def parameters_by_dtype(self) -> Counter[str]:
        """How many of its numbers are stored in which dtype."""
        count: Counter[str] = Counter()
        for info in self.tensors.values():
            count[DTYPE_NAMES[info.dtype]] += math.prod(info.shape)
        return count

    @property
    def num_bytes(self) -> int:
        """What its tensors take in the file."""
        return sum(info.stop - info.start for info in self.tensors.values())

    def read(self) -> dict[str, mx.array]:
        """Its tensors as a `Checkpoint` has them, lazy."""
        arrays = read_tensors(self.archive, self.names.values())
        return {name: to_mlx(name, arrays[full], self.layout) for name, full in self.names.items()}


@dataclass(frozen=True)
class CheckpointHeaders:
    """A video VAE by what the headers of its files say.

    Attributes:
        name: what error messages call it.
        class_name: what its configuration calls its class; None where it has no configuration or says none.
        is_recognised: whether it has no configuration, so that its tensors had to tell.
        config: the configuration.
        raw_config: the configuration in the original vocabulary.
        archives: the files, with everything that they hold.
        halves: those that were asked for and are there, under "encoder" and "decoder".
    """

    name: str
    class_name: str | None
    is_recognised: bool
    config: VAEConfig
    raw_config: dict[str, Any]
    archives: Sequence[Archive]
    halves: Mapping[str, StoredHalf]

    def read_statistics(self) -> tuple[mx.array, mx.array]:
        """The mean and standard deviation of the latents, each (C,) float32."""
        archive, names = _find_statistics(self.archives, self.config.latent_channels, self.name)
        arrays = read_tensors(archive, names)
        mean, std = (arrays[full].reshape(-1).astype(mx.float32) for full in names)
        return mean, std


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
    headers = read_headers(source, wanted)
    mean, std = headers.read_statistics()
    weights = {half: stored.read() for half, stored in headers.halves.items()}
    encoder_weights, decoder_weights = (weights.get(half) for half in HALVES)
    return Checkpoint(headers.name, headers.config, headers.raw_config, encoder_weights, decoder_weights, mean, std)


def read_headers(source: str | os.PathLike, wanted: Sequence[str] = HALVES) -> CheckpointHeaders:
    """What a checkpoint is, at no more cost than reading the headers of its files.

    Args:
        source: as `load_checkpoint` takes it.
        wanted: "encoder", "decoder" or both, of which at least one must be there.

    Raises:
        CheckpointError: as `load_checkpoint`.
    """
    location = locate(source)
    name = location.name
    halves = _find_halves(location.archives, name)
    if not any(half in halves for half in wanted):
        raise CheckpointError(f"{name}: it holds no {' and no '.join(wanted)}; use a file that has both halves.")
    raw_config = find_config(location.archives, location.folders)
    class_name = None if raw_config is None else raw_config.get("_class_name")
    is_recognised = raw_config is None
    translation = None
    if raw_config is not None and is_diffusers_config(raw_config):
        translation = read_diffusers_config(raw_config, name)
        raw_config = translation.raw_config
    halves = {half: _with_original_names(half, found, translation, name) for half, found in halves.items()}
    if raw_config is None:
        raw_config = recognise({half: found.shapes for half, found in halves.items()}, name)
    config = parse_vae_config(raw_config, name)
    _find_statistics(location.archives, config.latent_channels, name)
    halves = {half: halves[half] for half in wanted if half in halves}
    for stored in halves.values():
        refuse_other_dtypes(stored.archive, stored.names.values())
    return CheckpointHeaders(name, class_name, is_recognised, config, raw_config, location.archives, halves)


def _find_halves(archives: Sequence[Archive], name: str) -> Mapping[str, StoredHalf]:
    halves: dict[str, StoredHalf] = {}
    for archive in archives:
        for half in HALVES:
            names = half_names(archive, half)
            if names:
                shapes = [archive.tensors[full].shape for full in names.values()]
                layout = stated_layout(archive.metadata, name) or kernel_layout(shapes, name)
                halves[half] = StoredHalf(archive, names, layout)
    if not halves:
        there = [tensor for archive in archives for tensor in archive.tensors]
        shown = ", ".join(there[:_NAMED_TENSORS]) + (" ..." if len(there) > _NAMED_TENSORS else "")
        raise CheckpointError(
            f"{name}: expected a video VAE (vae.encoder.*, vae.decoder.* or the like) and found "
            f"{shown or 'no tensor'}; give the file of the VAE."
        )
    return halves


def _with_original_names(half: str, found: StoredHalf, translation: DiffusersVAE | None, name: str) -> StoredHalf:
    if not has_diffusers_names(found.names):
        return found
    if translation is None:
        raise CheckpointError(
            f"{name}: its tensors have the names of the diffusers library, so that library's config.json is needed "
            "beside it."
        )
    renamed = translation.original_names(half, found.names)
    return StoredHalf(found.archive, {renamed[old]: full for old, full in found.names.items()}, found.layout)


def _find_statistics(archives: Sequence[Archive], latent_channels: int, name: str) -> tuple[Archive, StatisticsNames]:
    """Where the mean and standard deviation of the latents are."""
    for archive in archives:
        names = statistics_names(archive)
        if names is not None:
            sizes = [math.prod(archive.tensors[full].shape) for full in names]
            if sizes == [latent_channels, latent_channels]:
                return archive, names
            raise CheckpointError(
                f"{name}: {names.mean} and {names.std} have {sizes[0]} and {sizes[1]} values, and its latents "
                f"{latent_channels} channels; use statistics and weights of one release."
            )
    raise CheckpointError(
        f"{name}: the statistics of the latents (per_channel_statistics.mean-of-means and std-of-means) are missing; "
        "use a file that has them."
    )
