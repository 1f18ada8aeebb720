"""The configuration of a VAE that states none, inferred from the names and shapes of its tensors."""

import json
import math
from collections.abc import Mapping
from typing import Any

from ..errors import CheckpointError
from ..models.video_vae.config import parse_vae_config
from ..models.video_vae.generations import GENERATIONS
from ..models.video_vae.specs import decoder_spec, encoder_spec
from .stored_network import StoredNetwork

_CONFIG_PLACES = "the metadata entry 'config' of the file, or a config.json beside it"


def infer_config(networks: Mapping[str, StoredNetwork], source: str) -> dict[str, Any]:
    """The configuration of the one published generation that has these tensors, in the original's vocabulary.

    Args:
        networks: the "encoder", the "decoder" or both.
        source: what error messages call the checkpoint.

    Raises:
        CheckpointError: no generation matches, or several do.
    """
    widths = _widths(networks)
    matches = {}
    for generation, known in GENERATIONS.items():
        raw = {"_class_name": "CausalVideoAutoencoder", **known, **widths}
        config = parse_vae_config(raw, source)
        specs = {"encoder": encoder_spec(config), "decoder": decoder_spec(config)}
        if all(specs[network].weights.keys() == stored.tensors.keys() for network, stored in networks.items()):
            matches[generation] = raw
    if len(matches) != 1:
        result = f"match {' and '.join(matches)}" if matches else "match no published generation"
        raise CheckpointError(
            f"{source}: it has no configuration, and its tensors {result}; add one as {_CONFIG_PLACES}."
        )
    return json.loads(json.dumps(next(iter(matches.values()))))  # lists in place of tuples, as in a file


def _widths(networks: Mapping[str, StoredNetwork]) -> dict[str, int]:
    """Latent channels, patch size and base widths. A network that is missing gets the base width of the other."""
    widths: dict[str, int] = {}
    patch_channels = 0
    if "encoder" in networks:
        base, patch_channels = networks["encoder"].channels("conv_in.conv.weight")
        moments, _ = networks["encoder"].channels("conv_out.conv.weight")
        widths = {"encoder_base_channels": base, "decoder_base_channels": base, "latent_channels": moments - 1}
    if "decoder" in networks:
        _, latent_channels = networks["decoder"].channels("conv_in.conv.weight")
        patch_channels, base = networks["decoder"].channels("conv_out.conv.weight")
        widths = {"encoder_base_channels": base} | widths
        widths |= {"decoder_base_channels": base, "latent_channels": latent_channels}
    return {**widths, "patch_size": math.isqrt(patch_channels // 3)}
