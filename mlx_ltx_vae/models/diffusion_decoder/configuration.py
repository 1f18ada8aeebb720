"""The configuration of a checkpoint with a diffusion decoder, in the vocabulary of the original or of diffusers."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ...errors import CheckpointError
from ..base import Configuration, Shapes, Stored
from ..video_vae import configuration as of_conv_vae
from ..video_vae.config import VAEConfig
from ..video_vae.raw_config import unknown_key
from .config import CLASS_NAME, DECODER_CLASS_NAME, DecoderConfig, DiffusionVAEConfig, parse_decoder_config

_DIFFUSERS_CLASS = "LTX2VideoDiffusionDecoderModel"

_TOP_KEYS = {"_class_name", "dims", "model_output_type", "encoder", "decoder"}
# Keys of diffusers' config.json by those of the original. All must be stated.
_DIFFUSERS_KEYS = {
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
_DIFFUSERS_OTHERS = {
    "decoder_model_output_type", "decoder_upsample_strides", "decoder_upsample_channel_reductions",
    "spatial_compression_ratio", "temporal_compression_ratio", "scaling_factor",
}  # fmt: skip


def choose_config(contents: Iterable[object]) -> dict[str, Any] | None:
    """The first configuration of a VAE with a diffusion decoder, in either vocabulary; None if there is none."""
    for content in contents:
        for raw in (content.get("vae"), content) if isinstance(content, Mapping) else ():
            if isinstance(raw, Mapping) and raw.get("_class_name") in (CLASS_NAME, _DIFFUSERS_CLASS):
                return dict(raw)
    return None


def configure(
    stated: Mapping[str, Any] | DiffusionVAEConfig | None, stored: Stored
) -> Configuration[DiffusionVAEConfig]:
    """The decoder must be stated; the encoder is as in the conv VAE, also where it is inferred."""
    if isinstance(stated, DiffusionVAEConfig):
        return Configuration(stated, {})
    raw = dict(stated or {})
    if raw.get("_class_name") == _DIFFUSERS_CLASS:
        raw = _translate(raw, stored.source)
    for key in sorted(raw.keys() - _TOP_KEYS):
        if raw[key] and not key.startswith("_"):
            raise unknown_key(f"{stored.source}: its configuration", key, raw[key])
    decoder, encoder = _decoder(raw, stored), _encoder(raw, stored)
    if encoder and encoder.latent_channels != decoder.latent_channels:
        raise CheckpointError(
            f"{stored.source}: its encoder makes latents of {encoder.latent_channels} channels and its decoder takes "
            f"{decoder.latent_channels}, so the two do not belong together."
        )
    if encoder and encoder.scale != decoder.scale:
        raise CheckpointError(
            f"{stored.source}: its encoder scales by {tuple(encoder.scale)} and its decoder by {tuple(decoder.scale)} "
            "(time, height, width), so the two do not belong together."
        )
    return Configuration(DiffusionVAEConfig(encoder, decoder), raw)


def _encoder(raw: Mapping[str, Any], stored: Stored) -> VAEConfig | None:
    """The encoder's configuration; None if it is neither stated nor stored."""
    shapes = {name: each for name, each in stored.networks.items() if name == "encoder"}
    stated = of_conv_vae.choose_config([{**raw, "_class_name": CLASS_NAME}])
    if not shapes and not stated:
        return None
    wanted = [network for network in stored.wanted if network == "encoder"]
    config = of_conv_vae.configure(stated, stored._replace(networks=shapes, wanted=wanted)).config
    return replace(config, decoder=None)


def _decoder(raw: Mapping[str, Any], stored: Stored) -> DecoderConfig:
    decoder = raw.get("decoder")
    if not isinstance(decoder, Mapping) or not decoder:
        raise CheckpointError(
            f"{stored.source}: this is the diffusion decoder of LTX-2.5, and its configuration is missing, without "
            "which it decodes to static; add it as the metadata entry 'config' of the file, or as config.json beside "
            "it, or load the encoder alone with decoder=False."
        )
    names: Shapes = stored.networks.get("decoder", {})
    return parse_decoder_config(
        decoder,
        raw.get("model_output_type"),
        stored.source,
        is_fused=not any(".attn.to_q." in name for name in names),
        has_gates=any(name.endswith(".gate_msa") for name in names),
    )


def _translate(raw: Mapping[str, Any], source: str) -> dict[str, Any]:
    """A config.json of diffusers in the vocabulary of the original."""
    known = {*_DIFFUSERS_KEYS.values(), *_DIFFUSERS_OTHERS}
    if unknown := sorted(key for key in raw.keys() - known if raw[key] and not key.startswith("_")):
        raise unknown_key(f"{source}: its config.json", unknown[0], raw[unknown[0]])
    missing = sorted(known - {"spatial_compression_ratio", "temporal_compression_ratio", "scaling_factor"} - raw.keys())
    if missing:
        raise CheckpointError(
            f"{source}: its config.json has no {missing[0]}; use the config.json that came with the weights."
        )
    strides, reductions = (raw[f"decoder_upsample_{name}"] for name in ("strides", "channel_reductions"))
    if not isinstance(strides, list) or not isinstance(reductions, list) or len(strides) != len(reductions):
        raise CheckpointError(
            f"{source}: decoder_upsample_strides and decoder_upsample_channel_reductions of its config.json are not "
            "lists of one length; use the config.json that came with the weights."
        )
    decoder = {ours: raw[theirs] for ours, theirs in _DIFFUSERS_KEYS.items()}
    decoder["upsamples"] = [list(pair) for pair in zip(strides, reductions, strict=True)]
    return {
        "_class_name": CLASS_NAME,
        "dims": 3,
        "model_output_type": raw["decoder_model_output_type"],
        "decoder": {"_class_name": DECODER_CLASS_NAME, **decoder},
    }
