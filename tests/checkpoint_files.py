"""Checkpoint files in the layouts that people have, and comparisons of opened checkpoints."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import mlx.core as mx
import numpy as np
from safetensors.numpy import load_file, save_file

from mlx_ltx_vae.checkpoint import Checkpoint

GENERATIONS = {
    "ltxv_0_9_0": "LTX-Video 0.9.0",
    "ltxv_0_9_1": "LTX-Video 0.9.1",
    "ltxv_0_9_5": "LTX-Video 0.9.5",
    "ltx2": "LTX-2",
    "ltx2_3": "LTX-2.3",
}
Weights = dict[str, np.ndarray]


def read_weights(checkpoint: Checkpoint, network: str) -> dict[str, mx.array]:
    """The tensors of a network by name; empty if the checkpoint does not have it."""
    return dict(checkpoint.networks[network].read()) if network in checkpoint.networks else {}


def read_statistics(checkpoint: Checkpoint) -> dict[str, mx.array]:
    return dict(zip(("mean", "std"), checkpoint.read_statistics(), strict=True))


def assert_same_weights(found: Mapping[str, mx.array], expected: Mapping[str, mx.array]) -> None:
    """Names, shapes, dtypes, then values."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype), name
        assert mx.array_equal(found[name], array), name


def assert_same_checkpoint(found: Checkpoint, expected: Checkpoint) -> None:
    """Configuration, networks and statistics."""
    assert found.config == expected.config
    assert found.networks.keys() == expected.networks.keys()
    for network in expected.networks:
        assert_same_weights(read_weights(found, network), read_weights(expected, network))
    assert_same_weights(read_statistics(found), read_statistics(expected))


def metadata(golden: Callable, name: str) -> dict[str, str]:
    return {"config": json.dumps({"vae": golden(name).manifest["vae_config"]})}


def network_of(tensors: Weights, network: str) -> Weights:
    prefix = f"vae.{network}."
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}


def statistics_of(tensors: Weights) -> tuple[np.ndarray, np.ndarray]:
    return (
        tensors["vae.per_channel_statistics.mean-of-means"],
        tensors["vae.per_channel_statistics.std-of-means"],
    )


def as_an_mlx_port_stores(name: str, array: np.ndarray) -> np.ndarray:
    if array.ndim == 5:
        return np.ascontiguousarray(array.transpose(0, 2, 3, 4, 1))
    if array.ndim == 4:
        return np.ascontiguousarray(array.transpose(0, 2, 3, 1))
    return array


def write_pack(folder: Path, tensors: Weights, pattern: str, prefix: str, names: tuple[str, str]) -> None:
    """One file per network, statistics in each."""
    for network in ("encoder", "decoder"):
        stored = {
            prefix.format(network) + name: as_an_mlx_port_stores(name, array)
            for name, array in network_of(tensors, network).items()
        }
        for name, array in zip(names, statistics_of(tensors), strict=True):
            stored[f"{prefix.format(network)}per_channel_statistics.{name}"] = array
        path = folder / pattern.format(network)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(stored, path)


def write_shards(folder: Path, tensors: Weights, file_metadata: dict[str, str]) -> None:
    names = sorted(tensors)
    weight_map = {}
    for index, chosen in enumerate((names[::2], names[1::2]), start=1):
        shard = f"model-{index:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in chosen}, folder / shard, file_metadata)
        weight_map |= dict.fromkeys(chosen, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def rewritten(golden: Callable, tmp_path: Path, change: Callable, name: str = "ltx2_3") -> Path:
    """The case's checkpoint, changed by `change(tensors, config)`."""
    case = golden(name)
    tensors, config = load_file(case.checkpoint), dict(case.manifest["vae_config"])
    change(tensors, config)
    path = tmp_path / "changed.safetensors"
    save_file(tensors, path, metadata={"config": json.dumps({"vae": config})})
    return path
