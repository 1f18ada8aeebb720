"""The audio VAE and the vocoder of LTX-2, LTX-2.3 and LTX-2.5, and what `info` says about them."""

from ...errors import CheckpointError
from ..base import Description, Family, Network, NetworkDescription, Statistics
from ..specs import NetworkSpec
from ..vocoder.extension import make_vocoder
from ..vocoder.specs import vocoder_spec
from .config import AudioConfig
from .configuration import choose_config, configure
from .names import find
from .networks import AudioDecoder, AudioEncoder
from .specs import decoder_spec, encoder_spec

_MAX_KERNEL = 32


def _spec(config: AudioConfig, network: str) -> NetworkSpec:
    if network != "vocoder":
        return encoder_spec(config) if network == "encoder" else decoder_spec(config)
    if config.vocoder is None:
        raise CheckpointError("this audio VAE has no vocoder; use a file or a folder that has one.")
    return vocoder_spec(config.vocoder)


def _make(config: AudioConfig, network: str, statistics: Statistics | None) -> Network:
    if network == "vocoder" and config.vocoder is not None:
        return make_vocoder(config.vocoder)
    assert statistics is not None  # has_statistics
    return AudioEncoder(config, statistics) if network == "encoder" else AudioDecoder(config, statistics)


def _describe(config: AudioConfig) -> Description:
    names = ["encoder", "decoder"] + ([] if config.vocoder is None else ["vocoder"])
    networks = {}
    for name in names:
        layers = [
            (layer.name, layer.in_channels, layer.out_channels)
            for layer in _spec(config, name).layers
            if layer.in_channels != layer.out_channels or "conv" not in layer.name
        ]
        networks[name] = NetworkDescription({}, layers)
    entries = {
        "latent_channels": config.channels,
        "latent_bins": config.bins,
        "latents_per_second": config.latents_per_second,
        "sample_rate": None if config.vocoder is None else config.vocoder.sample_rate,
        "mel_bins": config.mel.bins,
        "causality": config.causality.value,
    }
    return Description(entries, networks)


AUDIO_VAE = Family(
    name="audio_vae",
    decoder="spectrogram",
    kernels=((3, 3), (1, 1), *((kernel,) for kernel in range(2, _MAX_KERNEL + 1))),
    has_statistics=True,
    config_type=AudioConfig,
    find=find,
    choose_config=choose_config,
    configure=configure,
    spec=_spec,
    make=_make,
    describe=_describe,
)
