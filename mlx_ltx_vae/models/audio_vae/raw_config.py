"""Parses the JSON configuration of an audio VAE and a vocoder. No MLX.

    {"audio_vae": {"model": {"params": {"ddconfig": {...}}}, "preprocessing": {...}}, "vocoder": {...}}

The vocoder of LTX-2 is one JSON object; that of later releases has a `vocoder` and a `bwe` in it. What would change the
result and is not known is an error.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import CheckpointError, quote
from ..vocoder.config import End, ExtensionConfig, GeneratorConfig, VocoderConfig
from .config import AudioConfig, Causality, MelConfig, Norm

_MAX = 2**16
_CAUSALITIES = {"height": Causality.TIME, "width": Causality.FREQUENCY, "none": Causality.NONE, None: Causality.NONE}
_NORMS = {"pixel": Norm.PIXEL, "group": Norm.GROUP}
# Keys with a single supported value, which every published checkpoint has.
_FIXED_VAE = {"attn_type": "vanilla", "resamp_with_conv": True, "give_pre_end": False, "tanh_out": False}
_FIXED_VOCODER = {"stereo": True}
_FIXED_EXTENSION = {"bwe_final_act_fn": None}  # diffusers' name of an activation at its end
_MAX_STAGES = 32


def parse_config(raw: Mapping[str, Any], source: str) -> AudioConfig:
    """The configuration that a JSON object states. Raises a `CheckpointError` for what is wrong or not supported."""
    model = _object(raw, "audio_vae", source)
    params = _object(_object(model, "model", source), "params", source)
    reader = _Reader(_object(params, "ddconfig", source), source)
    reader.check_fixed(_FIXED_VAE)
    multipliers = reader.numbers("ch_mult")
    resolution = reader.number("resolution", 256)
    attended = set(reader.numbers("attn_resolutions", ()))
    mel = _parse_mel(model.get("preprocessing"), reader, source)
    scale = 2 ** (len(multipliers) - 1)
    if mel.bins % scale:
        raise CheckpointError(
            f"{source}: {mel.bins} mel bins are not a multiple of {scale}; correct its configuration."
        )
    vocoder = raw.get("vocoder")
    return AudioConfig(
        channels=reader.number("z_channels"),
        width=reader.number("ch"),
        multipliers=multipliers,
        num_blocks=reader.number("num_res_blocks"),
        mel=mel,
        audio_channels=reader.number("out_ch", 2),
        norm=reader.choice("norm_type", _NORMS, "pixel"),
        causality=reader.choice("causality_axis", _CAUSALITIES, "height"),
        attention_levels=frozenset(level for level in range(len(multipliers)) if resolution >> level in attended),
        has_mid_attention=reader.flag("mid_block_add_attention", True),
        vocoder=None if vocoder is None else _parse_vocoder(_object(raw, "vocoder", source), mel, source),
    )


def _parse_mel(preprocessing: Any, reader: "_Reader", source: str) -> MelConfig:
    """What the spectrogram is made with. Where that is not stated, as published."""
    stated = preprocessing if isinstance(preprocessing, Mapping) else {}
    audio, stft, mel = (
        _Reader(part if isinstance(part := stated.get(name), Mapping) else {}, source)
        for name in ("audio", "stft", "mel")
    )
    usual = MelConfig()
    return MelConfig(
        sample_rate=audio.number("sampling_rate", usual.sample_rate, high=10**6),
        hop=stft.number("hop_length", usual.hop),
        window=stft.number("filter_length", usual.window),
        bins=reader.number("mel_bins", mel.number("n_mel_channels", usual.bins)),
        low=float(mel.number("mel_fmin", int(usual.low), low=0)),
        high=float(mel.number("mel_fmax", int(usual.high), high=10**6)),
    )


def _parse_vocoder(raw: Mapping[str, Any], mel: MelConfig, source: str) -> VocoderConfig:
    inputs = 2 * mel.bins
    if "bwe" not in raw:
        generator = _parse_generator(_Reader(raw, source), inputs)
        return VocoderConfig(generator, sample_rate=generator.scale * mel.sample_rate // mel.hop)
    reader = _Reader(_object(raw, "bwe", source), source)
    reader.check_fixed(_FIXED_EXTENSION)
    first = _parse_generator(_Reader(_object(raw, "vocoder", source), source), inputs)
    bins = reader.number("num_mels", mel.bins)
    extension = ExtensionConfig(
        generator=replace(_parse_generator(reader, 2 * bins), end=End.NONE),
        hop=reader.number("hop_length"),
        window=reader.number("n_fft"),
        bins=bins,
        input_rate=reader.number("input_sampling_rate", high=10**6),
        output_rate=reader.number("output_sampling_rate", high=10**6),
    )
    made = first.scale * mel.sample_rate // mel.hop
    if made != extension.input_rate or extension.hop * extension.output_rate != extension.generator.scale * made:
        raise CheckpointError(
            f"{source}: its vocoder makes {made} samples per second, then {extension.generator.scale} of "
            f"{extension.hop}, but states rates of {extension.input_rate} and {extension.output_rate}; correct its "
            "configuration."
        )
    if reader.number("win_size", extension.window) != extension.window:
        raise CheckpointError(f"{source}: a win_size other than the n_fft {extension.window} is not supported.")
    return VocoderConfig(first, extension.output_rate, extension)


def _parse_generator(reader: "_Reader", in_channels: int) -> GeneratorConfig:
    reader.check_fixed(_FIXED_VOCODER)
    kind = reader.choice("resblock", {"1": False, "AMP1": True}, "1")
    if kind:
        reader.choice("activation", {"snakebeta": True}, "snakebeta")
    rates, kernels = reader.numbers("upsample_rates"), reader.numbers("upsample_kernel_sizes")
    dilations = tuple(tuple(each) for each in reader.lists("resblock_dilation_sizes"))
    block_kernels = reader.numbers("resblock_kernel_sizes")
    width = reader.number("upsample_initial_channel")
    is_consistent = len(rates) == len(kernels) and len(block_kernels) == len(dilations) and width % 2 ** len(rates) == 0
    if not is_consistent or any(
        kernel < rate or (kernel - rate) % 2 for rate, kernel in zip(rates, kernels, strict=True)
    ):
        raise CheckpointError(
            f"{reader.source}: a vocoder with rates {list(rates)}, kernels {list(kernels)} and {width} channels is not "
            "possible; correct its configuration."
        )
    return GeneratorConfig(
        in_channels=in_channels,
        width=width,
        rates=rates,
        kernels=kernels,
        block_kernels=block_kernels,
        dilations=dilations,
        is_antialiased=kind,
        # `apply_final_activation` is in the files, and the reference does not read it.
        end=End.TANH if reader.flag("use_tanh_at_final", True) else End.CLAMP,
        has_final_bias=reader.flag("use_bias_at_final", True),
    )


def _object(raw: Mapping[str, Any], key: str, source: str) -> Mapping[str, Any]:
    value = raw.get(key)
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{source}: its configuration has no object {key!r}; use that of the original file.")
    return value


class _Reader:
    """Reads and checks the values of one JSON object."""

    def __init__(self, raw: Mapping[str, Any], source: str) -> None:
        self.raw, self.source = raw, source

    def number(self, key: str, default: int | None = None, *, low: int = 1, high: int = _MAX) -> int:
        value = self.raw.get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self._fail(key, value, f"a whole number from {low} to {high}")
        return value

    def numbers(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        value = self.raw.get(key, default)
        if value is None:
            value = default
        return self._numbers(key, value, may_be_empty=default is not None)

    def lists(self, key: str) -> list[tuple[int, ...]]:
        value = self.raw.get(key)
        lists = value if isinstance(value, (list, tuple)) else ()
        if not 0 < len(lists) <= _MAX_STAGES:
            self._fail(key, value, "a list of lists of whole numbers")
        return [self._numbers(key, each) for each in lists]

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw.get(key, default)
        if not isinstance(value, bool):
            self._fail(key, value, "true or false")
        return value

    def choice(self, key: str, known: Mapping[Any, Any], default: str) -> Any:
        value = self.raw.get(key, default)
        if not isinstance(value, (str, type(None))) or value not in known:
            self._fail(key, value, " or ".join(str(each) for each in known if each is not None))
        return known[value]

    def check_fixed(self, fixed: Mapping[str, Any]) -> None:
        for key, value in fixed.items():
            if self.raw.get(key, value) != value:
                self._fail(key, self.raw[key], f"{value}, the only value that is supported")

    def _numbers(self, key: str, value: Any, *, may_be_empty: bool = False) -> tuple[int, ...]:
        numbers = tuple(value) if isinstance(value, (list, tuple)) else None
        is_possible = numbers is not None and (may_be_empty or numbers) and len(numbers) <= _MAX_STAGES
        if not is_possible or not all(isinstance(each, int) and 1 <= each <= _MAX for each in numbers or ()):
            self._fail(key, value, "a list of whole numbers above 0")
        return numbers or ()

    def _fail(self, key: str, value: Any, expected: str) -> None:
        raise CheckpointError(
            f"{self.source}: its configuration has {key} = {quote(value)}, expected {expected}; use the configuration "
            "that belongs to the file."
        )
