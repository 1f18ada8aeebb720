"""The layer specs of the conv VAE's encoder and decoder, from the configuration alone. No MLX."""

from dataclasses import replace
from typing import NamedTuple

from ...streaming.axis import Axis, WindowSpec
from ..convolution.rules import ConvRule, choose
from ..specs import Activation, ConvSpec, LayerSpec, NetworkSpec
from .block_types import STEMS, BlockType, conv_layer, embedder_weights
from .config import VAEConfig


class ConvNetworkParts(NamedTuple):
    """The layers of a conv encoder or decoder by module, without patchify or unpatchify."""

    conv_in: ConvSpec
    blocks: list[tuple[BlockType, list[LayerSpec]]]
    conv_out: ConvSpec

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        return (self.conv_in, *(layer for _, layers in self.blocks for layer in layers), self.conv_out)


def decoder_parts(config: VAEConfig, rule: ConvRule = choose) -> ConvNetworkParts:
    """With a timestep, `conv_out` is modulated by an embedding of its own."""
    parts = _parts(config, "decoder", rule)
    if not config.timestep_conditioning:
        return parts
    width = parts.conv_out.in_channels
    weights = (
        *parts.conv_out.weights,
        ("timestep_scale_multiplier", ()),
        *embedder_weights("last_time_embedder", 2 * width),
        ("last_scale_shift_table", (2, width)),
    )
    return parts._replace(conv_out=replace(parts.conv_out, weights=weights, is_modulated=True))


def encoder_parts(config: VAEConfig, rule: ConvRule = choose) -> ConvNetworkParts:
    """It outputs only the means, without the log-variance."""
    parts = _parts(config, "encoder", rule)
    means = replace(parts.conv_out, conv_channels=config.latent_channels, out_channels=config.latent_channels)
    return parts._replace(conv_out=means)


def decoder_spec(config: VAEConfig, rule: ConvRule = choose) -> NetworkSpec:
    """The whole decoder: denormalized latents (B, T, H, W, C) to pixels (B, T', H', W', 3)."""
    parts, patch, has_timestep = decoder_parts(config, rule), config.patch_size, config.timestep_conditioning
    channels = parts.conv_out.out_channels
    unpatchify = LayerSpec("unpatchify", channels, channels // patch**2, up=(1, patch, patch))
    layers = (*parts.layers, unpatchify)
    return NetworkSpec(layers, has_timestep=has_timestep, has_latent_noise=has_timestep, patch_size=patch)


def encoder_spec(config: VAEConfig, rule: ConvRule = choose) -> NetworkSpec:
    """The whole encoder: pixels (B, T, H, W, 3) to the means of latents (B, T', H', W', C)."""
    parts, patch = encoder_parts(config, rule), config.patch_size
    channels = parts.conv_in.in_channels
    down, windows = (1, patch, patch), (WindowSpec(), WindowSpec(patch, patch), WindowSpec(patch, patch))
    patchify = LayerSpec("patchify", channels // patch**2, channels, down=down, windows=windows)
    return NetworkSpec((patchify, *parts.layers), stream_axes=(Axis.TIME,))


def network_spec(config: VAEConfig, network: str) -> NetworkSpec:
    """The encoder or the decoder, by its name."""
    return encoder_spec(config) if network == "encoder" else decoder_spec(config)


def _parts(config: VAEConfig, name: str, rule: ConvRule) -> ConvNetworkParts:
    network = config.network(name)
    options = network.options._replace(rule=rule)
    blocks = [
        (block.type, block.type.specs(block, options, f"{STEMS[name]}.{index}"))
        for index, block in enumerate(network.blocks)
    ]
    first, last = network.blocks[0], network.blocks[-1]
    conv_in = conv_layer("conv_in", network.in_channels, first.in_channels, options)
    conv_out = conv_layer("conv_out", last.out_channels, network.out_channels, options, activation=Activation.CACHED)
    return ConvNetworkParts(conv_in, blocks, conv_out)
