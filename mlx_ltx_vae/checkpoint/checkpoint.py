"""Open a checkpoint: its configuration and where its tensors are stored.

Whatever is missing, damaged, ambiguous or not supported is a `CheckpointError`.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..backend.device import explained_device_errors
from ..backend.mlx_utils import DTYPES, count_nonfinite, dtype_name, to_bool
from ..errors import CheckpointError, DeviceError, excerpt, quote, warn
from ..latents.metadata import LatentSpace
from ..model_table import Kind, PublishedModel, latents_of, models_for, models_of
from ..networks.base import (
    NETWORKS,
    PICTURES,
    UPSAMPLERS,
    CheckpointParts,
    Config,
    Configuration,
    Family,
    Medium,
    NetworkTensors,
    Statistics,
)
from ..networks.specs import NetworkSpec
from ..units import format_bytes
from .locate import Location, has_networks, is_cached, locate, recognize, upsampler_error
from .tensors import (
    GROUP_SIZES,
    QUANTIZATION_KEYS,
    TensorInfo,
    check_dtypes,
    check_unchanged,
    join_quantized,
    read_tensors,
)
from .weight_files import Archive, StoredNetwork, find_layout, read_json

#: Arrays by name, as an app holds them.
Arrays = Mapping[str, mx.array | np.ndarray]
#: Dict, as in a metadata entry `config` or a config.json, or the parsed configuration. `None` means to infer it.
GivenConfig = Mapping[str, Any] | Config | None

#: The metadata entry in which files state the version of their model, such as "2.3.0".
VERSION_KEY = "model_version"

_NAMED_TENSORS = 3
_ROUNDING = 2**-7  # of a value in bfloat16, in which some files store statistics
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})")
# "ltx-2.3", "ltxv0.9.5", "LTX23", "taeltx2_3"; not "ltx-2-19b".
_NAMED_VERSION = re.compile(r"ltx[-_ ]?v?(\d)[._]?(\d{1,2})(?![\db])", re.IGNORECASE)


@dataclass(frozen=True)
class VAESource:
    """Files of a VAE, and what they and their names state.

    Attributes:
        name: the VAE's name in errors.
        files: all files that were read, including the configuration. Arrays in memory have none.
        generations: the generations whose latents it takes, its own first. There are none if nothing states them.
        version: LTX version that is stated, such as (2, 5), or else one with the same layers.
        networks: a report of each network, JSON-serializable: its file, generation and kind.
        kind: the kind of model that is looked for instead if latents do not fit.
    """

    name: str = "the VAE"
    files: Sequence[Path] = ()
    generations: Sequence[str] = ()
    version: tuple[int, int] | None = None
    networks: Mapping[str, dict[str, str]] = field(default_factory=dict)
    kind: Kind = Kind.VIDEO

    @property
    def title(self) -> str:
        """Name of the VAE in errors about latents: its generation, if that is known."""
        return next(iter(self.generations), f"the VAE {self.name}")

    def describe_mismatch(self, latents: LatentSpace, space: LatentSpace) -> str | None:
        """Say that latents belong to another VAE than this one, whose latents have this `space`.

        The text ends a sentence about the latents. Returns `None` if they fit.
        """
        if latents.fingerprint is not None and latents.fingerprint == space.fingerprint:
            return None
        if latents.generation and self.generations:
            if latents.generation not in self.generations:
                return f"of {latents.generation}, and {self.name} is for {' and '.join(self.generations)}"
            if len(self.generations) == 1:  # two decoders of one release may have other statistics
                return None
        if latents.fingerprint is None or space.fingerprint is None:
            return None
        return f"of a VAE with other statistics than {self.name}"


@dataclass(frozen=True)
class Checkpoint:
    """Headers of the files of a VAE, or its arrays in memory. No tensor has been read.

    Attributes:
        name: the checkpoint's name in error messages.
        class_name: the class that the configuration names, if any.
        is_inferred: the checkpoint has no configuration, so `config` was inferred from its tensors.
        raw_config: the configuration as a converted checkpoint states it, or empty if the caller passed a parsed one.
        networks: the requested networks that exist.
        statistics: location of the mean and standard deviation of the latents, or `None` if the networks need none.
        files: all files that were read, including the configuration.
        short_name: of a published model, if it was opened by that.
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
    short_name: str = ""

    def cast_dtype(self, network: str, dtype: str | None) -> mx.Dtype | None:
        """Return the dtype to cast a network's weights to for a requested `dtype`. `None` means the stored dtype."""
        stored = self.networks.get(network)
        is_promoted = network not in self.family.computes_in_half
        if is_promoted and stored and "float16" in ([dtype] if dtype else stored.parameters_by_dtype):
            return mx.float32
        return None if dtype is None else DTYPES[dtype]

    def dtype(self, network: str) -> mx.Dtype:
        """Return the dtype in which a network is stored."""
        return DTYPES[self.networks[network].dtype]

    def spec(self, network: str) -> NetworkSpec:
        """Return the layers of a network. Raises a `CheckpointError` if the configuration does not describe it."""
        return self.family.spec(self.config, network)

    @property
    def source(self) -> VAESource:
        """Source of the VAE that this checkpoint is opened as."""
        reports: dict[str, dict[str, str]] = {network: {} for network in self.networks}
        for network, report in reports.items():
            if not self.is_in_memory:  # the file of several shards is their index, or the first shard
                shards = {info.path for info in self.networks[network].tensors.values()}
                paths = {archive.path: {info.path for info in archive.tensors.values()} for archive in self.archives}
                report["file"] = str(next(path for path, stored in paths.items() if shards <= stored))
            report["generation"] = self.config.generation
            if network == "decoder":
                report["decoder"] = self.family.decoder
        files = () if self.is_in_memory else tuple(self.files)
        return VAESource(self.name, files, self.latents_taken, self.version, reports)

    @property
    def version(self) -> tuple[int, int] | None:
        """LTX version that the files or their names state, such as (2, 5), or else one with the same layers."""
        match = _VERSION.search(self.config.generation)
        return self.stated_version or (None if match is None else (int(match[1]), int(match[2])))

    @property
    def stated_version(self) -> tuple[int, int] | None:
        """LTX version that the short name, the files or their names state, or `None`."""
        model_versions = [archive.metadata.get(VERSION_KEY, "") for archive in self.archives]
        names = [part for archive in self.archives for part in reversed(archive.path.absolute().parts[-2:])]
        matches = [*map(_VERSION.match, model_versions), *map(_NAMED_VERSION.search, [*names, self.name])]
        match = next(filter(None, [_NAMED_VERSION.search(self.short_name), *matches]), None)
        return None if match is None else (int(match[1]), int(match[2]))

    @property
    def latents_taken(self) -> tuple[str, ...]:
        """Generations whose latents it takes, its own first. There are none if its layers and names do not tell."""
        return latents_of(self.config.generation, self.stated_version)

    @property
    def latent_space(self) -> LatentSpace:
        """Generation and fingerprint of its latents. Reads the statistics."""
        statistics = self.read_statistics()
        generation = next(iter(self.latents_taken), None)
        return LatentSpace(generation, None if statistics is None else statistics.fingerprint)

    @property
    def is_in_memory(self) -> bool:
        """Return whether the tensors are arrays in memory, and not in files."""
        return any(info.array is not None for stored in self.networks.values() for info in stored.tensors.values())

    def check_unchanged(self) -> None:
        tensors = [stored.tensors[name] for stored in self.networks.values() for name in sorted(stored.tensors)]
        check_unchanged(part for info in (*tensors, *(self.statistics or ())) for part in info.stored)

    def evaluate(self, label: str, *arrays: mx.array) -> None:
        """Evaluate tensors of the checkpoint. Raises a `CheckpointError` naming `label` if they cannot be read."""
        try:
            with explained_device_errors():
                mx.eval(arrays)
        except DeviceError:
            raise
        except RuntimeError as error:
            self.check_unchanged()
            raise CheckpointError(f"{self.name}: {label} cannot be read ({excerpt(error, 120)}).") from error

    def read_statistics(self) -> Statistics | None:
        """Read the statistics of the latents, each (C,) float32 and finite, with standard deviations above 0.

        Returns `None` if the networks need none.
        """
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
    """Read the headers of a VAE of pictures or of audio in any supported layout.

    `source` is what `locate` takes or returns. The requested networks must have exactly the tensors of the
    configuration.
    """
    excluded = [network for network, is_requested in zip(NETWORKS, (encoder, decoder), strict=True) if not is_requested]
    if len(excluded) == len(NETWORKS):
        raise ValueError("there is nothing to load; ask for the encoder, the decoder or both.")
    requested = [network for network in medium.networks if network not in excluded]
    location = source if isinstance(source, Location) else locate(source, medium)
    contents = list(_contents(location))
    return _open(location, lambda family: family.choose_config(contents), requested, medium)


def find_cached(space: LatentSpace, kind: Kind) -> PublishedModel | None:
    """Return the model in the cache for these latents: the preferred one of their generation.

    Without a generation, it is a model for the latents of a video VAE in the cache that has the fingerprint.
    """
    generation = space.generation
    for model in models_of(Kind.VIDEO).values() if generation is None else ():
        with suppress(CheckpointError):
            checkpoint = open_checkpoint(model.name, encoder=False) if is_cached(model) else None
            if checkpoint is not None and checkpoint.latent_space.fingerprint == space.fingerprint:
                generation = model.latents[0]
                break
    return next(filter(is_cached, models_for(generation, kind)), None)


def open_weights(weights: Arrays, config: GivenConfig = None, *, medium: Medium = PICTURES) -> Checkpoint:
    """Open arrays in memory, with the names and layouts that files have. No array is evaluated."""

    def choose(family: Family[Any]) -> GivenConfig:
        if config is None or isinstance(config, family.config_type):
            return config
        try:
            file_config = family.choose_config([json.loads(json.dumps(config))])
        except (TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"weights: their configuration cannot be JSON ({excerpt(error)}); pass a dict."
            ) from error
        if file_config is None:
            raise CheckpointError(
                "weights: their configuration describes no video VAE; pass a dict with encoder_blocks and "
                "decoder_blocks (or a config.json of diffusers), or None to infer it."
            )
        return file_config

    path, tensors = Path("weights"), {}
    for name, array in weights.items():
        if not isinstance(name, str) or not isinstance(array, (mx.array, np.ndarray)):
            raise CheckpointError(
                f"weights: expected names with mx.array or numpy arrays, and {quote(name)} is a {type(array).__name__}."
            )
        tensors[name] = TensorInfo(path, name, dtype_name(array.dtype), tuple(array.shape), array=array)
    return _open(Location("weights", [Archive(path, join_quantized(tensors), {})], []), choose, medium.networks, medium)


def _contents(location: Location) -> Iterator[object]:
    """Yield the candidates for a configuration: the metadata of the files, then the JSON files in their folders."""
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
    location: Location, choose: Callable[[Family[Any]], GivenConfig], requested: Sequence[str], medium: Medium
) -> Checkpoint:
    """Open archives whose configuration `choose` returns for their family."""
    name, archives, config_files, short_name, _ = location
    family, parts = recognize(archives, medium, requested)
    stored: dict[str, StoredNetwork] = {}
    for archive, part in zip(archives, parts, strict=True):
        for network, names in part.networks.items():
            tensors = {inner_name: archive.tensors[full_name] for inner_name, full_name in names.items()}
            layout = find_layout(archive.metadata, [info.shape for info in tensors.values()], family.kernels, name)
            stored[network] = StoredNetwork(tensors, layout, family.kernels)
    _check_networks(location, requested, stored.keys(), medium)
    for network in filter(stored.__contains__, requested):
        check_dtypes(stored[network].tensors.values())
    source_config = choose(family)
    if isinstance(source_config, Mapping):
        source_config = {key: value for key, value in source_config.items() if key not in QUANTIZATION_KEYS}
    configuration, networks = _configure(family, source_config, stored, requested, name)
    _warn_of_quantized(networks, name)
    config, raw_config = configuration.config, configuration.raw
    statistics = _find_statistics(location, parts, requested, config.latent_channels) if family.has_statistics else []
    class_name = source_config.get("_class_name") if isinstance(source_config, Mapping) else None
    paths = [path for archive in archives for path in (archive.path, *(info.path for info in archive.tensors.values()))]
    files = list(dict.fromkeys([*paths, *filter(os.path.exists, config_files)]))
    is_inferred, pair = source_config is None, statistics[-1] if statistics else None
    checkpoint = Checkpoint(
        name, class_name, is_inferred, family, config, raw_config, archives, networks, pair, medium, files, short_name
    )
    if len(statistics) > 1:
        _check_statistics(checkpoint, statistics)
    version = None if checkpoint.is_in_memory else checkpoint.stated_version
    generation = version and family.same_layers.get((config.generation, version))
    return replace(checkpoint, config=replace(config, generation=generation)) if generation else checkpoint


def _configure(
    family: Family[Any], config: GivenConfig, stored: Mapping[str, StoredNetwork], requested: Sequence[str], name: str
) -> tuple[Configuration[Any], dict[str, StoredNetwork]]:
    """Return the configuration, and the requested networks with exactly the names and shapes that it expects.

    A configuration that is inferred from quantized weights depends on their group size, so each one is tried.
    """
    errors: list[CheckpointError] = []
    is_quantized = any(part.quantized for part in stored.values())
    for size in GROUP_SIZES if is_quantized else GROUP_SIZES[:1]:
        sized = {network: part.with_group_size(size) for network, part in stored.items()} if is_quantized else stored
        shapes = {network: part.shapes for network, part in sized.items()}
        try:
            configuration = family.configure(config, CheckpointParts(name, shapes, requested))
            networks = {}
            for network in filter(sized.__contains__, requested):
                names, spec = configuration.names.get(network, {}), family.spec(configuration.config, network)
                tensors = {names.get(key, key): info for key, info in sized[network].tensors.items()}
                part = replace(sized[network], tensors=tensors, expected=spec.weights)
                networks[network] = part.fit_quantized() if is_quantized else part
                _check_tensors(networks[network], network, name)
            return configuration, networks
        except CheckpointError as error:
            errors.append(error)
    raise errors[0]


def _check_tensors(stored: StoredNetwork, network: str, name: str) -> None:
    """Check that a network has exactly the tensors of its configuration; raise a `CheckpointError` otherwise."""
    expected_names, stored_names = stored.expected.keys(), stored.tensors.keys()
    missing = sorted(expected_names - stored_names)
    if names := missing or sorted(stored_names - expected_names):
        fault = "lacks" if missing else "has the unexpected"
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise CheckpointError(
            f"{name}: its {network} {fault} tensor {excerpt(names[0])}{more}, so the file does not match its "
            "configuration; download both again from one release."
        )
    for key, shape in stored.shapes.items():
        if shape != stored.expected[key]:
            raise CheckpointError(
                f"{name}: tensor {network}.{key} has the shape {shape}, but the configuration expects "
                f"{stored.expected[key]}; use the configuration that belongs to the file."
            )


def _warn_of_quantized(networks: Mapping[str, StoredNetwork], name: str) -> None:
    """Warn of weights that take more memory than they are stored in."""
    infos = [info for part in networks.values() for info in part.quantized]
    if not infos:
        return
    kinds = sorted({(info.bits, info.group_size) for info in infos})
    kind = " and ".join(f"{bits}-bit in groups of {size}" for bits, size in kinds)
    owners = " and ".join(network for network, part in networks.items() if part.quantized)
    stored = sum(info.num_bytes for info in infos)
    loaded = sum(math.prod(info.shape) * DTYPES[info.dtype].size for info in infos)
    warn(
        f"{name}: weights of its {owners} are quantized ({kind}) and dequantized when they are loaded: they take "
        f"{format_bytes(loaded)} instead of {format_bytes(stored)}, and results have the error of the quantization."
    )


def _check_networks(location: Location, requested: Sequence[str], stored: Set[str], medium: Medium) -> None:
    """Check that the source has at least one of the `requested` networks; raise a `CheckpointError` otherwise."""
    if not stored:
        if medium is not UPSAMPLERS and has_networks(location.archives, UPSAMPLERS):
            raise upsampler_error(location.name, medium)
        tensors = [tensor for archive in location.archives for tensor in archive.tensors]
        names = excerpt(", ".join(tensors[:_NAMED_TENSORS])) + (" ..." if len(tensors) > _NAMED_TENSORS else "")
        raise CheckpointError(
            f"{location.name}: expected {medium.noun} ({medium.tensors}) and found "
            f"{names or 'no tensor'}; give the file of {medium.noun}."
        )
    if stored.isdisjoint(requested):
        networks = " and no ".join(requested)
        raise CheckpointError(f"{location.name}: it has no {networks}; use a file that has both networks.")


def _find_statistics(
    location: Location, parts: Sequence[NetworkTensors], requested: Sequence[str], num_channels: int
) -> list[tuple[TensorInfo, TensorInfo]]:
    """Find the mean and the standard deviation of the latents in all files that state them, a named file's last.

    The files of a folder are those of one VAE. If the source names a file, a partner that lends it no network, whose
    statistics may be another VAE's, counts only where the named file has none.
    """
    all_pairs, used_pairs = [], []
    for archive, part in zip(location.archives, parts, strict=True):
        if part.statistics is not None:
            mean, std = (archive.tensors[tensor] for tensor in part.statistics)
            all_pairs.append((mean, std))
            if location.is_file and not part.networks.keys().isdisjoint(requested):
                used_pairs.append((mean, std))
    pairs = used_pairs or all_pairs
    if not pairs:
        raise CheckpointError(
            f"{location.name}: the statistics of the latents (per_channel_statistics.mean-of-means and std-of-means) "
            "are missing; use a file that has them, or of a pack FOLDER:FILE, which reads its encoder's, too."
        )
    for mean, std in pairs:
        sizes = [math.prod(info.shape) for info in (mean, std)]
        if sizes != [num_channels, num_channels]:
            raise CheckpointError(
                f"{location.name}: {mean.name} and {std.name} have {sizes[0]} and {sizes[1]} values, but its latents "
                f"have {num_channels} channels; use statistics and weights of one release."
            )
        check_dtypes((mean, std))
    return pairs


def _check_statistics(checkpoint: Checkpoint, pairs: Sequence[tuple[TensorInfo, TensorInfo]]) -> None:
    """Check that all files state the same statistics; raise a `CheckpointError` otherwise."""
    *statistics, last = (replace(checkpoint, statistics=pair).read_statistics() or () for pair in pairs)
    for (mean, _), arrays in zip(pairs, statistics, strict=False):
        are_close = (mx.allclose(*pair, rtol=_ROUNDING, atol=0) for pair in zip(arrays, last, strict=True))
        if not all(map(to_bool, are_close)):
            raise CheckpointError(
                f"{mean.path} and {pairs[-1][0].path}: have different statistics of the latents, so they are of two "
                "releases; use the encoder and the decoder of one, or give the file that is used alone."
            )
