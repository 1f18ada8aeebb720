"""LTX-2.5's VAE with the diffusion decoder: its names and configurations in checkpoints, and its `info` report."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ...errors import CheckpointError, option, warn
from ..base import CheckpointParts, Configuration, Family, Network, NetworkTensors, Statistics
from ..specs import Shapes
from ..stored import ANYTHING, needed, read_config
from ..video_vae.block_types import KERNEL
from ..video_vae.config import VAEConfig
from ..video_vae.family import CONV_VAE, PREFIXES
from ..video_vae.networks import ConvEncoder
from .config import (
    CLASS_NAME,
    DECODER_CLASS_NAME,
    DecoderConfig,
    DiffusionVAEConfig,
    ltx_2_5,
    parse_decoder_config,
    raw_ltx_2_5,
)
from .networks import DiffusionDecoder
from .specs import decoder_spec, network_spec

#: A tensor that only diffusion decoders have.
_MARK = "conv_in_x_t.weight"
_STEMS = ("det_stages.", "diff_blocks.")
# Published files have tensors that no decode uses, of a branch that predicts a coarse picture in training.
_UNUSED = ("coarse_",)

# Original parts of names by the spellings of diffusers, and of MLX ports, one of whose attentions has a module `qkv`.
_SPELLINGS = {
    "t_embedder.timestep_embedder.": "t_embedder.",
    "t_embedder.linear_1.": "t_embedder.mlp.0.",
    "t_embedder.linear_2.": "t_embedder.mlp.2.",
    "t_embedder.linear1.": "t_embedder.mlp.0.",
    "t_embedder.linear2.": "t_embedder.mlp.2.",
    ".attn.norm_q.": ".attn.q_norm.",
    ".attn.norm_k.": ".attn.k_norm.",
    ".attn.to_out.0.": ".attn.proj.",
    ".attn.qkv.to_": ".attn.to_",
}

_DIFFUSERS_CLASS = "LTX2VideoDiffusionDecoderModel"

_KEYS = dict.fromkeys(("_class_name", "dims", "model_output_type", "encoder", "decoder"), ANYTHING)
# Keys of diffusers' config.json by the original keys. A file must have all of them.
_DIFFUSERS_NAMES = {
    "in_channels": "latent_channels",
    "out_channels": "out_channels",
    "patch_size": "patch_size",
    "head_dim": "decoder_head_dim",
    "stage_channels": "decoder_stage_channels",
    "stage_depths": "decoder_stage_depths",
    "stage_kernels": "decoder_stage_kernels",
    "stage5_kernel": "decoder_stage5_kernel",
    "t_emb_dim": "decoder_t_emb_dim",
    "timestep_scale_multiplier": "decoder_timestep_scale_multiplier",
    "default_num_inference_steps": "decoder_num_inference_steps",
}
_NEEDED = (
    *_DIFFUSERS_NAMES.values(), "decoder_model_output_type", "decoder_upsample_strides",
    "decoder_upsample_channel_reductions",
)  # fmt: skip
_DIFFUSERS_KEYS = dict.fromkeys(_NEEDED, needed(ANYTHING)) | dict.fromkeys(
    ("spatial_compression_ratio", "temporal_compression_ratio", "scaling_factor", "decoder_keyframe_type_embedding"),
    ANYTHING,
)


def find(shapes: Shapes) -> NetworkTensors:
    """Find the diffusion decoder and the encoder of the conv VAE, which may be in separate files."""
    conv_vae = CONV_VAE.find(shapes)
    networks = {"decoder": _find_decoder(shapes), "encoder": conv_vae.networks.get("encoder")}
    return NetworkTensors({network: names for network, names in networks.items() if names}, conv_vae.statistics)


def _find_decoder(shapes: Shapes) -> dict[str, str]:
    for prefix in PREFIXES["decoder"]:
        if prefix + _MARK in shapes or any(name.startswith(tuple(prefix + stem for stem in _STEMS)) for name in shapes):
            stored_names = {name.removeprefix(prefix): name for name in shapes if name.startswith(prefix)}
            tensors = {
                _original_name(name): stored_name
                for name, stored_name in stored_names.items()
                if not name.startswith((*_UNUSED, "per_channel_statistics.", "latents_"))
            }
            channels = shapes.get(tensors.get("conv_in.weight", ""), (0,))[-1]
            if shapes.get(tensors.get("type_emb", "")) != (channels,):  # there is none, or it has other channels
                tensors.pop("type_emb", None)
            return tensors
    return {}


def _original_name(name: str) -> str:
    for spelling, original in _SPELLINGS.items():
        name = name.replace(spelling, original)
    return name


def choose_config(contents: Iterable[object]) -> dict[str, Any] | None:
    """Return the first configuration of a VAE with a diffusion decoder, in either vocabulary, or `None`."""
    for content in contents:
        for raw in (content.get("vae"), content) if isinstance(content, Mapping) else ():
            if isinstance(raw, Mapping) and raw.get("_class_name") in (CLASS_NAME, _DIFFUSERS_CLASS):
                return dict(raw)
    return None


def configure(
    config: Mapping[str, Any] | DiffusionVAEConfig | None, parts: CheckpointParts
) -> Configuration[DiffusionVAEConfig]:
    """Parse or infer the configuration.

    It must describe the decoder, unless this has exactly the published tensors. The encoder is as in the conv VAE.
    """
    if isinstance(config, DiffusionVAEConfig):
        return Configuration(config, {})
    raw = dict(config or {})
    if raw.get("_class_name") == _DIFFUSERS_CLASS:
        raw = _translate(raw, parts.source)
    raw = raw if raw.get("decoder") else raw | _published_config(parts)
    read_config(raw, _KEYS, f"{parts.source}: its configuration")
    decoder, encoder = _decoder(raw, parts), _encoder(raw, parts)
    if encoder and encoder.latent_channels != decoder.latent_channels:
        raise CheckpointError(
            f"{parts.source}: its encoder makes latents of {encoder.latent_channels} channels and its decoder takes "
            f"{decoder.latent_channels}, so the two do not belong together."
        )
    if encoder and encoder.scale != decoder.scale:
        raise CheckpointError(
            f"{parts.source}: its encoder scales by {tuple(encoder.scale)} and its decoder by {tuple(decoder.scale)} "
            "(time, height, width), so the two do not belong together."
        )
    return Configuration(DiffusionVAEConfig(encoder, decoder), raw)


def _encoder(raw: Mapping[str, Any], parts: CheckpointParts) -> VAEConfig | None:
    """Return the encoder's configuration, or `None` if the checkpoint has neither its tensors nor its description."""
    encoder_parts = parts._replace(
        networks={name: shapes for name, shapes in parts.networks.items() if name == "encoder"},
        requested_networks=[name for name in parts.requested_networks if name == "encoder"],
    )
    raw_config = CONV_VAE.choose_config([{**raw, "_class_name": CLASS_NAME}])
    if not encoder_parts.networks and not raw_config:
        return None
    return replace(CONV_VAE.configure(raw_config, encoder_parts).config, decoder=None)


def _published_config(parts: CheckpointParts) -> dict[str, Any]:
    """Return LTX-2.5's configuration, with a warning, if the decoder has exactly its tensors, and else an empty one.

    Tensors do not show windows or steps, so another decoder could have the same tensors.
    """
    shapes = parts.networks.get("decoder", {})
    width, channels = ((0, *shapes.get(name, ()))[-1] for name in ("norm_out.weight", "conv_in.weight"))
    raw = raw_ltx_2_5(width // 2, channels)  # the last width is twice the base channels of the conv VAE
    try:
        expected = decoder_spec(_decoder(raw, parts)).weights
    except CheckpointError:  # no decoder has such widths
        return {}
    if expected != shapes:
        return {}
    warn(f"{parts.source}: its configuration is missing; it has the tensors of LTX-2.5, so LTX-2.5's is used.")
    return raw


def _decoder(raw: Mapping[str, Any], parts: CheckpointParts) -> DecoderConfig:
    decoder = raw.get("decoder")
    if not isinstance(decoder, Mapping) or not decoder:
        raise CheckpointError(
            f"{parts.source}: this is the diffusion decoder of LTX-2.5, and its configuration is missing, without "
            "which it decodes to static; add it as the metadata entry 'config' of the file, or as config.json beside "
            f"it{option(', or load the encoder alone with decoder=False', '')}."
        )
    names: Shapes = parts.networks.get("decoder", {})
    return parse_decoder_config(
        decoder,
        raw.get("model_output_type"),
        parts.source,
        is_fused=not any(".attn.to_q." in name for name in names),
        has_gates=any(name.endswith(".gate_msa") for name in names),
        has_type_embedding="type_emb" in names,
    )


def _translate(raw: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Translate a config.json of diffusers to the original vocabulary."""
    read_config(raw, _DIFFUSERS_KEYS, f"{source}: its config.json")
    strides, reductions = (raw[f"decoder_upsample_{name}"] for name in ("strides", "channel_reductions"))
    if not isinstance(strides, list) or not isinstance(reductions, list) or len(strides) != len(reductions):
        raise CheckpointError(
            f"{source}: decoder_upsample_strides and decoder_upsample_channel_reductions of its config.json are not "
            "lists of one length; use the config.json that came with the weights."
        )
    decoder = {key: raw[diffusers_key] for key, diffusers_key in _DIFFUSERS_NAMES.items()}
    decoder["upsamples"] = [list(pair) for pair in zip(strides, reductions, strict=True)]
    return {
        "_class_name": CLASS_NAME,
        "dims": 3,
        "model_output_type": raw["decoder_model_output_type"],
        "decoder": {"_class_name": DECODER_CLASS_NAME, **decoder},
    }


def _make(config: DiffusionVAEConfig, network: str, statistics: Statistics | None) -> Network:
    assert statistics is not None  # has_statistics
    if network == "encoder":
        assert config.encoder is not None  # its spec was made
        return ConvEncoder(config.encoder, statistics)
    assert config.decoder is not None
    return DiffusionDecoder(config.decoder, statistics)


def _describe(config: DiffusionVAEConfig) -> dict[str, Any]:
    encoder = {} if config.encoder is None else {"encoder": CONV_VAE.describe(config.encoder)["encoder"]}
    if config.decoder is None:
        return encoder
    decoder = config.decoder
    stages = [*decoder.context_stages, decoder.pixel_stage]
    description = {
        "in_channels": decoder.latent_channels,
        "out_channels": decoder.pixel_channels,
        "head_dim": decoder.head_dim,
        "prediction": decoder.prediction.value,
        "denoising_steps": decoder.steps,
        "type_embedding": decoder.has_type_embedding,
        "widths": [stage.channels for stage in stages],
        "stages": [
            {
                "channels": stage.channels,
                "depth": stage.depth,
                "kernel": list(stage.kernel),
                "up": list(stage.up),
                "out_channels": stage.out_channels or decoder.pixel_channels,
            }
            for stage in stages
        ],
    }
    return {"patch_size": decoder.patch_size, "denoising_steps": decoder.steps, **encoder, "decoder": description}


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
