"""Open a checkpoint: its configuration and where its tensors are stored. Load its networks, strictly."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..backend.mlx_utils import count_nonfinite, kept_random_state, named_parameters, to_bool, to_float
from ..errors import CheckpointError, excerpt
from ..models.convolution.module import prepare
from ..models.video_vae.config import VAEConfig
from .configuration import choose_config, complete_config, find_config, resolve_config
from .diffusers import has_diffusers_names, is_diffusers_config, read_diffusers_config
from .files import Archive, TensorInfo, check_dtypes, check_unchanged, open_arrays, read_tensors, sample_tensors
from .locate import Location, locate
from .names import NETWORKS, find_diffusion_decoder, find_network, find_statistics
from .stored_network import StoredNetwork, infer_layout, stated_layout

Network = TypeVar("Network", bound=nn.Module)

#: Arrays by name, as an app holds them.
Arrays = Mapping[str, mx.array | np.ndarray]
#: A dict, as in a metadata entry `config` or a config.json; or what it is parsed to; or None to infer it.
GivenConfig = Mapping[str, Any] | VAEConfig | None

_NAMED_TENSORS = 3


@dataclass(frozen=True)
class Checkpoint:
    """A video VAE known by the headers of its files, or by arrays in memory. No tensor has been read.

    Attributes:
        name: what error messages call it.
        class_name: the class that its configuration names; None if it has no configuration or names none.
        is_inferred: whether it has no configuration, so that `config` was inferred from its tensors.
        raw_config: the configuration in the original's vocabulary, as its metadata would state it; empty if a
            `VAEConfig` was given in its place.
        networks: the networks that were asked for and exist, under "encoder" and "decoder".
        statistics: where the mean and the standard deviation of the latents are stored, in this order.
    """

    name: str
    class_name: str | None
    is_inferred: bool
    config: VAEConfig
    raw_config: dict[str, Any]
    archives: Sequence[Archive]
    networks: Mapping[str, StoredNetwork]
    statistics: tuple[TensorInfo, TensorInfo]

    @property
    def description(self) -> dict[str, Any]:
        """The tensors' headers and the sizes of their files, JSON-serializable: what ranks compare."""
        infos = [info for stored in self.networks.values() for info in stored.tensors.values()]
        files = sorted({info.path for info in infos if info.array is None})
        tensors = sorted([info.name, info.dtype, *info.shape] for info in infos)
        return {"config": self.raw_config, "sizes": [path.stat().st_size for path in files], "tensors": tensors}

    def sample(self) -> str:
        """A hash of a sample of each tensor, the statistics included. The tensors must be in files."""
        tensors = [stored.tensors[name] for stored in self.networks.values() for name in sorted(stored.tensors)]
        return sample_tensors([*tensors, *self.statistics])

    def check_unchanged(self) -> None:
        """Raise a `CheckpointError` if a file was replaced or written to since its header was read."""
        check_unchanged(
            [*self.statistics, *(info for each in self.networks.values() for info in each.tensors.values())]
        )

    def read_statistics(self) -> tuple[mx.array, mx.array]:
        """The mean and the standard deviation of the latents, each (C,) float32.

        Raises:
            CheckpointError: they cannot be read, a value is not finite, or a standard deviation is not above 0.
        """
        arrays = dict(read_tensors(dict(zip(("mean", "std"), self.statistics, strict=True))))
        mean, std = (arrays[name].reshape(-1).astype(mx.float32) for name in ("mean", "std"))
        _evaluate(self, "the statistics", mean, std)
        for info, array in zip(self.statistics, (mean, std), strict=True):
            if count_nonfinite(array) or (array is std and not to_bool((array > 0).all())):
                raise CheckpointError(
                    f"{self.name}: {info.name} has values that are NaN, infinite or, for a standard deviation, not "
                    "above 0; download the file again."
                )
        return mean, std


def open_checkpoint(source: str | os.PathLike | Location, *, encoder: bool = True, decoder: bool = True) -> Checkpoint:
    """Read the headers of a video VAE in a file, a folder or a hub repository.

    Supported are the original files (the VAE alone or the whole model), diffusers folders, and packs of MLX ports.

    Args:
        source: a path, or "owner/name" or "owner/name:file" on the hub; or what `locate` returned for one.

    Raises:
        CheckpointError: the source does not exist, is damaged or incomplete, has none of the networks asked for, or is
            not a supported VAE.
    """
    wanted = [network for network, asked in zip(NETWORKS, (encoder, decoder), strict=True) if asked]
    if not wanted:
        raise ValueError("open_checkpoint: ask for the encoder, the decoder or both.")
    location = source if isinstance(source, Location) else locate(source)
    return _open(location.name, location.archives, find_config(location.archives, location.folders), wanted)


def open_weights(weights: Arrays, config: GivenConfig = None) -> Checkpoint:
    """Open arrays that are in memory, with names and layouts as files have them. None of them is evaluated.

    Raises:
        CheckpointError: as `open_checkpoint`.
    """
    if config is None or isinstance(config, VAEConfig):
        stated: dict[str, Any] | VAEConfig | None = config
    else:
        try:
            stated = choose_config([json.loads(json.dumps(config))])
        except (TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"weights: their configuration cannot be JSON ({excerpt(error)}); pass a dict."
            ) from error
        if stated is None:
            raise CheckpointError(
                "weights: their configuration describes no video VAE; pass a dict with encoder_blocks and "
                "decoder_blocks (or a config.json of diffusers), or None to infer it."
            )
    return _open("weights", [open_arrays("weights", weights)], stated, NETWORKS)


def _open(
    name: str, archives: Sequence[Archive], stated: dict[str, Any] | VAEConfig | None, wanted: Sequence[str]
) -> Checkpoint:
    networks = _find_networks(archives, wanted, name)
    raw_config: dict[str, Any] = {}
    class_name = None
    if isinstance(stated, VAEConfig):
        networks, _ = _with_original_names(networks, None, name)
        config = stated
    else:
        class_name = None if stated is None else stated.get("_class_name")
        networks, translated = _with_original_names(networks, stated, name)
        raw_config = complete_config(translated, networks, name)
        if _find_diffusion_decoder(archives) and "decoder" not in networks:
            raw_config.pop("decoder_blocks", None)  # a match of the encoder's tensors says nothing about that decoder
        config = resolve_config(raw_config, networks, wanted, name)
    networks = {network: networks[network] for network in wanted if network in networks}
    statistics = _find_statistics(archives, config.latent_channels, name)
    for stored in networks.values():
        check_dtypes(stored.tensors.values())
    check_dtypes(statistics)
    return Checkpoint(name, class_name, stated is None, config, raw_config, archives, networks, statistics)


def load_network(
    checkpoint: Checkpoint, name: str, make: Callable[[], Network], dtype: mx.Dtype | None
) -> Network | None:
    """Make a network and load its weights, cast to `dtype` unless it is None. None if the checkpoint does not have it.

    Weights of convolutions are laid out for the default device; without a `dtype`, they may get a more accurate one of
    the same size (see `models/convolution/precision.py`).

    Raises:
        CheckpointError: a tensor is missing, unexpected, of another shape, unreadable, not finite, or zero; or a file
            has changed since its header was read.
    """
    stored = checkpoint.networks.get(name)
    if stored is None:
        return None
    with kept_random_state():
        network = make()
    expected = {key: array.shape for key, array in named_parameters(network).items()}
    _check_names(checkpoint, name, expected.keys(), stored.tensors.keys())
    loaded = []
    for key, weight in stored.read():
        if weight.shape != expected[key]:
            raise CheckpointError(
                f"{checkpoint.name}: tensor {name}.{key} has the shape {weight.shape}, but the configuration expects "
                f"{expected[key]}; use the configuration that belongs to the file."
            )
        # Evaluated one by one, so that no more than one tensor exists in two layouts or two dtypes.
        weight = weight if dtype is None else weight.astype(dtype)
        _evaluate(checkpoint, f"tensor {name}.{key}", weight)
        if problem := _problem(key, weight):
            is_half = dtype is not None and dtype == mx.float16
            remedy = "use bfloat16 or float32" if is_half else "download the file again"
            raise CheckpointError(f"{checkpoint.name}: tensor {name}.{key} {problem}; {remedy}.")
        loaded.append((key, weight))
    checkpoint.check_unchanged()
    network.load_weights(loaded)
    del loaded, weight
    prepare(network, keeps_dtype=dtype is not None)
    return network


def _evaluate(checkpoint: Checkpoint, what: str, *arrays: mx.array) -> None:
    try:
        mx.eval(arrays)
    except RuntimeError as error:
        checkpoint.check_unchanged()
        raise CheckpointError(f"{checkpoint.name}: {what} cannot be read ({excerpt(error, 120)}).") from error


def _check_names(checkpoint: Checkpoint, network: str, expected: Set[str], stored: Set[str]) -> None:
    """Raise a `CheckpointError` unless a network's tensors are those that are stored."""
    missing, unexpected = sorted(expected - stored), sorted(stored - expected)
    if names := missing or unexpected:
        fault = "lacks" if missing else "has the unexpected"
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise CheckpointError(
            f"{checkpoint.name}: its {network} {fault} tensor {excerpt(names[0])}{more}, so "
            "the file does not match its configuration; download both again from one release."
        )


def _problem(key: str, weight: mx.array) -> str | None:
    """What no trained weight is; None if there is nothing wrong with it."""
    total = to_float(weight.sum())
    if total and math.isfinite(total):  # every weight is finite and one is not 0: one pass, so that loading stays fast
        return None
    if bad := count_nonfinite(weight):
        return f"has {bad} of {weight.size} values that are NaN or infinite"
    if key.endswith("conv.weight") and not to_bool(weight.any()):
        return "is zero everywhere"
    return None


def _find_networks(archives: Sequence[Archive], wanted: Sequence[str], name: str) -> dict[str, StoredNetwork]:
    networks: dict[str, StoredNetwork] = {}
    for archive in archives:
        for network in NETWORKS:
            tensors = find_network(archive, network)
            if tensors:
                shapes = [info.shape for info in tensors.values()]
                layout = stated_layout(archive.metadata, name) or infer_layout(shapes, name)
                networks[network] = StoredNetwork(tensors, layout)
    diffusion = _find_diffusion_decoder(archives)
    if diffusion and "decoder" in wanted and "decoder" not in networks:
        raise CheckpointError(
            f"{name}: this is the diffusion decoder of LTX-2.5 ({diffusion}, ...), which is not supported yet; use the "
            "file of the convolutional decoder (its name ends in video-vae-conv), or load the encoder alone with "
            "decoder=False (or from_weights without the decoder's arrays)."
        )
    if not networks:
        found = [tensor for archive in archives for tensor in archive.tensors]
        shown = excerpt(", ".join(found[:_NAMED_TENSORS])) + (" ..." if len(found) > _NAMED_TENSORS else "")
        raise CheckpointError(
            f"{name}: expected a video VAE (vae.encoder.*, vae.decoder.* or the like) and found "
            f"{shown or 'no tensor'}; give the file of the VAE."
        )
    if not any(network in networks for network in wanted):
        raise CheckpointError(f"{name}: it has no {' and no '.join(wanted)}; use a file that has both networks.")
    return networks


def _find_diffusion_decoder(archives: Sequence[Archive]) -> str | None:
    return next((name for archive in archives if (name := find_diffusion_decoder(archive))), None)


def _with_original_names(
    networks: Mapping[str, StoredNetwork], raw_config: dict[str, Any] | None, name: str
) -> tuple[dict[str, StoredNetwork], dict[str, Any] | None]:
    """The networks and the configuration, translated where they are in the vocabulary of diffusers."""
    translation = None
    if raw_config is not None and is_diffusers_config(raw_config):
        translation = read_diffusers_config(raw_config, name)
    result = dict(networks)
    for network, stored in networks.items():
        if has_diffusers_names(stored.tensors):
            if translation is None:
                raise CheckpointError(
                    f"{name}: its tensors have the names of the diffusers library, so the config.json of that library "
                    "must be beside it; download that file too."
                )
            names = translation.original_names(network, stored.tensors)
            tensors = {names[old]: info for old, info in stored.tensors.items()}
            result[network] = StoredNetwork(tensors, stored.layout)
    return result, translation.raw_config if translation else raw_config


def _find_statistics(archives: Sequence[Archive], latent_channels: int, name: str) -> tuple[TensorInfo, TensorInfo]:
    """Where the mean and the standard deviation of the latents are stored, with a value per channel."""
    found = next((found for archive in archives if (found := find_statistics(archive))), None)
    if found is None:
        raise CheckpointError(
            f"{name}: the statistics of the latents (per_channel_statistics.mean-of-means and std-of-means) are "
            "missing; use a file that has them."
        )
    mean, std = found
    sizes = [math.prod(info.shape) for info in found]
    if sizes != [latent_channels, latent_channels]:
        raise CheckpointError(
            f"{name}: {mean.name} and {std.name} have {sizes[0]} and {sizes[1]} values, but its latents have "
            f"{latent_channels} channels; use statistics and weights of one release."
        )
    return mean, std
