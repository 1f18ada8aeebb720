"""What `info` says about a conv VAE."""

from typing import Any

from ..base import Description, NetworkDescription
from .block_types import BlockConfig
from .config import NetworkConfig, VAEConfig


def describe(config: VAEConfig) -> Description:
    """See `Description`. Each block has its `stride` as (time, height, width)."""
    entries = {
        "latent_channels": config.latent_channels,
        "patch_size": config.patch_size,
        "scale": config.scale._asdict(),
        "causal_decoder": config.causal_decoder,
        "timestep_conditioning": config.timestep_conditioning,
    }
    return Description(
        entries,
        {name: _describe_network(network) for name, network in config.networks.items()},
        latents=f"patches are {config.patch_size}x{config.patch_size}",
        decoder=_describe_decoder(config),
    )


def _describe_network(network: NetworkConfig) -> NetworkDescription:
    entries = {
        "in_channels": network.in_channels,
        "out_channels": network.out_channels,
        "causal": network.options.causal,
        "padding": network.options.padding.value,
        "blocks": [_block_entries(block) for block in network.blocks],
    }
    layers = [("conv_in", network.in_channels, network.first_width)]
    layers += [(_describe_block(block), block.in_channels, block.out_channels) for block in network.blocks]
    return NetworkDescription(entries, [*layers, ("conv_out", network.last_width, network.out_channels)])


def _describe_decoder(config: VAEConfig) -> str:
    if config.decoder is None:
        return ""
    causal = "causal" if config.causal_decoder else "not causal"
    timestep = "takes a timestep and noise" if config.timestep_conditioning else "takes no timestep"
    decoder = config.decoder.options.padding.value
    encoder = decoder if config.encoder is None else config.encoder.options.padding.value
    return f"{causal}, {timestep}, pads with {decoder}" + (
        "" if encoder == decoder else f" (the encoder with {encoder})"
    )


def _block_entries(block: BlockConfig) -> dict[str, Any]:
    return {
        "kind": block.type.name,
        "in_channels": block.in_channels,
        "out_channels": block.out_channels,
        "layers": block.num_layers,
        "stride": list(block.stride),
        "residual": block.residual,
        "inject_noise": block.inject_noise,
    }


def _describe_block(block: BlockConfig) -> str:
    """A block in a few words, such as "4 residual" or "depth to space 2x2x2 + skip" (time x height x width)."""
    count = f"{block.num_layers} " if block.num_layers > 1 else ""
    stride = "" if set(block.stride) == {1} else f" {'x'.join(map(str, block.stride))}"
    extras = (" + skip" if block.residual else "") + (" + noise" if block.inject_noise else "")
    return f"{count}{block.type.name}{stride}{extras}"
