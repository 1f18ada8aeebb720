"""Tensor names of the original files, under every prefix that published files put in front of them."""

import re

from ..errors import CheckpointError
from .files import Archive, TensorInfo

NETWORKS = ("encoder", "decoder")
BLOCK_STEMS = {"encoder": "down_blocks", "decoder": "up_blocks"}

# Prefixes of a network's names: the original files, packs of MLX ports (the third for LTX-2.5), split files, and files
# with one network and nothing else.
_PREFIXES = ("vae.{network}.", "vae_{network}.", "vae_{network}_conv.", "{network}.", "")
_STATISTICS = ("per_channel_statistics.", "")
_MEAN_NAMES = ("mean_of_means", "mean", "latents_mean")
_STD_NAMES = ("std_of_means", "std", "latents_std")
# mlx-video's packs wrap each causal convolution in one more module.
_WRAPPED_CONV = re.compile(r"\b(conv_in|conv_out|conv1|conv2)\.conv\.conv\.")
_DIFFUSION_STEMS = ("det_stages.", "diff_blocks.")


def find_network(archive: Archive, network: str) -> dict[str, TensorInfo]:
    """The tensors of a network ("encoder" or "decoder") by name within it; empty if the archive does not have it.

    Raises:
        CheckpointError: the decoder is the diffusion decoder of LTX-2.5.
    """
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
