"""The names of the tensors of audio VAEs and vocoders in published checkpoints."""

import re

from ..base import NETWORKS, Found
from ..specs import Shapes
from ..stored import find_statistics

# Prefixes of a network's names: the original files, whole models of other programs, and files of the audio VAE alone.
_ROOTS = ("audio_vae.", "model.audio_vae.", "")
_VOCODER_PREFIXES = ("vocoder.", "audio_vae.vocoder.", "model.vocoder.", "")
_VOCODER_PARTS = ("vocoder.", "bwe_generator.", "mel_stft.")
_GENERATOR_STEMS = ("conv_pre.", "ups.", "resblocks.", "act_post.", "conv_post.")
_FIRST, _SECOND = "vocoder.conv_pre.weight", "bwe_generator.conv_pre.weight"
_MEAN_NAMES = ("mean_of_means", "latents_mean")
_STD_NAMES = ("std_of_means", "latents_std")
# The names of diffusers for those of the original files.
_DIFFUSERS = (
    (re.compile(r"\bconv_in\b"), "conv_pre"),
    (re.compile(r"\bconv_out\b"), "conv_post"),
    (re.compile(r"\bact_out\b"), "act_post"),
    (re.compile(r"\bupsamplers\b"), "ups"),
    (re.compile(r"\bresnets\b"), "resblocks"),
    (re.compile(r"\bdownsample\.filter\b"), "downsample.lowpass.filter"),
)


def find(shapes: Shapes) -> Found:
    """The `find` of the family: encoder, decoder and vocoder, and the statistics of the latents."""
    networks = {network: names for network in NETWORKS if (names := _find_network(shapes, network))}
    if vocoder := _find_vocoder(shapes):
        networks["vocoder"] = vocoder
    return Found(networks, find_statistics(shapes, _ROOTS, _MEAN_NAMES, _STD_NAMES))


def _find_network(shapes: Shapes, network: str) -> dict[str, str]:
    for prefix in (f"{root}{network}." for root in _ROOTS):
        inside = {name.removeprefix(prefix): name for name in shapes if name.startswith(prefix)}
        conv_in = inside.get("conv_in.conv.weight")
        if conv_in is not None and len(shapes[conv_in]) == 4 and "mid.block_1.conv1.conv.weight" in inside:
            return inside
    return {}


def _find_vocoder(shapes: Shapes) -> dict[str, str]:
    candidates = [_inside(shapes, prefix) for prefix in _VOCODER_PREFIXES]
    for names in candidates:
        if _SECOND in names and _FIRST in names:
            return names
        if _SECOND in names and "conv_pre.weight" in names:  # an MLX pack, with the first generator one level up
            return {
                name if name.startswith(_VOCODER_PARTS) else f"vocoder.{name}": stored for name, stored in names.items()
            }
    return next((names for names in candidates if "conv_pre.weight" in names), {})


def _inside(shapes: Shapes, prefix: str) -> dict[str, str]:
    """Tensors with a prefix by the original names; without a prefix, those that can be a vocoder's."""
    names = {_original_name(name.removeprefix(prefix)): name for name in shapes if name.startswith(prefix)}
    return {
        name: stored
        for name, stored in names.items()
        if not name.endswith(".inverse_basis")  # nothing uses it
        and (prefix or name.startswith((*_VOCODER_PARTS, *_GENERATOR_STEMS)))
    }


def _original_name(name: str) -> str:
    for pattern, original in _DIFFUSERS:
        name = pattern.sub(original, name)
    return name
