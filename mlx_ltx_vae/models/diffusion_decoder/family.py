"""LTX-2.5's VAE with the diffusion decoder, and what `info` says about it."""

from typing import Any

from ..base import Description, Family, Network, NetworkDescription, Statistics
from ..video_vae.block_types import KERNEL
from ..video_vae.family import CONV_VAE
from ..video_vae.networks import ConvEncoder
from .config import DecoderConfig, DiffusionVAEConfig, StageConfig
from .configuration import choose_config, configure
from .generations import ltx_2_5
from .names import find
from .network_specs import network_spec
from .networks import DiffusionDecoder


def _make(config: DiffusionVAEConfig, network: str, statistics: Statistics | None) -> Network:
    assert statistics is not None  # has_statistics
    if network == "encoder":
        assert config.encoder is not None  # its spec was made
        return ConvEncoder(config.encoder, statistics)
    assert config.decoder is not None
    return DiffusionDecoder(config.decoder, statistics)


def _describe(config: DiffusionVAEConfig) -> Description:
    entries: dict[str, Any] = {"latent_channels": config.latent_channels, "scale": config.scale._asdict()}
    networks: dict[str, NetworkDescription] = {}
    if config.encoder is not None:
        networks["encoder"] = CONV_VAE.describe(config.encoder).networks["encoder"]
    if config.decoder is None:
        return Description(entries, networks)
    decoder = config.decoder
    entries |= {"patch_size": decoder.patch_size, "denoising_steps": decoder.steps}
    networks["decoder"] = _describe_decoder(decoder)
    steps = "1 step" if decoder.steps == 1 else f"{decoder.steps} steps"
    words = f"denoises in {steps} (predicts {decoder.prediction.name.lower()}), takes noise"
    return Description(entries, networks, f"patches are {decoder.patch_size}x{decoder.patch_size}", words)


def _describe_decoder(config: DecoderConfig) -> NetworkDescription:
    stages = [*config.context_stages, config.pixel_stage]
    entries = {
        "in_channels": config.latent_channels,
        "out_channels": config.pixel_channels,
        "head_dim": config.head_dim,
        "prediction": config.prediction.value,
        "denoising_steps": config.steps,
        "stages": [
            {
                "channels": stage.channels,
                "depth": stage.depth,
                "kernel": list(stage.kernel),
                "up": list(stage.up),
                "out_channels": stage.out_channels or config.pixel_channels,
            }
            for stage in stages
        ],
    }
    layers = [("conv_in", config.latent_channels, stages[0].channels)]
    layers += [(_describe_stage(stage), stage.channels, stage.out_channels) for stage in config.context_stages]
    pixels = config.pixel_stage
    layers.append((f"{pixels.depth} denoising {_by(pixels.kernel)}", config.pixel_channels, pixels.channels))
    return NetworkDescription(entries, [*layers, ("conv_out", pixels.channels, config.pixel_channels)])


def _describe_stage(stage: StageConfig) -> str:
    return f"{stage.depth} attention {_by(stage.kernel)}, up {_by(stage.up)}"


def _by(extents: tuple[int, int, int]) -> str:
    return "x".join(map(str, extents))


DIFFUSION_VAE = Family(
    name="diffusion_decoder",
    decoder="diffusion",
    kernels=(KERNEL,),
    has_statistics=True,
    config_type=DiffusionVAEConfig,
    find=find,
    choose_config=choose_config,
    configure=configure,
    spec=network_spec,
    make=_make,
    describe=_describe,
    published={"ltx-2.5-diffusion": ltx_2_5},
)
