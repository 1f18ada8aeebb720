"""The configuration of a checkpoint: stated in its files or beside them, or inferred from its tensors."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..models.video_vae.config import parse_vae_config
from ..models.video_vae.generations import GENERATIONS
from ..models.video_vae.specs import decoder_spec, encoder_spec
from .diffusers import is_diffusers_config
from .files import Archive, read_json
from .names import CONFIG_NAMES
from .stored_network import StoredNetwork

_DIFFUSION_CLASS = "CausalDiffusionVAE"
_CLASSES = ("CausalVideoAutoencoder", _DIFFUSION_CLASS)


def find_config(archives: Sequence[Archive], folders: Sequence[Path]) -> dict[str, Any] | None:
    """The first configuration of a whole VAE, in the vocabulary of the original or of diffusers, or None.

    The metadata is searched first, then `config.json` and `embedded_config.json` in `folders`. Configurations of
    anything else are skipped: a transformer, a single network in a port's own vocabulary, and, in JSON files, the
    diffusion decoder. (A pack may contain both decoders, and `find_network` has rejected the tensors of that one.)
    """
    for content in _metadata(archives):
        if entry := _vae_entry(content):
            return entry
    files = (folder / name for folder in folders for name in CONFIG_NAMES)
    for content in (read_json(file) for file in files if file.is_file()):
        entry = _vae_entry(content)
        if entry and entry.get("_class_name") != _DIFFUSION_CLASS:
            return entry
    return None


def infer_config(networks: Mapping[str, StoredNetwork], source: str) -> dict[str, Any]:
    """The configuration of the one published generation that has these tensors, in the original's vocabulary."""
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
            f"{source}: it has no configuration, and its tensors {result}; add one as the metadata entry 'config' of "
            "the file, or a config.json beside it."
        )
    return json.loads(json.dumps(next(iter(matches.values()))))  # lists in place of tuples, as in a file


def _metadata(archives: Sequence[Archive]) -> Iterator[object]:
    for archive in archives:
        if "config" in archive.metadata:
            try:
                yield json.loads(archive.metadata["config"])
            except (TypeError, ValueError, RecursionError) as error:
                raise CheckpointError(
                    f"{archive.path}: its metadata entry 'config' is not JSON ({error}); download the file again."
                ) from error


def _vae_entry(content: object) -> dict[str, Any] | None:
    """The part that configures a whole VAE: the entry `vae`, the whole object, or None."""
    for raw in (content.get("vae"), content) if isinstance(content, Mapping) else ():
        if isinstance(raw, Mapping) and (
            "blocks" in raw
            or {"encoder_blocks", "decoder_blocks"} <= raw.keys()
            or raw.get("_class_name") in _CLASSES
            or is_diffusers_config(raw)
        ):
            return dict(raw)
    return None


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
