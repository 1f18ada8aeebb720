"""Names of tensors in published checkpoints: those of the video VAE's networks and statistics."""

import re

from .files import Archive, TensorInfo

NETWORKS = ("encoder", "decoder")
BLOCK_STEMS = {"encoder": "down_blocks", "decoder": "up_blocks"}

# Prefixes of a network's names: the original files, whole models of other programs, packs of MLX ports (the second for
# LTX-2.5), split files, and files with one network and nothing else.
_ROOTS = ("vae.", "model.vae.", "first_stage_model.")
_PREFIXES = (*(f"{root}{{network}}." for root in _ROOTS), "vae_{network}.", "vae_{network}_conv.", "{network}.", "")
_STATISTICS = ("per_channel_statistics.", "")
_MEAN_NAMES = ("mean_of_means", "mean", "latents_mean")
_STD_NAMES = ("std_of_means", "std", "latents_std")
# mlx-video's packs wrap each causal convolution in one more module.
_WRAPPED_CONV = re.compile(r"\b(conv_in|conv_out|conv1|conv2)\.conv\.conv\.")
# PrunaVAED's file leaves out the module in which the original wraps this layer norm.
_BARE_NORM = re.compile(r"\.norm3\.(weight|bias)$")
_DIFFUSION_STEMS = ("det_stages.", "diff_blocks.")


def find_network(archive: Archive, network: str) -> dict[str, TensorInfo]:
    """The tensors of a network ("encoder" or "decoder") by name within it; empty if the archive does not have it.

    The diffusion decoder of LTX-2.5 is no such network; see `find_diffusion_decoder`.
    """
    for prefix in _network_prefixes(network):
        inside = {name.removeprefix(prefix): info for name, info in archive.tensors.items() if name.startswith(prefix)}
        tensors = {_original_name(name): info for name, info in inside.items()}
        has_conv_in = "conv_in.conv.weight" in tensors and len(tensors["conv_in.conv.weight"].shape) == 5
        if has_conv_in and any(name.startswith(f"{BLOCK_STEMS[network]}.") for name in tensors):
            return {name: info for name, info in tensors.items() if not _is_statistic(name)}
    return {}


def find_diffusion_decoder(archive: Archive) -> str | None:
    """The name of a tensor of the diffusion decoder of LTX-2.5; None if the archive does not have it."""
    stems = tuple(prefix + stem for prefix in _network_prefixes("decoder") for stem in _DIFFUSION_STEMS)
    return next((name for name in archive.tensors if name.startswith(stems)), None)


def find_statistics(archive: Archive) -> tuple[TensorInfo, TensorInfo] | None:
    """The mean and the standard deviation of the latents, under any of their names; None unless both exist."""
    prefixes = [*_ROOTS, *_network_prefixes("decoder"), *_network_prefixes("encoder")]
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


def _original_name(name: str) -> str:
    return _BARE_NORM.sub(r".norm3.norm.\1", _WRAPPED_CONV.sub(r"\1.conv.", name))


def _is_statistic(name: str) -> bool:
    return name.startswith("per_channel_statistics.") or _plain(name) in _MEAN_NAMES + _STD_NAMES


def _plain(name: str) -> str:
    """One spelling for `mean-of-means`, `_mean_of_means` and `mean_of_means`."""
    return name.lstrip("_").replace("-", "_")
