"""The layer specs of the conv VAE's encoder and decoder, from the configuration alone. No MLX.

`rule` is that of all convolutions of the network.
"""

from dataclasses import dataclass, replace

from ...streaming.axis import Axis, WindowSpec
from ..convolution.rules import ConvRule, choose
from ..specs import Activation, ConvSpec, LayerSpec, NetworkSpec
from .block_types import STEMS, BlockConfig, conv_layer, embedder_weights
from .config import NetworkConfig, VAEConfig


@dataclass(frozen=True)
class BlockSpec:
    """A block and its layers."""

    config: BlockConfig
    layers: tuple[LayerSpec, ...]


@dataclass(frozen=True)
class ConvNetworkParts:
    """The layers of a conv encoder or decoder, grouped by module."""

    conv_in: ConvSpec
    blocks: tuple[BlockSpec, ...]
    conv_out: ConvSpec
    patch_size: int

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """The layers in order, without patchify or unpatchify."""
        return (self.conv_in, *(layer for block in self.blocks for layer in block.layers), self.conv_out)


def decoder_parts(config: VAEConfig, rule: ConvRule = choose) -> ConvNetworkParts:
    """The decoder's layers by module."""
    network = config.network("decoder")
    parts = _parts(network, STEMS["decoder"], config.patch_size, rule)
    if not network.options.has_timestep:
        return parts
    weights = (
        *parts.conv_out.weights,
        ("timestep_scale_multiplier", ()),
        *embedder_weights("last_time_embedder", 2 * network.last_width),
        ("last_scale_shift_table", (2, network.last_width)),
    )
    return replace(parts, conv_out=replace(parts.conv_out, weights=weights, is_modulated=True))


def encoder_parts(config: VAEConfig, rule: ConvRule = choose) -> ConvNetworkParts:
    """The encoder's layers by module. It outputs only the means, without the log-variance."""
    parts = _parts(config.network("encoder"), STEMS["encoder"], config.patch_size, rule)
    means = replace(parts.conv_out, conv_channels=config.latent_channels, out_channels=config.latent_channels)
    return replace(parts, conv_out=means)


def decoder_spec(config: VAEConfig, rule: ConvRule = choose) -> NetworkSpec:
    """The whole decoder: denormalized latents (B, T, H, W, C) to pixels (B, T', H', W', 3)."""
    parts = decoder_parts(config, rule)
    patch = parts.patch_size
    channels = parts.conv_out.out_channels
    unpatchify = LayerSpec("unpatchify", channels, channels // patch**2, up=(1, patch, patch))
    has_timestep = config.timestep_conditioning
    layers = (*parts.layers, unpatchify)
    return NetworkSpec(layers, has_timestep=has_timestep, has_latent_noise=has_timestep, patch_size=patch)


def encoder_spec(config: VAEConfig, rule: ConvRule = choose) -> NetworkSpec:
    """The whole encoder: pixels (B, T, H, W, 3) to the means of latents (B, T', H', W', C)."""
    parts = encoder_parts(config, rule)
    patch = parts.patch_size
    channels = parts.conv_in.in_channels
    window = WindowSpec(patch, patch)
    patchify = LayerSpec(
        "patchify", channels // patch**2, channels, down=(1, patch, patch), windows=(WindowSpec(), window, window)
    )
    return NetworkSpec((patchify, *parts.layers), stream_axes=(Axis.TIME,))


def network_spec(config: VAEConfig, network: str) -> NetworkSpec:
    """The whole encoder or decoder, by its name."""
    return {"encoder": encoder_spec, "decoder": decoder_spec}[network](config)


def _parts(network: NetworkConfig, stem: str, patch_size: int, rule: ConvRule) -> ConvNetworkParts:
    options = network.options._replace(rule=rule)
    blocks = tuple(
        BlockSpec(block, tuple(block.type.specs(block, options, f"{stem}.{index}")))
        for index, block in enumerate(network.blocks)
    )
    conv_in = conv_layer("conv_in", network.in_channels, network.first_width, options)
    conv_out = conv_layer("conv_out", network.last_width, network.out_channels, options, activation=Activation.CACHED)
    return ConvNetworkParts(conv_in, blocks, conv_out, patch_size)
