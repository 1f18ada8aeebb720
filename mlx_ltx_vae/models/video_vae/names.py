"""The names of the conv VAE's tensors in published checkpoints."""

import re

from ..base import NETWORKS, Found, Shapes
from .block_types import STEMS

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


def find(shapes: Shapes) -> Found:
    """The `find` of the family: networks, statistics, and the diffusion decoder of LTX-2.5."""
    networks = {network: names for network in NETWORKS if (names := _find_network(shapes, network))}
    return Found(networks, _find_statistics(shapes), _find_diffusion_decoder(shapes))


def _find_network(shapes: Shapes, network: str) -> dict[str, str]:
    for prefix in _network_prefixes(network):
        inside = {_original_name(name.removeprefix(prefix)): name for name in shapes if name.startswith(prefix)}
        conv_in = inside.get("conv_in.conv.weight")
        has_blocks = any(name.startswith(f"{STEMS[network]}.") for name in inside)
        if conv_in is not None and len(shapes[conv_in]) == 5 and has_blocks:
            return {
                name: stored
                for name, stored in inside.items()
                if not (name.startswith(_STATISTICS[0]) or _plain(name) in _MEAN_NAMES + _STD_NAMES)
            }
    return {}


def _find_statistics(shapes: Shapes) -> tuple[str, str] | None:
    prefixes = [*_ROOTS, *_network_prefixes("decoder"), *_network_prefixes("encoder")]
    for prefix in (prefix + stem for prefix in prefixes for stem in _STATISTICS):
        found = {_plain(name.removeprefix(prefix)): name for name in shapes if name.startswith(prefix)}
        mean = next((found[name] for name in _MEAN_NAMES if name in found), None)
        std = next((found[name] for name in _STD_NAMES if name in found), None)
        if mean is not None and std is not None:
            return mean, std
    return None


def _find_diffusion_decoder(shapes: Shapes) -> dict[str, str]:
    stems = tuple(prefix + stem for prefix in _network_prefixes("decoder") for stem in _DIFFUSION_STEMS)
    tensor = next((name for name in shapes if name.startswith(stems)), None)
    if tensor is None:
        return {}
    return {
        "decoder": f"this is the diffusion decoder of LTX-2.5 ({tensor}, ...), which is not supported yet; use the "
        "file of the convolutional decoder (its name ends in video-vae-conv), or load the encoder alone with "
        "decoder=False (or from_weights without the decoder's arrays)."
    }


def _network_prefixes(network: str) -> list[str]:
    return [prefix.format(network=network) for prefix in _PREFIXES]


def _original_name(name: str) -> str:
    return _BARE_NORM.sub(r".norm3.norm.\1", _WRAPPED_CONV.sub(r"\1.conv.", name))


def _plain(name: str) -> str:
    """One spelling for `mean-of-means`, `_mean_of_means` and `mean_of_means`."""
    return name.lstrip("_").replace("-", "_")
