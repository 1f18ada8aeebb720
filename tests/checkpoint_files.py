"""Checkpoint files in the layouts that people have, and comparisons of opened checkpoints."""

import json
import subprocess
import sys

import mlx.core as mx
import numpy as np
from safetensors.numpy import load_file, save_file

from mlx_ltx_vae.backend.mlx_utils import named_parameters
from mlx_ltx_vae.checkpoint import open_checkpoint, open_weights
from mlx_ltx_vae.conversion import STATISTICS_TENSORS, convert_checkpoint, read_all
from mlx_ltx_vae.networks.base import AUDIO, PICTURES
from mlx_ltx_vae.networks.preview_vae.config import PreviewConfig
from mlx_ltx_vae.networks.preview_vae.networks import PreviewDecoder

__all__ = [
    "AUDIO", "GENERATIONS", "INDEX", "LAYOUTS", "PICTURES", "SHARD", "STATISTICS_TENSORS", "as_an_mlx_port_stores",
    "assert_same_checkpoint", "assert_same_weights", "convert_checkpoint", "measured", "metadata",
    "named_parameters", "network_of", "open_checkpoint", "open_weights", "read_all", "read_statistics",
    "read_weights", "rewritten", "statistics_of", "tiny_decoder_tensors", "write_pack", "write_shards",
]  # fmt: skip

GENERATIONS = {
    "ltxv_0_9_0": "LTX-Video 0.9.0",
    "ltxv_0_9_1": "LTX-Video 0.9.1",
    "ltxv_0_9_5": "LTX-Video 0.9.5",
    "ltx2": "LTX-2",
    "ltx2_3": "LTX-2.3",
}
Weights = dict[str, np.ndarray]


def read_weights(checkpoint, network):
    """The tensors of a network by name; empty if the checkpoint does not have it."""
    return dict(checkpoint.networks[network].read()) if network in checkpoint.networks else {}


def read_statistics(checkpoint):
    return dict(zip(("mean", "std"), checkpoint.read_statistics(), strict=True))


def assert_same_weights(found, expected):
    """Names, shapes, dtypes, then values."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype), name
        assert mx.array_equal(found[name], array), name


def assert_same_checkpoint(found, expected):
    """Configuration, networks and statistics."""
    assert found.config == expected.config
    assert found.networks.keys() == expected.networks.keys()
    for network in expected.networks:
        assert_same_weights(read_weights(found, network), read_weights(expected, network))
    assert_same_weights(read_statistics(found), read_statistics(expected))


def metadata(golden, name):
    return {"config": json.dumps({"vae": golden(name).manifest["vae_config"]})}


def network_of(tensors, network):
    prefix = f"vae.{network}."
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}


def statistics_of(tensors):
    return (
        tensors["vae.per_channel_statistics.mean-of-means"],
        tensors["vae.per_channel_statistics.std-of-means"],
    )


def as_an_mlx_port_stores(name, array):
    if array.ndim == 5:
        return np.ascontiguousarray(array.transpose(0, 2, 3, 4, 1))
    if array.ndim == 4:
        return np.ascontiguousarray(array.transpose(0, 2, 3, 1))
    return array


def _wrapped(name, array):
    """mlx-video's packs wrap each causal convolution of the decoder in one more module."""
    is_bare = name.startswith("vae.decoder.") and ".conv.conv." not in name
    return name.replace(".conv.", ".conv.conv.") if is_bare else name, array


def _packed(prefix, statistics):
    """As packs of MLX ports in one file: a prefix for each network, channels last."""

    def store(name, array):
        _, network, own = name.split(".", 2)
        if network == "per_channel_statistics":
            return statistics.get(own, name), array
        return prefix.format(network) + own, as_an_mlx_port_stores(own, array)

    return store


_SHORT = {"mean-of-means": "mean", "std-of-means": "std"}
#: The name and the array, as each layout of one file stores a tensor of the original.
LAYOUTS = {
    "bare": lambda name, array: (name.removeprefix("vae."), array),
    "model.vae": lambda name, array: (f"model.{name}", array),
    "first stage": lambda name, array: (name.replace("vae.", "first_stage_model.", 1), array),
    "channels last": lambda name, array: (name, as_an_mlx_port_stores(name, array)),
    "pack": _packed("vae_{}.", _SHORT),
    "pack of networks": _packed("{}.", _SHORT),
    "wrapped": _wrapped,
}


def write_pack(folder, tensors, pattern, prefix, names, header=None):
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
        save_file(stored, path, header)


def tiny_decoder_tensors(*widths):
    """The tensors of a TAEHV without an encoder, with these numbers of channels and random weights, by their names."""
    decoder = PreviewDecoder(PreviewConfig(widths, encoder_width=None))
    return {f"decoder.{name}": array for name, array in named_parameters(decoder).items()}


SHARD, INDEX = "model-0000{}-of-00002.safetensors", "model.safetensors.index.json"


def write_shards(folder, tensors, shard=SHARD, index=INDEX, header=None):
    """Two shards, encoder and decoder apart, so that the first alone would load as half a VAE: their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths, weight_map = [], {}
    for number in (1, 2):
        own = {name: array for name, array in tensors.items() if ("decoder" in name) is (number == 2)}
        paths.append(folder / shard.format(number))
        save_file(own, paths[-1], header or {"format": "pt"})
        weight_map |= dict.fromkeys(own, paths[-1].name)
    if index:
        (folder / index).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return paths


# On Linux a child inherits the ru_maxrss of its parent, so its own high-water mark is read instead.
_RESIDENT_PEAK = """
import resource, sys
from pathlib import Path
import mlx.core as mx
from mlx_ltx_vae.checkpoint import open_checkpoint
from mlx_ltx_vae.conversion import compare_tensors, write_weights

def resident_peak():
    if sys.platform == "linux":
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = resident_peak()
{}
print(mx.get_peak_memory(), resident_peak() - before)
"""


def measured(code, *arguments):
    """The numbers that code prints in a process of its own, then its peak of MLX's memory and the growth of all."""
    command = [sys.executable, "-c", _RESIDENT_PEAK.format(code), *map(str, arguments)]
    return list(map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()))


def rewritten(golden, tmp_path, change, name="ltx2_3"):
    """The case's checkpoint, changed by `change(tensors, config)`."""
    case = golden(name)
    tensors, config = load_file(case.checkpoint), dict(case.manifest["vae_config"])
    change(tensors, config)
    path = tmp_path / "changed.safetensors"
    save_file(tensors, path, metadata={"config": json.dumps({"vae": config})})
    return path
