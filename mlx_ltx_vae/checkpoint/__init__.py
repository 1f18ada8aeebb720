"""Open a checkpoint: its configuration and where its tensors are stored.

Whatever is missing, damaged, ambiguous or not supported is a `CheckpointError`.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..backend.device import explained_device_errors, this_machine
from ..backend.machine import Machine
from ..backend.mlx_utils import DTYPES, count_nonfinite, dtype_name, to_bool
from ..errors import CheckpointError, DeviceError, excerpt, quote
from ..files import read_sample
from ..models.base import NETWORKS, PICTURES, CheckpointParts, Config, Family, Medium, NetworkTensors, Statistics
from ..models.specs import NetworkSpec
from .files import (
    Archive,
    StoredNetwork,
    TensorInfo,
    check_dtypes,
    check_unchanged,
    infer_layout,
    read_json,
    read_tensors,
    stated_layout,
)
from .locate import Location, locate, recognize

#: Arrays by name, as an app holds them.
Arrays = Mapping[str, mx.array | np.ndarray]
#: A dict, as in a metadata entry `config` or a config.json; or what it is parsed to; or None to infer it.
GivenConfig = Mapping[str, Any] | Config | None

_NAMED_TENSORS = 3
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})")
_NAMED_VERSION = re.compile(r"ltx[-_ ]?v?(\d{1,3})\.(\d{1,3})", re.IGNORECASE)


@dataclass(frozen=True)
class Checkpoint:
    """A VAE known by the headers of its files, or by arrays in memory. No tensor has been read.

    Attributes:
        name: what error messages call it.
        class_name: the class that its configuration names, if any.
        is_inferred: True if it has no configuration, so that `config` was inferred from its tensors.
        raw_config: the configuration as a converted checkpoint states it; empty if a parsed one was given.
        networks: the networks that were asked for and exist.
        statistics: location of the mean and standard deviation of the latents; None if the networks need none.
        files: all files that were read, including the configuration's.
    """

    name: str
    class_name: str | None
    is_inferred: bool
    family: Family[Any]
    config: Config
    raw_config: dict[str, Any]
    archives: Sequence[Archive]
    networks: Mapping[str, StoredNetwork]
    statistics: tuple[TensorInfo, TensorInfo] | None
    medium: Medium = PICTURES
    files: Sequence[Path] = ()

    def cast_dtype(self, network: str, dtype: str | None) -> mx.Dtype | None:
        """The dtype that a network's weights are cast to if a user wants `dtype`; None for the stored dtype."""
        stored = self.networks.get(network)
        is_promoted = network not in self.family.computes_in_half
        if is_promoted and stored and "float16" in ([dtype] if dtype else stored.parameters_by_dtype):
            return mx.float32
        return None if dtype is None else DTYPES[dtype]

    def machine(self, network: str, dtype: str | None) -> Machine:
        """The default device, for a network that `VideoVAE.from_pretrained` would load with this `dtype`."""
        cast = self.cast_dtype(network, dtype)
        return this_machine(cast or DTYPES[self.networks[network].dtype], keeps_dtype=dtype is not None)

    def spec(self, network: str) -> NetworkSpec:
        """The layers of a network, from the configuration alone; it is an error if that does not describe it."""
        return self.family.spec(self.config, network)

    def for_stills(self) -> "Checkpoint":
        """The same, decoding to one picture per latent frame if its family can save work so."""
        return replace(self, config=self.family.stills(self.config)) if self.family.stills else self

    def used(self, network: str) -> dict[str, str]:
        """Report of a network that was used, JSON-serializable: its file, and what it is.

        Of several shards, the file is their index, or the first of them.
        """
        shards = {info.path for info in self.networks[network].tensors.values()}
        archives = [each for each in self.archives if shards <= {info.path for info in each.tensors.values()}]
        kind = {"decoder": self.family.decoder} if network == "decoder" else {}
        return {"file": str(archives[0].path), "generation": self.config.generation, **kind}

    @property
    def version(self) -> tuple[int, int] | None:
        """The version of LTX that its files state or are named after, such as (2, 5), or else that has its layers."""
        stated = [archive.metadata.get("model_version", "") for archive in self.archives]
        names = [part for archive in self.archives for part in reversed(archive.path.absolute().parts[-2:])]
        found = [*map(_VERSION.match, stated), *map(_NAMED_VERSION.search, names)]
        match = next(filter(None, [*found, _VERSION.search(self.config.generation)]), None)
        return None if match is None else (int(match[1]), int(match[2]))

    def of_network(self, name: str) -> "Checkpoint":
        """The same with only one of its networks, and only this one's headers."""
        return replace(self, archives=(), networks={name: self.networks[name]})

    @property
    def is_in_memory(self) -> bool:
        """True if its tensors are arrays, and not in files."""
        return any(info.array is not None for info in self._tensors)

    @property
    def description(self) -> dict[str, Any]:
        """The tensors' headers and the sizes of their files, JSON-serializable: what ranks compare."""
        infos = [info for stored in self.networks.values() for info in stored.tensors.values()]
        paths = sorted({info.path for info in infos if info.array is None})
        tensors = sorted([info.name, info.dtype, *info.shape] for info in infos)
        return {"config": self.raw_config, "sizes": [path.stat().st_size for path in paths], "tensors": tensors}

    def sample(self) -> str:
        """A hash of a sample of each tensor, which must be in files, the statistics included."""
        digest = hashlib.sha256()
        for info in self._tensors:
            with info.path.open("rb") as file:
                digest.update(read_sample(file, info.begin, info.end))
        return digest.hexdigest()

    def check_unchanged(self) -> None:
        check_unchanged(self._tensors)

    @property
    def _tensors(self) -> list[TensorInfo]:
        tensors = [stored.tensors[name] for stored in self.networks.values() for name in sorted(stored.tensors)]
        return [*tensors, *(self.statistics or ())]

    def evaluate(self, what: str, *arrays: mx.array) -> None:
        """Evaluate tensors of it. Raises a `CheckpointError` if they cannot be read."""
        try:
            # Arrays in memory may belong to another thread, which is no failure of the device.
            with nullcontext() if self.is_in_memory else explained_device_errors():
                mx.eval(arrays)
        except DeviceError:
            raise
        except RuntimeError as error:
            self.check_unchanged()
            raise CheckpointError(f"{self.name}: {what} cannot be read ({excerpt(error, 120)}).") from error

    def read_statistics(self) -> Statistics | None:
        """Statistics of the latents, each (C,) float32 and finite, standard deviations above 0; None if not needed."""
        if self.statistics is None:
            return None
        arrays = dict(read_tensors(dict(zip(("mean", "std"), self.statistics, strict=True))))
        mean, std = (arrays[name].reshape(-1).astype(mx.float32) for name in ("mean", "std"))
        self.evaluate("the statistics", mean, std)
        for info, array in zip(self.statistics, (mean, std), strict=True):
            if count_nonfinite(array) or (array is std and not to_bool((array > 0).all())):
                raise CheckpointError(
                    f"{self.name}: {info.name} has values that are NaN, infinite or, for a standard deviation, not "
                    "above 0; download the file again."
                )
        return Statistics(mean, std)


def open_checkpoint(
    source: str | os.PathLike | Location, *, encoder: bool = True, decoder: bool = True, medium: Medium = PICTURES
) -> Checkpoint:
    """Read the headers of a VAE of pictures or of sound in any supported layout.

    `source` is what `locate` takes, or what it returned.
    """
    left_out = [network for network, asked in zip(NETWORKS, (encoder, decoder), strict=True) if not asked]
    if len(left_out) == len(NETWORKS):
        raise ValueError("there is nothing to load; ask for the encoder, the decoder or both.")
    wanted = [network for network in medium.networks if network not in left_out]
    location = source if isinstance(source, Location) else locate(source, medium)
    contents = list(_contents(location))
    return _open(location, lambda family: family.choose_config(contents), wanted, medium)


def open_weights(weights: Arrays, config: GivenConfig = None, *, medium: Medium = PICTURES) -> Checkpoint:
    """Open arrays that are in memory, with names and layouts as files have them. None of them is evaluated."""

    def choose(family: Family[Any]) -> GivenConfig:
        if config is None or isinstance(config, family.config_type):
            return config
        try:
            stated = family.choose_config([json.loads(json.dumps(config))])
        except (TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"weights: their configuration cannot be JSON ({excerpt(error)}); pass a dict."
            ) from error
        if stated is None:
            raise CheckpointError(
                "weights: their configuration describes no video VAE; pass a dict with encoder_blocks and "
                "decoder_blocks (or a config.json of diffusers), or None to infer it."
            )
        return stated

    path, tensors = Path("weights"), {}
    for name, array in weights.items():
        if not isinstance(name, str) or not isinstance(array, (mx.array, np.ndarray)):
            raise CheckpointError(
                f"weights: expected names with mx.array or numpy arrays, and {quote(name)} is a {type(array).__name__}."
            )
        tensors[name] = TensorInfo(path, name, dtype_name(array.dtype), tuple(array.shape), array=array)
    return _open(Location("weights", [Archive(path, tensors, {})], []), choose, medium.networks, medium)


def _contents(location: Location) -> Iterator[object]:
    """Candidates for a configuration: the metadata of files, then JSON files beside them."""
    for archive in location.archives:
        if "config" in archive.metadata:
            try:
                yield json.loads(archive.metadata["config"])
            except (TypeError, ValueError, RecursionError) as error:
                raise CheckpointError(
                    f"{archive.path}: its metadata entry 'config' is not JSON ({excerpt(error)}); download the file "
                    "again."
                ) from error
    yield from (read_json(file) for file in location.config_files if os.path.exists(file))


def _open(
    location: Location, choose: Callable[[Family[Any]], GivenConfig], wanted: Sequence[str], medium: Medium
) -> Checkpoint:
    """Open archives whose configuration `choose` returns for their family."""
    name, archives, config_files = location
    family, found = recognize(archives, medium, wanted)
    stored: dict[str, StoredNetwork] = {}
    for archive, part in zip(archives, found, strict=True):
        for network, names in part.networks.items():
            tensors = {own: archive.tensors[full] for own, full in names.items()}
            layout = stated_layout(archive.metadata, name)
            layout = layout or infer_layout([info.shape for info in tensors.values()], family.kernels, name)
            stored[network] = StoredNetwork(tensors, layout, family.kernels)
    _check_found(location, wanted, stored.keys(), medium)
    stated = choose(family)
    shapes = {network: part.shapes for network, part in stored.items()}
    configured = family.configure(stated, CheckpointParts(name, shapes, wanted))
    config, raw, renamed = configured.config, configured.raw, configured.names
    networks: dict[str, StoredNetwork] = {}
    for network in [each for each in wanted if each in stored]:
        names, spec = renamed.get(network, {}), family.spec(config, network)
        tensors = {names.get(own, own): info for own, info in stored[network].tensors.items()}
        check_dtypes(tensors.values())
        networks[network] = replace(stored[network], tensors=tensors, expected=spec.weights)
    statistics = _find_statistics(location, found, config.latent_channels) if family.has_statistics else None
    check_dtypes(statistics or ())
    class_name = stated.get("_class_name") if isinstance(stated, Mapping) else None
    read = [path for archive in archives for path in (archive.path, *(info.path for info in archive.tensors.values()))]
    files = list(dict.fromkeys([*read, *filter(os.path.exists, config_files)]))
    return Checkpoint(
        name, class_name, stated is None, family, config, raw, archives, networks, statistics, medium, files
    )


def _check_found(location: Location, wanted: Sequence[str], found: Set[str], medium: Medium) -> None:
    """Refuse a source unless one of the `wanted` networks was found."""
    if not found:
        tensors = [tensor for archive in location.archives for tensor in archive.tensors]
        shown = excerpt(", ".join(tensors[:_NAMED_TENSORS])) + (" ..." if len(tensors) > _NAMED_TENSORS else "")
        raise CheckpointError(
            f"{location.name}: expected {medium.noun} ({medium.tensors}) and found "
            f"{shown or 'no tensor'}; give the file of the VAE."
        )
    if found.isdisjoint(wanted):
        lacks = " and no ".join(wanted)
        raise CheckpointError(f"{location.name}: it has no {lacks}; use a file that has both networks.")


def _find_statistics(
    location: Location, found: Sequence[NetworkTensors], num_channels: int
) -> tuple[TensorInfo, TensorInfo]:
    """The location of the mean and the standard deviation of the latents, with a value per channel."""
    stored = [
        [archive.tensors[tensor] for tensor in part.statistics]
        for archive, part in zip(location.archives, found, strict=True)
        if part.statistics is not None
    ]
    if not stored:
        raise CheckpointError(
            f"{location.name}: the statistics of the latents (per_channel_statistics.mean-of-means and std-of-means) "
            "are missing; use a file that has them."
        )
    mean, std = stored[0]
    sizes = [math.prod(info.shape) for info in (mean, std)]
    if sizes != [num_channels, num_channels]:
        raise CheckpointError(
            f"{location.name}: {mean.name} and {std.name} have {sizes[0]} and {sizes[1]} values, but its latents have "
            f"{num_channels} channels; use statistics and weights of one release."
        )
    return mean, std
