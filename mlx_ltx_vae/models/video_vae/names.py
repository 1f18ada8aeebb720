"""The names of the conv VAE's tensors in published checkpoints."""

import re

from ..base import NETWORKS, Found, Shapes
from ..stored_names import STATISTICS_PREFIXES, find_statistics, plain_name
from .block_types import STEMS

# Prefixes of a network's names: the original files, whole models of other programs, packs of MLX ports (the second for
# LTX-2.5), split files, and files with one network and nothing else.
_ROOTS = ("vae.", "model.vae.", "first_stage_model.")
_PREFIXES = (*(f"{root}{{network}}." for root in _ROOTS), "vae_{network}.", "vae_{network}_conv.", "{network}.", "")
_MEAN_NAMES = ("mean_of_means", "mean", "latents_mean")
_STD_NAMES = ("std_of_means", "std", "latents_std")
# mlx-video's packs wrap each causal convolution in one more module.
_WRAPPED_CONV = re.compile(r"\b(conv_in|conv_out|conv1|conv2)\.conv\.conv\.")
# PrunaVAED's file leaves out the module in which the original wraps this layer norm.
_BARE_NORM = re.compile(r"\.norm3\.(weight|bias)$")


def find(shapes: Shapes) -> Found:
    """The `find` of the family."""
    networks = {network: names for network in NETWORKS if (names := _find_network(shapes, network))}
    return Found(networks, _find_statistics(shapes))


def _find_network(shapes: Shapes, network: str) -> dict[str, str]:
    for prefix in _network_prefixes(network):
        inside = {_original_name(name.removeprefix(prefix)): name for name in shapes if name.startswith(prefix)}
        conv_in = inside.get("conv_in.conv.weight")
        has_blocks = any(name.startswith(f"{STEMS[network]}.") for name in inside)
        if conv_in is not None and len(shapes[conv_in]) == 5 and has_blocks:
            return {
                name: stored
                for name, stored in inside.items()
                if not (name.startswith(STATISTICS_PREFIXES[0]) or plain_name(name) in _MEAN_NAMES + _STD_NAMES)
            }
    return {}


def _find_statistics(shapes: Shapes) -> tuple[str, str] | None:
    prefixes = [*_ROOTS, *_network_prefixes("decoder"), *_network_prefixes("encoder")]
    return find_statistics(shapes, prefixes, _MEAN_NAMES, _STD_NAMES)


def _network_prefixes(network: str) -> list[str]:
    return [prefix.format(network=network) for prefix in _PREFIXES]


def _original_name(name: str) -> str:
    return _BARE_NORM.sub(r".norm3.norm.\1", _WRAPPED_CONV.sub(r"\1.conv.", name))
