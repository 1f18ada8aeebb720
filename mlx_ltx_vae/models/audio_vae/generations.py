"""The configurations of the published audio VAEs. No MLX."""

from dataclasses import replace

from ..vocoder.specs import End, ExtensionConfig, GeneratorConfig, VocoderConfig
from .config import AudioConfig

#: What `AudioConfig.generation` calls them; LTX-2.5 has that of LTX-2.3.
LTX_2, LTX_2_3 = "LTX-2 audio", "LTX-2.3 audio"

_BASE_CHANNELS = 128


def ltx_2(base_channels: int = _BASE_CHANNELS) -> AudioConfig:
    """As narrow as a VAE with so many channels at its first level, of which the published one has 128."""
    vocoder = GeneratorConfig(
        in_channels=128,
        width=8 * base_channels,
        rates=(6, 5, 2, 2, 2),
        kernels=(16, 15, 8, 4, 4),
        block_kernels=(3, 7, 11),
        dilations=((1, 3, 5),) * 3,
        is_antialiased=False,
        end=End.TANH,
    )
    return _make(base_channels, VocoderConfig(vocoder, sample_rate=24000), LTX_2)


def ltx_2_3(base_channels: int = _BASE_CHANNELS) -> AudioConfig:
    """As `ltx_2`, with the antialiased vocoder and its bandwidth extension."""
    first = GeneratorConfig(
        in_channels=128,
        width=12 * base_channels,
        rates=(5, 2, 2, 2, 2, 2),
        kernels=(11, 4, 4, 4, 4, 4),
        block_kernels=(3, 7, 11),
        dilations=((1, 3, 5),) * 3,
        is_antialiased=True,
        end=End.CLAMP,
        has_final_bias=False,
    )
    second = replace(first, width=4 * base_channels, rates=(6, 5, 2, 2, 2), kernels=(12, 11, 4, 4, 4), end=End.NONE)
    extension = ExtensionConfig(second, hop=80, window=512, bins=64, input_rate=16000, output_rate=48000)
    return _make(base_channels, VocoderConfig(first, sample_rate=48000, extension=extension), LTX_2_3)


def _make(base_channels: int, vocoder: VocoderConfig, generation: str) -> AudioConfig:
    return AudioConfig(8, base_channels, (1, 2, 4), 2, vocoder=vocoder, generation=generation)
