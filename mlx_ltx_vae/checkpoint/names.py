"""Names in published checkpoints: of the files of the video VAE, and of the tensors within them."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from ..errors import CheckpointError
from .files import INDEX_SUFFIX, Archive, TensorInfo

CONFIG_NAMES = ("config.json", "embedded_config.json")
NETWORKS = ("encoder", "decoder")
BLOCK_STEMS = {"encoder": "down_blocks", "decoder": "up_blocks"}

# Files of the VAE alone, the best first: diffusers folders, then packs of MLX ports with one file per network.
_VAE_FILES = (
    f"diffusion_pytorch_model{INDEX_SUFFIX}",
    "diffusion_pytorch_model.safetensors",
    "vae_{}_conv.safetensors",
    "vae_{}.safetensors",
    "{}/model.safetensors",
)

# Prefixes of a network's names: the original files, packs of MLX ports (the third for LTX-2.5), split files, and files
# with one network and nothing else.
_PREFIXES = ("vae.{network}.", "vae_{network}.", "vae_{network}_conv.", "{network}.", "")
_STATISTICS = ("per_channel_statistics.", "")
_MEAN_NAMES = ("mean_of_means", "mean", "latents_mean")
_STD_NAMES = ("std_of_means", "std", "latents_std")
# mlx-video's packs wrap each causal convolution in one more module.
_WRAPPED_CONV = re.compile(r"\b(conv_in|conv_out|conv1|conv2)\.conv\.conv\.")
_DIFFUSION_STEMS = ("det_stages.", "diff_blocks.")


class AmbiguousFolder(Exception):
    """Several files may contain the VAE: `candidates`, which is empty if there is no weight file at all."""

    def __init__(self, candidates: Sequence[str]) -> None:
        super().__init__(", ".join(candidates))
        self.candidates = tuple(candidates)


def choose_weights(names: Sequence[str]) -> tuple[str, ...]:
    """The files to open out of `names` (relative, with "/"): one file, one index of shards, or one file per network.

    Files of the VAE alone are preferred to files of the whole model, so that 40 GB are not downloaded for 2 GB.

    Raises:
        AmbiguousFolder: the names do not decide it.
    """
    present = set(names)
    for folder in ("", "vae/"):
        for pattern in _VAE_FILES:
            files = dict.fromkeys(folder + pattern.format(network) for network in NETWORKS)
            if found := tuple(name for name in files if name in present):
                return found
    weights = [name for name in names if name.endswith(".safetensors")]
    vae_files = [name for name in weights if "vae" in _stem(name) and "audio" not in _stem(name)]
    candidates = [name for name in vae_files if "conv" in _stem(name)] or vae_files
    if not candidates:
        for name in (f"model{INDEX_SUFFIX}", "model.safetensors"):
            if name in present:
                return (name,)
        candidates = weights
    if len(candidates) != 1:
        raise AmbiguousFolder(sorted(candidates))
    return tuple(candidates)


def find_network(archive: Archive, network: str) -> dict[str, TensorInfo]:
    """The tensors of a network ("encoder" or "decoder") by name within it; empty if the archive does not have it."""
    for prefix in _network_prefixes(network):
        inside = {name.removeprefix(prefix): info for name, info in archive.tensors.items() if name.startswith(prefix)}
        if network == "decoder" and any(name.startswith(_DIFFUSION_STEMS) for name in inside):
            raise CheckpointError(
                f"{archive.path}: this is the diffusion decoder of LTX-2.5 ({prefix}det_stages, ...), which is not "
                "supported yet; use the file of the convolutional decoder (its name ends in video-vae-conv)."
            )
        tensors = {_WRAPPED_CONV.sub(r"\1.conv.", name): info for name, info in inside.items()}
        has_conv_in = "conv_in.conv.weight" in tensors and len(tensors["conv_in.conv.weight"].shape) == 5
        if has_conv_in and any(name.startswith(f"{BLOCK_STEMS[network]}.") for name in tensors):
            return {name: info for name, info in tensors.items() if not _is_statistic(name)}
    return {}


def find_statistics(archive: Archive) -> tuple[TensorInfo, TensorInfo] | None:
    """The mean and the standard deviation of the latents, under any of their names; None unless both exist."""
    prefixes = ["vae.", *_network_prefixes("decoder"), *_network_prefixes("encoder")]
    for prefix in (prefix + stem for prefix in prefixes for stem in _STATISTICS):
        found = {
            _plain(name.removeprefix(prefix)): info for name, info in archive.tensors.items() if name.startswith(prefix)
        }
        mean = next((found[name] for name in _MEAN_NAMES if name in found), None)
        std = next((found[name] for name in _STD_NAMES if name in found), None)
        if mean and std:
            return mean, std
    return None


def _network_prefixes(network: str) -> list[str]:
    return [prefix.format(network=network) for prefix in _PREFIXES]


def _is_statistic(name: str) -> bool:
    return name.startswith("per_channel_statistics.") or _plain(name) in _MEAN_NAMES + _STD_NAMES


def _plain(name: str) -> str:
    """One spelling for `mean-of-means`, `_mean_of_means` and `mean_of_means`."""
    return name.lstrip("_").replace("-", "_")


def _stem(name: str) -> str:
    return PurePosixPath(name).stem.lower()
