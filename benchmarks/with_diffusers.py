"""The diffusers library's decoder on torch, with our weights."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_ltx_vae.bench.case import Case
from mlx_ltx_vae.checkpoint.diffusers import read_diffusers_config
from mlx_ltx_vae.dtypes import dtype_name
from mlx_ltx_vae.models.video_vae.config import VAEConfig
from mlx_ltx_vae.vae import VideoVAE

from .adapters import FrameDecoder, original_weights

_UPSAMPLE_TYPES = {(1, 2, 2): "spatial", (2, 1, 1): "temporal", (2, 2, 2): "spatiotemporal"}


def diffusers_config(config: VAEConfig) -> dict[str, Any]:
    """A decoder's configuration for diffusers' `AutoencoderKLLTX2Video`, beside an encoder of the least size.

    Args:
        config: of a decoder in which residual stacks and upsampling blocks alternate.
    """
    decoder = config.decoder
    stacks, upsamplers = decoder.blocks[::2], decoder.blocks[1::2]
    latents = config.latent_channels
    return {
        "latent_channels": latents,
        "block_out_channels": [latents],
        "layers_per_block": [1, 1],
        "down_block_types": ["LTX2VideoDownBlock3D"],
        "downsample_type": ["spatial"],
        "spatio_temporal_scaling": [True],
        # All but the types are listed in the encoder's order.
        "decoder_block_out_channels": [block.in_channels for block in upsamplers[::-1]],
        "decoder_layers_per_block": [block.num_layers for block in stacks[::-1]],
        "decoder_spatio_temporal_scaling": [True] * len(upsamplers),
        "decoder_inject_noise": [False] * len(stacks),
        "upsample_type": [_UPSAMPLE_TYPES[block.stride] for block in upsamplers],
        "upsample_residual": [block.residual for block in upsamplers[::-1]],
        "upsample_factor": [block.in_channels // block.out_channels for block in upsamplers[::-1]],
        "decoder_causal": decoder.options.causal,
        "decoder_spatial_padding_mode": decoder.options.padding.value,
        "patch_size": config.patch_size,
    }


def load_diffusers(vae: VideoVAE, _: Case) -> FrameDecoder:
    """diffusers' decoder with the weights of a VAE."""
    import torch
    from diffusers import AutoencoderKLLTX2Video

    raw_config = diffusers_config(vae.config)
    model = AutoencoderKLLTX2Video(**raw_config)
    del model.encoder
    device = "mps" if torch.backends.mps.is_available() else "cpu"
    dtype = getattr(torch, dtype_name(vae.dtype))

    def to_torch(array: mx.array) -> torch.Tensor:
        return torch.from_numpy(np.array(array.astype(mx.float32), order="C"))

    weights = original_weights(vae)
    translation = read_diffusers_config({"_class_name": AutoencoderKLLTX2Video.__name__, **raw_config}, "diffusers")
    names = translation.original_names("decoder", model.decoder.state_dict())
    model.decoder.load_state_dict({name: to_torch(weights[original]) for name, original in names.items()})
    model = model.to(device, dtype).eval()
    mean, std = vae.mean[:, None, None, None], vae.std[:, None, None, None]

    def decode(latents: mx.array) -> Iterator[np.ndarray]:
        prepared = to_torch(latents.astype(mx.float32) * std + mean).to(device, dtype)
        with torch.inference_mode():
            pixels = model.decode(prepared, return_dict=False)[0][0]
            levels = ((pixels.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
            yield levels.permute(1, 2, 3, 0).contiguous().cpu().numpy()

    return decode
