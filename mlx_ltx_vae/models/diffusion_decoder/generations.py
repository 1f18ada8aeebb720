"""The configuration of the published diffusion decoder, in the format of checkpoint metadata. No MLX."""

from typing import Any

from .config import CLASS_NAME, DECODER_CLASS_NAME, GENERATION, DiffusionVAEConfig, parse_decoder_config

_BASE_CHANNELS = 128  # of the conv decoder of the same latents
_HEAD_DIM = 64
_LTX_2_5: dict[str, Any] = {
    "in_channels": 128,
    "stage_channels": [2048, 1024, 512, 512, 256],
    "stage_depths": [4, 6, 4, 2, 8],
    "stage_kernels": [[3, 7, 7], [3, 7, 7], [3, 5, 5], [3, 5, 5]],
    "stage5_kernel": [11, 11, 11],
    "upsamples": [[[1, 2, 2], 2], [[2, 1, 1], 2], [[2, 2, 2], 1], [[2, 2, 2], 2]],
    "t_emb_dim": 384,
    "timestep_scale_multiplier": 1000,
    "default_num_inference_steps": 1,
}


def ltx_2_5(base_channels: int = _BASE_CHANNELS) -> DiffusionVAEConfig:
    """LTX-2.5's decoder without its encoder, as narrow as a conv decoder with so many base channels."""
    raw = raw_ltx_2_5(base_channels)
    output = raw["model_output_type"]
    return DiffusionVAEConfig(
        None, parse_decoder_config(raw["decoder"], output, GENERATION, is_fused=True, has_gates=False)
    )


def raw_ltx_2_5(base_channels: int) -> dict[str, Any]:
    """The same, as a file states it."""
    widths = [width * base_channels // _BASE_CHANNELS for width in _LTX_2_5["stage_channels"]]
    decoder = {**_LTX_2_5, "stage_channels": widths, "head_dim": min(widths[-1], _HEAD_DIM)}
    return {
        "_class_name": CLASS_NAME,
        "model_output_type": "x0",
        "decoder": {"_class_name": DECODER_CLASS_NAME, **decoder},
    }
