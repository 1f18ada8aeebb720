"""Configuration of an audio VAE and its vocoder, its JSON form, and the published configurations. No MLX.

    {"audio_vae": {"model": {"params": {"ddconfig": {...}}}, "preprocessing": {...}}, "vocoder": {...}}

The vocoder of LTX-2 is one JSON object; the object of later releases contains a `vocoder` and a `bwe`.
"""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...errors import CheckpointError
from ...shapes import Scaled, ScaleFactors
from ..stored import Key, choice, flag, is_list, is_number, is_whole, listing, needed, only, read_config, whole


class Norm(enum.Enum):
    """Norm before each convolution."""

    PIXEL = "pixel"
    GROUP = "group"


class Causality(enum.Enum):
    """Axis along which convolutions see no later positions."""

    TIME = "height"
    FREQUENCY = "width"
    NONE = "none"


@dataclass(frozen=True)
class MelConfig:
    """Spectrogram that the encoder takes."""

    sample_rate: int = 16000
    hop: int = 160
    window: int = 1024
    bins: int = 64
    low: float = 0.0
    high: float = 8000.0


class End(enum.Enum):
    """Function applied to a generator's samples at the end."""

    TANH = "tanh"
    CLAMP = "clamp"
    NONE = "none"


@dataclass(frozen=True)
class GeneratorConfig:
    """Generator: a convolution, stages of upsampling and residual blocks, and a convolution.

    Attributes:
        in_channels: channels of its input, the mel bins of both channels.
        width: channels before the first stage; each stage halves them.
        rates, kernels: for each stage, the samples that it makes of one sample, and the size of its convolution.
        block_kernels, dilations: kernels and dilations of the residual blocks, the same in all stages.
        is_antialiased: activations are SnakeBeta at twice the rate, otherwise leaky ReLU.
    """

    in_channels: int
    width: int
    rates: tuple[int, ...]
    kernels: tuple[int, ...]
    block_kernels: tuple[int, ...]
    dilations: tuple[tuple[int, ...], ...]
    is_antialiased: bool
    end: End
    has_final_bias: bool = True
    out_channels: int = 2

    @property
    def samples_per_frame(self) -> int:
        """Samples per frame of its input."""
        return math.prod(self.rates)


@dataclass(frozen=True)
class ExtensionConfig:
    """Bandwidth extension: a second generator, on a spectrogram of the first generator's waveform."""

    generator: GeneratorConfig
    hop: int
    window: int
    bins: int
    input_rate: int
    output_rate: int

    @property
    def ratio(self) -> int:
        return self.output_rate // self.input_rate


@dataclass(frozen=True)
class VocoderConfig:
    """Generator, and in LTX-2.3 and later its bandwidth extension."""

    generator: GeneratorConfig
    sample_rate: int
    extension: ExtensionConfig | None = None

    def num_samples(self, mel_frames: int) -> int:
        return mel_frames * self.generator.samples_per_frame * (self.extension.ratio if self.extension else 1)


@dataclass(frozen=True)
class AudioVAEConfig(Scaled):
    """Audio VAE and its vocoder. Latents are (B, channels, T, bins), or packed (B, T, channels * bins).

    Attributes:
        channels: channels of latents that are not packed.
        width: channels of the first level; `multipliers` are the channels of all levels relative to it.
        attention_levels: levels with an attention after each block.
        vocoder: `None` if the VAE has no vocoder.
    """

    channels: int
    width: int
    multipliers: tuple[int, ...]
    num_blocks: int
    mel: MelConfig = MelConfig()
    audio_channels: int = 2
    norm: Norm = Norm.PIXEL
    causality: Causality = Causality.TIME
    attention_levels: frozenset[int] = frozenset()
    has_mid_attention: bool = False
    vocoder: VocoderConfig | None = None
    generation: str = "custom"

    @property
    def scale(self) -> ScaleFactors:
        """Mel frames and bins per latent cell."""
        factor = 2 ** (len(self.multipliers) - 1)
        return ScaleFactors(factor, factor, 1)

    @property
    def bins(self) -> int:
        """Frequency bins of the latents."""
        return self.mel.bins // self.time_scale

    @property
    def latent_channels(self) -> int:
        """Channels of packed latents. Each channel has statistics."""
        return self.channels * self.bins

    @property
    def sample_rate(self) -> int:
        """Samples per second of the vocoder's output, or 0 without a vocoder."""
        return 0 if self.vocoder is None else self.vocoder.sample_rate

    @property
    def latents_per_second(self) -> float:
        return self.mel.sample_rate / self.mel.hop / self.time_scale

    def mel_frames(self, latents: int) -> int:
        """Return the number of mel frames that this many latents decode to."""
        first_frames = self.time_scale if self.causality is Causality.NONE else 1
        return first_frames + self.time_scale * (latents - 1)

    def num_samples(self, latents: int) -> int:
        """Return the number of samples that this many latents decode to."""
        assert self.vocoder is not None
        return self.vocoder.num_samples(self.mel_frames(latents))


_MAX, _MAX_RATE, _MAX_STAGES = 2**16, 10**6, 32


def _is_positive(value: Any) -> bool:
    return is_whole(value, _MAX)


_NUMBER, _RATE = needed(whole(_MAX)), needed(whole(_MAX_RATE))
_NUMBERS = needed(listing(_is_positive, _MAX_STAGES, "whole numbers above 0"))
_MEL = MelConfig()
_FREQUENCY = Key(lambda value: is_number(value) and 0 <= value <= _MAX_RATE, f"expected a number from 0 to {_MAX_RATE}")

_VAE_KEYS = {
    "attn_type": only("vanilla"),
    "resamp_with_conv": only(True),
    "give_pre_end": only(False),
    "tanh_out": only(False),
    "ch": _NUMBER,
    "ch_mult": _NUMBERS,
    "num_res_blocks": _NUMBER,
    "z_channels": _NUMBER,
    "out_ch": whole(_MAX, 2),
    "resolution": whole(_MAX, 256),
    "attn_resolutions": Key(
        lambda value: not value or is_list(value, _is_positive, _MAX_STAGES), "expected a list of whole numbers above 0"
    ),
    "norm_type": choice(*(norm.value for norm in Norm), default=Norm.PIXEL.value),
    "causality_axis": choice(*(axis.value for axis in Causality), None, default="height"),
    "mid_block_add_attention": flag(True),
    "mel_bins": whole(_MAX),
}
# Keys of the spectrogram, with the published values as defaults.
_MEL_KEYS = {
    "audio": {"sampling_rate": whole(_MAX_RATE, _MEL.sample_rate)},
    "stft": {"hop_length": whole(_MAX, _MEL.hop), "filter_length": whole(_MAX, _MEL.window)},
    "mel": {
        "n_mel_channels": whole(_MAX, _MEL.bins),
        "mel_fmin": _FREQUENCY._replace(default=_MEL.low),
        "mel_fmax": _FREQUENCY._replace(default=_MEL.high),
    },
}
# The files also have `apply_final_activation`, which the reference does not read.
_GENERATOR_KEYS = {
    "stereo": only(True),
    "resblock": choice("1", "AMP1", default="1"),
    "upsample_rates": _NUMBERS,
    "upsample_kernel_sizes": _NUMBERS,
    "resblock_dilation_sizes": needed(
        listing(lambda value: is_list(value, _is_positive, _MAX_STAGES), _MAX_STAGES, "lists of whole numbers")
    ),
    "resblock_kernel_sizes": _NUMBERS,
    "upsample_initial_channel": _NUMBER,
    "use_tanh_at_final": flag(True),
    "use_bias_at_final": flag(True),
}
_EXTENSION_KEYS = {
    "bwe_final_act_fn": only(None),  # an activation after the last convolution, in diffusers' vocabulary
    "num_mels": whole(_MAX),
    "hop_length": _NUMBER,
    "n_fft": _NUMBER,
    "win_size": whole(_MAX),
    "input_sampling_rate": _RATE,
    "output_sampling_rate": _RATE,
}


def parse_config(raw: Mapping[str, Any], source: str) -> AudioVAEConfig:
    """Parse the JSON object of a configuration. Raises a `CheckpointError` if it is wrong or not supported."""
    model = _object(raw, "audio_vae", source)
    params = _object(_object(model, "model", source), "params", source)
    values = _read(_object(params, "ddconfig", source), _VAE_KEYS, source)
    multipliers, resolutions = tuple(values["ch_mult"]), values["attn_resolutions"] or ()
    mel = _parse_mel(model.get("preprocessing"), values["mel_bins"], source)
    scale = 2 ** (len(multipliers) - 1)
    if mel.bins % scale:
        raise CheckpointError(
            f"{source}: {mel.bins} mel bins are not a multiple of {scale}; correct its configuration."
        )
    levels = (level for level in range(len(multipliers)) if values["resolution"] >> level in resolutions)
    vocoder = raw.get("vocoder")
    return AudioVAEConfig(
        channels=values["z_channels"],
        width=values["ch"],
        multipliers=multipliers,
        num_blocks=values["num_res_blocks"],
        mel=mel,
        audio_channels=values["out_ch"],
        norm=Norm(values["norm_type"]),
        causality=Causality(values["causality_axis"] or "none"),
        attention_levels=frozenset(levels),
        has_mid_attention=values["mid_block_add_attention"],
        vocoder=None if vocoder is None else _parse_vocoder(_object(raw, "vocoder", source), mel, source),
    )


def _parse_mel(preprocessing: Any, bins: int | None, source: str) -> MelConfig:
    sections = preprocessing if isinstance(preprocessing, Mapping) else {}
    values: dict[str, Any] = {}
    for name, keys in _MEL_KEYS.items():
        section = sections.get(name)
        values |= _read(section if isinstance(section, Mapping) else {}, keys, source)
    return MelConfig(
        sample_rate=values["sampling_rate"],
        hop=values["hop_length"],
        window=values["filter_length"],
        bins=bins or values["n_mel_channels"],
        low=float(values["mel_fmin"]),
        high=float(values["mel_fmax"]),
    )


def _parse_vocoder(raw: Mapping[str, Any], mel: MelConfig, source: str) -> VocoderConfig:
    inputs = 2 * mel.bins
    if "bwe" not in raw:
        generator = _parse_generator(raw, inputs, source)
        return VocoderConfig(generator, sample_rate=generator.samples_per_frame * mel.sample_rate // mel.hop)
    raw_extension = _object(raw, "bwe", source)
    values = _read(raw_extension, _EXTENSION_KEYS, source)
    generator = _parse_generator(_object(raw, "vocoder", source), inputs, source)
    bins = values["num_mels"] or mel.bins
    extension = ExtensionConfig(
        generator=replace(_parse_generator(raw_extension, 2 * bins, source), end=End.NONE),
        hop=values["hop_length"],
        window=values["n_fft"],
        bins=bins,
        input_rate=values["input_sampling_rate"],
        output_rate=values["output_sampling_rate"],
    )
    rate = generator.samples_per_frame * mel.sample_rate // mel.hop
    if (
        rate != extension.input_rate
        or extension.hop * extension.output_rate != extension.generator.samples_per_frame * rate
    ):
        raise CheckpointError(
            f"{source}: its vocoder makes {rate} samples per second, then {extension.generator.samples_per_frame} of "
            f"{extension.hop}, but states rates of {extension.input_rate} and {extension.output_rate}; correct its "
            "configuration."
        )
    if values["win_size"] not in (None, extension.window):
        raise CheckpointError(f"{source}: a win_size other than the n_fft {extension.window} is not supported.")
    return VocoderConfig(generator, extension.output_rate, extension)


def _parse_generator(raw: Mapping[str, Any], in_channels: int, source: str) -> GeneratorConfig:
    values = _read(raw, _GENERATOR_KEYS, source)
    is_antialiased = values["resblock"] == "AMP1"
    if is_antialiased:
        _read(raw, {"activation": only("snakebeta")}, source)
    rates, kernels = tuple(values["upsample_rates"]), tuple(values["upsample_kernel_sizes"])
    dilations, block_kernels = values["resblock_dilation_sizes"], values["resblock_kernel_sizes"]
    width = values["upsample_initial_channel"]
    is_consistent = len(rates) == len(kernels) and len(block_kernels) == len(dilations) and width % 2 ** len(rates) == 0
    if not is_consistent or any(
        kernel < rate or (kernel - rate) % 2 for rate, kernel in zip(rates, kernels, strict=True)
    ):
        raise CheckpointError(
            f"{source}: a vocoder with rates {list(rates)}, kernels {list(kernels)} and {width} channels is not "
            "possible; correct its configuration."
        )
    return GeneratorConfig(
        in_channels=in_channels,
        width=width,
        rates=rates,
        kernels=kernels,
        block_kernels=tuple(block_kernels),
        dilations=tuple(map(tuple, dilations)),
        is_antialiased=is_antialiased,
        end=End.TANH if values["use_tanh_at_final"] else End.CLAMP,
        has_final_bias=values["use_bias_at_final"],
    )


def _read(raw: Mapping[str, Any], keys: Mapping[str, Key], source: str) -> dict[str, Any]:
    """Read the values of `keys`. The files have many other keys, some of them for training."""
    return read_config(raw, keys, f"{source}: its configuration", refuses_others=False)


def _object(raw: Mapping[str, Any], key: str, source: str) -> Mapping[str, Any]:
    value = raw.get(key)
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{source}: its configuration has no object {key!r}; use the original configuration.")
    return value


#: Names of the generations in `AudioVAEConfig.generation`; LTX-2.5 has the audio VAE of LTX-2.3.
LTX_2, LTX_2_3 = "LTX-2 audio", "LTX-2.3 audio"

_BASE_CHANNELS = 128


def ltx_2(base_channels: int = _BASE_CHANNELS) -> AudioVAEConfig:
    """Return the configuration of LTX-2 with this many channels at the first level; the published one has 128."""
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


def ltx_2_3(base_channels: int = _BASE_CHANNELS) -> AudioVAEConfig:
    """Return `ltx_2` with the antialiased vocoder and its bandwidth extension."""
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


def _make(base_channels: int, vocoder: VocoderConfig, generation: str) -> AudioVAEConfig:
    return AudioVAEConfig(8, base_channels, (1, 2, 4), 2, vocoder=vocoder, generation=generation)
