"""Audio VAE and vocoder of LTX-2, LTX-2.3 and LTX-2.5: names and configurations in checkpoints, and the `info` report.

A configuration has the original's vocabulary or that used by diffusers, or is inferred from the tensors.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ...errors import CheckpointError
from ..base import AUDIO, NETWORKS, CheckpointParts, Configuration, Family, Network, NetworkTensors, Statistics
from ..specs import NetworkSpec, Shapes
from ..stored import find_statistics
from .config import LTX_2, LTX_2_3, AudioVAEConfig, ltx_2, ltx_2_3, parse_config
from .specs import decoder_spec, encoder_spec, vocoder_spec
from .vae_networks import MelDecoder, MelEncoder
from .vocoder import ExtendedVocoder, Generator

# Prefixes of a network's names: in original files, in whole models of other programs, in files of an audio VAE only.
_ROOTS = ("audio_vae.", "model.audio_vae.", "")
_VOCODER_PREFIXES = ("vocoder.", "audio_vae.vocoder.", "model.vocoder.", "")
_VOCODER_PARTS = ("vocoder.", "bwe_generator.", "mel_stft.")
_GENERATOR_STEMS = ("conv_pre.", "ups.", "resblocks.", "act_post.", "conv_post.")
# The first convolution, along one axis, tells a vocoder from networks of pictures. Its names in a vocoder with one
# generator, and with two.
_ONLY, _FIRST, _SECOND = "conv_pre.weight", "vocoder.conv_pre.weight", "bwe_generator.conv_pre.weight"
_MEAN_NAMES = ("mean_of_means", "latents_mean")
_STD_NAMES = ("std_of_means", "latents_std")
# diffusers' names, and the names in the original files.
_DIFFUSERS = (
    (re.compile(r"\bconv_in\b"), "conv_pre"),
    (re.compile(r"\bconv_out\b"), "conv_post"),
    (re.compile(r"\bact_out\b"), "act_post"),
    (re.compile(r"\bupsamplers\b"), "ups"),
    (re.compile(r"\bresnets\b"), "resblocks"),
    (re.compile(r"\bdownsample\.filter\b"), "downsample.lowpass.filter"),
)

_VAE_CLASS, _VOCODER_CLASS = "AutoencoderKLLTX2Audio", "LTX2Vocoder"
# The rate of each published transposed convolution, by its kernel.
_RATES = {16: 6, 15: 5, 12: 6, 11: 5, 8: 2, 4: 2}
_DILATIONS = [1, 3, 5]
_RESOLUTION = 256
_EXTENSION = {
    "input_sampling_rate": 16000,
    "output_sampling_rate": 48000,
    "hop_length": 80,
    "n_fft": 512,
    "win_size": 512,
    "num_mels": 64,
}
_ANTIALIASED = {"resblock": "AMP1", "activation": "snakebeta", "use_tanh_at_final": False, "use_bias_at_final": False}
# diffusers' keys of a generator's configuration, and the original's keys.
_GENERATOR_KEYS = {
    "hidden_channels": "upsample_initial_channel",
    "upsample_factors": "upsample_rates",
    "upsample_kernel_sizes": "upsample_kernel_sizes",
    "resnet_kernel_sizes": "resblock_kernel_sizes",
    "resnet_dilations": "resblock_dilation_sizes",
    "final_bias": "use_bias_at_final",
}
# diffusers' keys of an audio VAE's configuration, and the original's keys where they differ.
_VAE_KEYS = (
    "base_channels", "output_channels", "ch_mult", "num_res_blocks", "attn_resolutions", "in_channels", "resolution",
    "latent_channels", "norm_type", "causality_axis", "mid_block_add_attention", "mel_bins",
)  # fmt: skip
_VAE_NAMES = {"base_channels": "ch", "output_channels": "out_ch", "latent_channels": "z_channels"}
_EXTENSION_KEYS = {
    "filter_length": "n_fft",
    "hop_length": "hop_length",
    "window_length": "win_size",
    "num_mel_channels": "num_mels",
    "input_sampling_rate": "input_sampling_rate",
    "output_sampling_rate": "output_sampling_rate",
}
_MAX_KERNEL = 32


def find(shapes: Shapes) -> NetworkTensors:
    """Find encoder, decoder and vocoder, and the statistics of the latents, for `Family.find`."""
    networks = {network: names for network in NETWORKS if (names := _find_network(shapes, network))}
    if vocoder := _find_vocoder(shapes):
        networks["vocoder"] = vocoder
    return NetworkTensors(networks, find_statistics(shapes, _ROOTS, _MEAN_NAMES, _STD_NAMES))


def _find_network(shapes: Shapes, network: str) -> dict[str, str]:
    for prefix in (f"{root}{network}." for root in _ROOTS):
        names = {name.removeprefix(prefix): name for name in shapes if name.startswith(prefix)}
        conv_in = names.get("conv_in.conv.weight")
        if conv_in is not None and len(shapes[conv_in]) == 4 and "mid.block_1.conv1.conv.weight" in names:
            return names
    return {}


def _find_vocoder(shapes: Shapes) -> dict[str, str]:
    candidates = [_vocoder_names(shapes, prefix) for prefix in _VOCODER_PREFIXES]
    candidates = [names for names in candidates if len(shapes.get(names.get(_ONLY) or names.get(_FIRST, ""), ())) == 3]
    for names in candidates:
        if _SECOND in names and _FIRST in names:
            return names
        if _SECOND in names:  # an MLX pack, with the first generator one level up
            return {
                name if name.startswith(_VOCODER_PARTS) else f"vocoder.{name}": stored_name
                for name, stored_name in names.items()
            }
    return next((names for names in candidates if _ONLY in names), {})


def _vocoder_names(shapes: Shapes, prefix: str) -> dict[str, str]:
    """Return the names with a prefix by the original names. Without a prefix, only a vocoder's names are returned."""
    names = {_original_name(name.removeprefix(prefix)): name for name in shapes if name.startswith(prefix)}
    return {
        name: stored_name
        for name, stored_name in names.items()
        if not name.endswith(".inverse_basis")  # nothing uses it
        and (prefix or name.startswith((*_VOCODER_PARTS, *_GENERATOR_STEMS)))
    }


def _original_name(name: str) -> str:
    for pattern, original in _DIFFUSERS:
        name = pattern.sub(original, name)
    return name


def choose_config(contents: Iterable[object]) -> Mapping[str, Any] | None:
    """Choose the configuration, for `Family.choose_config`. Audio VAE and vocoder may have a file each."""
    raw: dict[str, Any] = {}
    for content in contents:
        if not isinstance(content, Mapping):
            continue
        inner = content.get("vae")
        if isinstance(inner, Mapping) and "audio_vae" in inner:  # in a converted checkpoint
            content = inner
        name = str(content.get("_class_name"))
        if isinstance(content.get("audio_vae"), Mapping):
            raw.setdefault("audio_vae", content["audio_vae"])
        elif name == _VAE_CLASS:
            raw.setdefault("audio_vae", _vae_from_diffusers(content))
        if isinstance(content.get("vocoder"), Mapping):
            raw.setdefault("vocoder", content["vocoder"])
        elif name.startswith(_VOCODER_CLASS):
            raw.setdefault("vocoder", _vocoder_from_diffusers(content, is_extended=name != _VOCODER_CLASS))
    return raw or None


def configure(
    config: Mapping[str, Any] | AudioVAEConfig | None, parts: CheckpointParts
) -> Configuration[AudioVAEConfig]:
    """Parse a configuration, for `Family.configure`. Missing parts are inferred from the tensors."""
    if isinstance(config, AudioVAEConfig):
        return Configuration(config, {})
    raw = dict(config or {})
    vae = parts.networks.get("decoder") or parts.networks.get("encoder")
    vocoder = parts.networks.get("vocoder")
    if "audio_vae" not in raw:
        if vae is None:
            raise CheckpointError(f"{parts.source}: it has a vocoder and no audio VAE; give the folder with both.")
        network = "decoder" if "decoder" in parts.networks else "encoder"
        raw["audio_vae"] = _infer_vae(_Tensors(vae, f"{parts.source}: its {network}"), is_decoder=network == "decoder")
    if vocoder is None:
        raw.pop("vocoder", None)
    elif "vocoder" not in raw:
        raw["vocoder"] = _infer_vocoder(_Tensors(vocoder, f"{parts.source}: its vocoder"), parts.source)
    audio_config = parse_config(raw, parts.source)
    generation = "audio VAE without a vocoder"
    if audio_config.vocoder is not None:
        generation = LTX_2 if audio_config.vocoder.extension is None else LTX_2_3
    return Configuration(replace(audio_config, generation=generation), raw)


def _vae_from_diffusers(raw: Mapping[str, Any]) -> dict[str, Any]:
    config = {_VAE_NAMES.get(key, key): raw[key] for key in _VAE_KEYS if raw.get(key) is not None}
    defaults = {"norm_type": "pixel", "causality_axis": raw.get("causality_axis"), "mid_block_add_attention": False}
    audio = {"sampling_rate": raw.get("sample_rate", 16000)}
    stft = {"hop_length": raw.get("mel_hop_length", 160)}
    return {"model": {"params": {"ddconfig": defaults | config}}, "preprocessing": {"audio": audio, "stft": stft}}


def _vocoder_from_diffusers(raw: Mapping[str, Any], *, is_extended: bool) -> dict[str, Any]:
    """Translate a vocoder's configuration. The first of two generators has no final activation, and is clamped."""
    first = {key: raw[name] for name, key in _GENERATOR_KEYS.items() if name in raw}
    is_antialiased = raw.get("act_fn", "snakebeta" if is_extended else "leaky_relu") != "leaky_relu"
    first["resblock"] = "AMP1" if is_antialiased else "1"
    if is_antialiased:
        first["activation"] = raw.get("act_fn", "snakebeta")
    first["use_tanh_at_final"] = raw.get("final_act_fn", None if is_extended else "tanh") == "tanh"
    if not is_extended:
        return first
    first.setdefault("use_bias_at_final", False)
    second = {key: raw[f"bwe_{name}"] for name, key in _GENERATOR_KEYS.items() if f"bwe_{name}" in raw}
    second |= {key: raw[name] for name, key in _EXTENSION_KEYS.items() if name in raw}
    second |= {"resblock": "AMP1", "activation": raw.get("bwe_act_fn", "snakebeta")}
    second["bwe_final_act_fn"] = raw.get("bwe_final_act_fn")
    second.setdefault("use_bias_at_final", False)
    return {"vocoder": first, "bwe": second}


class _Tensors:
    """Shapes of a network's tensors, from which its configuration is inferred."""

    def __init__(self, shapes: Shapes, owner: str) -> None:
        self._shapes, self._owner = shapes, owner

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def conv(self, name: str, dims: int) -> tuple[int, ...]:
        """Return the shape of a convolution's weight. Raises a `CheckpointError` if it is missing or misshapen."""
        shape = self._shapes.get(f"{name}.weight", ())
        if len(shape) != dims + 2:
            problem = f"has tensor {name}.weight of shape {shape}" if shape else f"lacks tensor {name}.weight"
            raise CheckpointError(
                f"{self._owner} {problem}, and there is no configuration; give the original file, or one with its "
                "configuration."
            )
        return shape

    def convs(self, pattern: str, dims: int) -> list[tuple[int, ...]]:
        """Return the shapes of the weights of convolutions whose names are the pattern with a number from 0 on."""
        shapes: list[tuple[int, ...]] = []
        while f"{pattern.format(len(shapes))}.weight" in self:
            shapes.append(self.conv(pattern.format(len(shapes)), dims))
        return shapes


def _infer_vae(tensors: _Tensors, *, is_decoder: bool) -> dict[str, Any]:
    stem = "up" if is_decoder else "down"
    levels = tensors.convs(f"{stem}.{{}}.block.0.conv1.conv", 2)
    blocks = len(tensors.convs(f"{stem}.0.block.{{}}.conv1.conv", 2))
    conv_in, conv_out = tensors.conv("conv_in.conv", 2), tensors.conv("conv_out.conv", 2)
    width = conv_out[-1] if is_decoder else conv_in[0]
    config = {
        "ch": width,
        "ch_mult": [max(1, shape[0] // width) for shape in levels],
        "num_res_blocks": blocks - 1 if is_decoder else blocks,
        "z_channels": conv_in[-1] if is_decoder else conv_out[0] // 2,
        "out_ch": conv_out[0] if is_decoder else conv_in[-1],
        "resolution": _RESOLUTION,
        "attn_resolutions": [
            _RESOLUTION >> level for level in range(len(levels)) if f"{stem}.{level}.attn.0.q.weight" in tensors
        ],
        "mid_block_add_attention": "mid.attn_1.q.weight" in tensors,
        "norm_type": "group" if "norm_out.weight" in tensors else "pixel",
        "causality_axis": "height",
    }
    return {"model": {"params": {"ddconfig": config}}}


def _infer_vocoder(tensors: _Tensors, source: str) -> dict[str, Any]:
    if "bwe_generator.conv_pre.weight" not in tensors:
        return {"resblock": "1", **_infer_generator(tensors, "", source)}
    first = {**_infer_generator(tensors, "vocoder.", source), **_ANTIALIASED}
    second = {**_infer_generator(tensors, "bwe_generator.", source), **_ANTIALIASED, **_EXTENSION}
    return {"vocoder": first, "bwe": second}


def _infer_generator(tensors: _Tensors, prefix: str, source: str) -> dict[str, Any]:
    """Return the published generator with these shapes. Kernels determine rates; all releases have equal dilations."""
    kernels = [shape[1] for shape in tensors.convs(f"{prefix}ups.{{}}", 1)]
    blocks = [shape[1] for shape in tensors.convs(f"{prefix}resblocks.{{}}.convs1.0", 1)]
    unknown_kernels = [kernel for kernel in kernels if kernel not in _RATES]
    if unknown_kernels or not kernels or len(blocks) % len(kernels):
        raise CheckpointError(
            f"{source}: it states no configuration, and its vocoder is not a published one (kernels {kernels}); "
            "give the original file, or one with its configuration."
        )
    per_stage = len(blocks) // len(kernels)
    return {
        "upsample_initial_channel": tensors.conv(f"{prefix}conv_pre", 1)[0],
        "upsample_rates": [_RATES[kernel] for kernel in kernels],
        "upsample_kernel_sizes": kernels,
        "resblock_kernel_sizes": blocks[:per_stage],
        "resblock_dilation_sizes": [_DILATIONS] * per_stage,
    }


def _spec(config: AudioVAEConfig, network: str) -> NetworkSpec:
    if network != "vocoder":
        return encoder_spec(config) if network == "encoder" else decoder_spec(config)
    if config.vocoder is None:
        raise CheckpointError("this audio VAE has no vocoder; use a file or a folder that has one.")
    return vocoder_spec(config.vocoder)


def _make(config: AudioVAEConfig, network: str, statistics: Statistics | None) -> Network:
    if network == "vocoder" and (vocoder := config.vocoder) is not None:
        extension = vocoder.extension
        return Generator(vocoder.generator) if extension is None else ExtendedVocoder(vocoder, extension)
    assert statistics is not None  # has_statistics
    return MelEncoder(config, statistics) if network == "encoder" else MelDecoder(config, statistics)


def _describe(config: AudioVAEConfig) -> dict[str, Any]:
    return {
        "latent_channels": config.channels,
        "latent_bins": config.bins,
        "latents_per_second": config.latents_per_second,
        "sample_rate": None if config.vocoder is None else config.vocoder.sample_rate,
        "mel_bins": config.mel.bins,
        "causality": config.causality.value,
    }


AUDIO_VAE = Family(
    name="audio_vae",
    decoder="spectrogram",
    kernels=((3, 3), (1, 1), *((kernel,) for kernel in range(2, _MAX_KERNEL + 1))),
    has_statistics=True,
    config_type=AudioVAEConfig,
    find=find,
    choose_config=choose_config,
    configure=configure,
    spec=_spec,
    make=_make,
    describe=_describe,
    published={"ltx-2": ltx_2, "ltx-2.3": ltx_2_3, "ltx-2.5": ltx_2_3},
    medium=AUDIO,
)
