"""The conv VAE of LTX-Video, LTX-2, LTX-2.3 and LTX-2.5, and what `info` says about it."""

from functools import partial

from ..base import Description, Family, Network, NetworkDescription, Statistics
from ..convolution.rules import ConvRule, choose
from .block_types import KERNEL, BlockConfig
from .config import NetworkConfig, VAEConfig, parse_vae_config
from .configuration import choose_config, configure
from .generations import GENERATIONS, PRUNA_VAED
from .names import find
from .network_specs import decoder_spec, network_spec
from .networks import ConvDecoder, ConvEncoder

_USUAL_LATENTS = (16, 16, 24)  # of 121 frames of 768x512


def _make(config: VAEConfig, network: str, statistics: Statistics | None, rule: ConvRule = choose) -> Network:
    assert statistics is not None  # has_statistics
    return ConvEncoder(config, statistics, rule) if network == "encoder" else ConvDecoder(config, statistics, rule)


def _published(name: str, base_channels: int) -> VAEConfig:
    widths = dict.fromkeys(("decoder_base_channels", "encoder_base_channels"), base_channels)
    return parse_vae_config({**GENERATIONS[name], **widths}, name)


def _describe(config: VAEConfig) -> Description:
    """Each block has its `stride` as (time, height, width)."""
    entries = {
        "latent_channels": config.latent_channels,
        "patch_size": config.patch_size,
        "scale": config.scale._asdict(),
        "causal_decoder": config.causal_decoder,
        "timestep_conditioning": config.timestep_conditioning,
    }
    networks = {name: _describe_network(network) for name, network in config.networks.items()}
    patches = f"patches are {config.patch_size}x{config.patch_size}"
    return Description(entries, networks, patches, _describe_decoder(config), _describe_work(config))


def _describe_network(network: NetworkConfig) -> NetworkDescription:
    blocks = [
        {
            "kind": block.type.name,
            "in_channels": block.in_channels,
            "out_channels": block.out_channels,
            "layers": block.num_layers,
            "stride": list(block.stride),
            "residual": block.residual,
            "inject_noise": block.inject_noise,
        }
        for block in network.blocks
    ]
    entries = {
        "in_channels": network.in_channels,
        "out_channels": network.out_channels,
        "causal": network.options.causal,
        "padding": network.options.padding.value,
        "blocks": blocks,
    }
    layers = [("conv_in", network.in_channels, network.blocks[0].in_channels)]
    layers += [(_describe_block(block), block.in_channels, block.out_channels) for block in network.blocks]
    return NetworkDescription(entries, [*layers, ("conv_out", network.blocks[-1].out_channels, network.out_channels)])


def _describe_decoder(config: VAEConfig) -> str:
    if config.decoder is None:
        return ""
    causal = "causal" if config.causal_decoder else "not causal"
    timestep = "takes a timestep and noise" if config.timestep_conditioning else "takes no timestep"
    decoder = config.decoder.options.padding.value
    encoder = decoder if config.encoder is None else config.encoder.options.padding.value
    other = "" if encoder == decoder else f" (the encoder with {encoder})"
    return f"{causal}, {timestep}, pads with {decoder}{other}"


def _describe_work(config: VAEConfig) -> str:
    """What a pruned decoder computes, as a share of the whole decoder with the same first width."""
    if config.generation != PRUNA_VAED or config.decoder is None:
        return ""
    published = parse_vae_config(GENERATIONS["LTX-2.3"], "LTX-2.3").network("decoder").blocks
    base = max(1, published[-1].out_channels * config.decoder.blocks[0].in_channels // published[0].in_channels)
    ends = {"latent_channels": config.latent_channels, "patch_size": config.patch_size}
    whole = parse_vae_config({**GENERATIONS["LTX-2.3"], **ends, "decoder_base_channels": base}, "LTX-2.3")
    work, of_whole = (decoder_spec(each).multiply_adds(_USUAL_LATENTS) for each in (config, whole))
    return f"{100 * work / of_whole:.0f} % of LTX-2.3's work"


def _describe_block(block: BlockConfig) -> str:
    """A block in a few words, such as "4 residual" or "depth to space 2x2x2 + skip" (time x height x width)."""
    count = f"{block.num_layers} " if block.num_layers > 1 else ""
    stride = "" if set(block.stride) == {1} else f" {'x'.join(map(str, block.stride))}"
    extras = (" + skip" if block.residual else "") + (" + noise" if block.inject_noise else "")
    return f"{count}{block.type.name}{stride}{extras}"


CONV_VAE = Family(
    name="video_vae",
    decoder="convolutional",
    kernels=(KERNEL,),
    has_statistics=True,
    config_type=VAEConfig,
    find=find,
    choose_config=choose_config,
    configure=configure,
    spec=network_spec,
    make=_make,
    describe=_describe,
    published={name.split()[-1].lower(): partial(_published, name) for name in GENERATIONS},
)
