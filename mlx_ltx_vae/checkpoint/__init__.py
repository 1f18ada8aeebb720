"""Open a checkpoint: its configuration and where its tensors are stored. Load its networks, strictly.

Whatever is missing, damaged, ambiguous or not supported is a `CheckpointError`.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..backend.device import explained_device_errors, give_back_cache, this_machine
from ..backend.machine import Machine
from ..backend.mlx_utils import (
    DTYPES,
    count_nonfinite,
    dtype_name,
    kept_random_state,
    to_bool,
    to_float,
)
from ..errors import CheckpointError, DeviceError, excerpt, quote
from ..models.base import NETWORKS, PICTURES, Config, Family, Found, Medium, Network, Statistics, Stored
from ..models.convolution.prepared import prepared_modules
from ..models.specs import NetworkSpec
from .files import Archive, TensorInfo, check_dtypes, check_unchanged, read_json, read_tensors, sample_tensors
from .locate import Location, locate, recognize
from .stored_network import StoredNetwork, infer_layout, stated_layout

#: Arrays by name, as an app holds them.
Arrays = Mapping[str, mx.array | np.ndarray]
#: A dict, as in a metadata entry `config` or a config.json; or what it is parsed to; or None to infer it.
GivenConfig = Mapping[str, Any] | Config | None

_NAMED_TENSORS = 3


@dataclass(frozen=True)
class Checkpoint:
    """A VAE known by the headers of its files, or by arrays in memory. No tensor has been read.

    Attributes:
        name: what error messages call it.
        class_name: the class that its configuration names, if any.
        is_inferred: whether it has no configuration, so that `config` was inferred from its tensors.
        raw_config: the configuration as a converted checkpoint states it; empty if a parsed one was given.
        networks: those that were asked for and exist.
        statistics: where mean and standard deviation of the latents are stored; None if the networks need none.
        files: all that were read, with those of the configuration.
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
        """What the weights of a network are cast to if a user wants `dtype`; None for what they are stored in."""
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
        """What reports say of a network that was used, JSON-serializable: its file, and what it is.

        Of several shards, the file is their index, or the first of them.
        """
        shards = {info.path for info in self.networks[network].tensors.values()}
        archives = [each for each in self.archives if shards <= {info.path for info in each.tensors.values()}]
        kind = {"decoder": self.family.decoder} if network == "decoder" else {}
        return {"file": str(archives[0].path), "generation": self.config.generation, **kind}

    def of_network(self, name: str) -> "Checkpoint":
        """The same with one of its networks, of which alone it keeps the headers."""
        return replace(self, archives=(), networks={name: self.networks[name]})

    @property
    def is_in_memory(self) -> bool:
        """Whether its tensors are arrays, and not in files."""
        return any(info.array is not None for info in self._tensors)

    @property
    def description(self) -> dict[str, Any]:
        """The tensors' headers and the sizes of their files, JSON-serializable: what ranks compare."""
        infos = [info for stored in self.networks.values() for info in stored.tensors.values()]
        paths = sorted({info.path for info in infos if info.array is None})
        tensors = sorted([info.name, info.dtype, *info.shape] for info in infos)
        return {"config": self.raw_config, "sizes": [path.stat().st_size for path in paths], "tensors": tensors}

    def sample(self) -> str:
        """A hash of a sample of each tensor, the statistics included. The tensors must be in files."""
        return sample_tensors(self._tensors)

    def check_unchanged(self) -> None:
        check_unchanged(self._tensors)

    @property
    def _tensors(self) -> list[TensorInfo]:
        tensors = [stored.tensors[name] for stored in self.networks.values() for name in sorted(stored.tensors)]
        return [*tensors, *(self.statistics or ())]

    def read_statistics(self) -> Statistics | None:
        """Those of the latents, each (C,) float32 and finite, standard deviations above 0; None if none are needed."""
        if self.statistics is None:
            return None
        arrays = dict(read_tensors(dict(zip(("mean", "std"), self.statistics, strict=True))))
        mean, std = (arrays[name].reshape(-1).astype(mx.float32) for name in ("mean", "std"))
        _evaluate(self, "the statistics", mean, std)
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
        raise ValueError("open_checkpoint: ask for the encoder, the decoder or both.")
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
    """What may be a configuration: the metadata of files, then JSON files beside them."""
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
    configured = family.configure(stated, Stored(name, shapes, wanted))
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


def check_headers(checkpoint: Checkpoint, name: str) -> None:
    """Raise a `CheckpointError` unless a network has exactly the tensors that its configuration describes."""
    stored = checkpoint.networks[name]
    _check_names(checkpoint, name, stored.expected.keys(), stored.tensors.keys())
    for key, shape in stored.shapes.items():
        if shape != stored.expected[key]:
            raise CheckpointError(
                f"{checkpoint.name}: tensor {name}.{key} has the shape {shape}, but the configuration expects "
                f"{stored.expected[key]}; use the configuration that belongs to the file."
            )


def load_network(checkpoint: Checkpoint, name: str, dtype: mx.Dtype | None) -> Network | None:
    """Make a network and load its weights, cast to `dtype` unless it is None. None if the checkpoint does not have it.

    Weights are laid out for the default device; without a `dtype`, they may get a more accurate one of
    the same size. A tensor that is missing, unexpected, of another shape, unreadable, not finite, or zero is an error,
    and so is a file that has changed since its header was read.
    """
    stored = checkpoint.networks.get(name)
    if stored is None:
        return None
    check_headers(checkpoint, name)
    statistics = checkpoint.read_statistics()
    with kept_random_state():
        network = checkpoint.family.make(checkpoint.config, name, statistics)
    assert isinstance(network, nn.Module)
    prepared = prepared_modules(network)
    missing = Counter(path for key in stored.expected for path in _modules_above(key) if path in prepared)
    for key, weight in _largest_first(stored).read():
        # Evaluated one by one, so that no more than one tensor exists in two dtypes.
        weight = weight if dtype is None else weight.astype(dtype)
        module = prepared.get(_owner(key))
        if module is None:
            weight = mx.contiguous(weight)
        _evaluate(checkpoint, f"tensor {name}.{key}", weight)
        if problem := _problem(weight):
            is_half = dtype is not None and dtype == mx.float16
            remedy = "use bfloat16 or float32" if is_half else "download the file again"
            raise CheckpointError(f"{checkpoint.name}: tensor {name}.{key} {problem}; {remedy}.")
        network.load_weights([(key, weight)], strict=False)
        del weight
        for path in filter(prepared.__contains__, _modules_above(key)):
            missing[path] -= 1
            if not missing[path]:
                prepared[path].prepare(keeps_dtype=dtype is not None)
    checkpoint.check_unchanged()
    give_back_cache()
    return network


def _largest_first(stored: StoredNetwork) -> StoredNetwork:
    """A network to be read module by module, the largest first: at the end there is no room for two layouts of them."""
    sizes: Counter[str] = Counter()
    for key, info in stored.tensors.items():
        sizes[_owner(key)] += math.prod(info.shape)
    ordered = sorted(stored.tensors.items(), key=lambda item: (-sizes[_owner(item[0])], item[0]))
    return replace(stored, tensors=dict(ordered))


def _owner(key: str) -> str:
    """The path of the module that has a parameter."""
    return key.rpartition(".")[0]


def _modules_above(key: str) -> Iterator[str]:
    """The paths of the modules that contain a parameter, the innermost first."""
    while key := _owner(key):
        yield key


def _evaluate(checkpoint: Checkpoint, what: str, *arrays: mx.array) -> None:
    try:
        # Arrays in memory may be those of another thread, which is no failure of the device.
        with nullcontext() if checkpoint.is_in_memory else explained_device_errors():
            mx.eval(arrays)
    except DeviceError:
        raise
    except RuntimeError as error:
        checkpoint.check_unchanged()
        raise CheckpointError(f"{checkpoint.name}: {what} cannot be read ({excerpt(error, 120)}).") from error


def _check_names(checkpoint: Checkpoint, network: str, expected: Set[str], stored: Set[str]) -> None:
    missing, unexpected = sorted(expected - stored), sorted(stored - expected)
    if names := missing or unexpected:
        fault = "lacks" if missing else "has the unexpected"
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise CheckpointError(
            f"{checkpoint.name}: its {network} {fault} tensor {excerpt(names[0])}{more}, so "
            "the file does not match its configuration; download both again from one release."
        )


def _problem(weight: mx.array) -> str | None:
    """What no trained weight is; None if there is nothing wrong with it."""
    total = to_float(weight.sum())
    if total and math.isfinite(total):  # every weight is finite and one is not 0: one pass, so that loading stays fast
        return None
    if bad := count_nonfinite(weight):
        return f"has {bad} of {weight.size} values that are NaN or infinite"
    if weight.ndim > 2 and not to_bool(weight.any()):
        return "is zero everywhere"
    return None


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


def _find_statistics(location: Location, found: Sequence[Found], num_channels: int) -> tuple[TensorInfo, TensorInfo]:
    """Where the mean and the standard deviation of the latents are stored, with a value per channel."""
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
