"""What a VAE without a configuration is, told from the names and shapes of its tensors."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..errors import CheckpointError
from ..models.video_vae.config import GENERATIONS, BlockConfig, BlockKind, NetworkConfig, parse_vae_config
from .original import BLOCK_STEMS
from .weight_layout import KernelLayout, Shape, kernel_channels

_CONFIG_PLACES = "the metadata entry 'config' of the file, or a config.json beside it"


class HalfShapes(NamedTuple):
    """The shape of every tensor of a half by its original name within the half, and how its kernels are stored."""

    shapes: Mapping[str, Shape]
    layout: KernelLayout

    def channels(self, kernel: str) -> tuple[int, int]:
        """(output, input) channels of a kernel, zeros if it is not there."""
        return kernel_channels(self.shapes[kernel], self.layout) if kernel in self.shapes else (0, 0)


class _Block(NamedTuple):
    """What tensor names tell about a block."""

    kind: BlockKind | None
    num_layers: int
    inject_noise: bool


class _Structure(NamedTuple):
    """What tensor names tell about a half."""

    blocks: tuple[_Block, ...]
    timestep_conditioning: bool


def recognise(halves: Mapping[str, HalfShapes], source: str) -> dict[str, Any]:
    """The configuration of the one published generation that has these tensors, in the original vocabulary.

    Args:
        halves: the "encoder", the "decoder" or both.
        source: what to call the checkpoint in errors.

    Raises:
        CheckpointError: none of the generations fits, or several do.
    """
    structures = {half: _structure_of_names(half, found.shapes) for half, found in halves.items()}
    widths = _widths(halves)
    matches = {}
    for generation, known in GENERATIONS.items():
        raw = {"_class_name": "CausalVideoAutoencoder", **known, **widths}
        config = parse_vae_config(raw, source)
        networks = {"encoder": config.encoder, "decoder": config.decoder}
        if all(_structure_of_config(networks[half]) == structure for half, structure in structures.items()):
            matches[generation] = raw
    if len(matches) != 1:
        likeness = f"its tensors fit {' and '.join(matches)}" if matches else "its tensors fit no published generation"
        raise CheckpointError(f"{source}: it carries no configuration and {likeness}; put one into {_CONFIG_PLACES}.")
    return json.loads(json.dumps(next(iter(matches.values()))))  # lists, as a file would have them


def _widths(halves: Mapping[str, HalfShapes]) -> dict[str, int]:
    """Latent channels, patch size and base widths. A half that is absent gets the other's base width."""
    widths: dict[str, int] = {}
    if "encoder" in halves:
        base, patch_channels = halves["encoder"].channels("conv_in.conv.weight")
        moments, _ = halves["encoder"].channels("conv_out.conv.weight")
        widths = {"encoder_base_channels": base, "decoder_base_channels": base, "latent_channels": moments - 1}
    if "decoder" in halves:
        _, latent_channels = halves["decoder"].channels("conv_in.conv.weight")
        patch_channels, base = halves["decoder"].channels("conv_out.conv.weight")
        widths = {"encoder_base_channels": base} | widths
        widths |= {"decoder_base_channels": base, "latent_channels": latent_channels}
    return {**widths, "patch_size": math.isqrt(patch_channels // 3)}


def _structure_of_names(half: str, names: Iterable[str]) -> _Structure:
    blocks: dict[int, set[str]] = {}
    timestep_conditioning = False
    for name in names:
        stem, _, rest = name.partition(".")
        timestep_conditioning |= stem == "last_time_embedder"
        index, _, inside = rest.partition(".")
        if stem == BLOCK_STEMS[half] and index.isdigit():
            blocks.setdefault(int(index), set()).add(inside)
    return _Structure(tuple(_block_of_names(blocks[index]) for index in sorted(blocks)), timestep_conditioning)


def _block_of_names(names: set[str]) -> _Block:
    parts = [name.split(".") for name in names]
    first = {part[0] for part in parts}
    layers = {part[1] for part in parts if part[0] == "res_blocks"}
    noise = any("per_channel_scale1" in part for part in parts)
    if layers:
        return _Block(BlockKind.RES_STACK, len(layers), noise)
    if "conv1" in first:
        return _Block(BlockKind.RES_CHANGE, 1, noise)
    if "to_qkv" in first:
        return _Block(BlockKind.ATTENTION, 1, noise)
    if "conv" in first:
        shuffled = any(part[:2] == ["conv", "conv"] for part in parts)
        return _Block(BlockKind.SHUFFLE if shuffled else BlockKind.STRIDED, 1, noise)
    return _Block(None, 1, noise)


def _structure_of_config(network: NetworkConfig) -> _Structure:
    def block(config: BlockConfig) -> _Block:
        return _Block(config.kind, config.num_layers, config.inject_noise)

    return _Structure(tuple(block(config) for config in network.blocks), network.timestep_conditioning)
