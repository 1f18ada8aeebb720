"""The diffusers library's decoder on torch, with our weights."""

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from ..checkpoint.diffusers import read_diffusers_config
from ..models.video_vae.config import BlockConfig, VAEConfig
from ..vae import VideoVAE
from .case import Case

_UPSAMPLE_TYPES = {(1, 2, 2): "spatial", (2, 1, 1): "temporal", (2, 2, 2): "spatiotemporal"}


def diffusers_config(config: VAEConfig) -> dict[str, Any]:
    """What diffusers' class for LTX-2 and later calls this decoder, of stacks and shuffles in turns.

    The encoder beside it is as small as it can be.
    """
    decoder = config.decoder
    stacks, shuffles = decoder.blocks[::2], decoder.blocks[1::2]

    def factor(block: BlockConfig) -> int:
        return block.in_channels // block.out_channels

    latents = config.latent_channels
    return {
        "latent_channels": latents,
        "block_out_channels": [latents],
        "layers_per_block": [1, 1],
        "down_block_types": ["LTX2VideoDownBlock3D"],
        "downsample_type": ["spatial"],
        "spatio_temporal_scaling": [True],
        # All but the types are listed in the encoder's order.
        "decoder_block_out_channels": [block.in_channels for block in shuffles[::-1]],
        "decoder_layers_per_block": [block.num_layers for block in stacks[::-1]],
        "decoder_spatio_temporal_scaling": [True] * len(shuffles),
        "decoder_inject_noise": [False] * len(stacks),
        "upsample_type": [_UPSAMPLE_TYPES[block.stride] for block in shuffles],
        "upsample_residual": [block.residual for block in shuffles[::-1]],
        "upsample_factor": [factor(block) for block in shuffles[::-1]],
        "decoder_causal": decoder.causal,
        "decoder_spatial_padding_mode": decoder.padding.value,
        "patch_size": config.patch_size,
    }


def load_diffusers(vae: VideoVAE, _: Case) -> Callable[[mx.array], Iterator[np.ndarray]]:
    """diffusers' decoder with a VAE's weights: latents (1, C, F', H', W') to frames (n, H, W, 3) uint8."""
    import torch
    from diffusers import AutoencoderKLLTX2Video

    raw = diffusers_config(vae.config)
    model = AutoencoderKLLTX2Video(**raw)
    del model.encoder
    device = "mps" if torch.backends.mps.is_available() else "cpu"
    dtype = getattr(torch, str(vae.dtype).rpartition(".")[2])

    def to_torch(array: mx.array) -> Any:
        return torch.from_numpy(np.array(array.astype(mx.float32), order="C"))

    # (O, D, H, W, I) here, and torch wants the input channels second.
    weights = {
        name: array.transpose(0, 4, 1, 2, 3) if array.ndim == 5 else array
        for name, array in tree_flatten(vae.decoder.parameters())
    }
    described = read_diffusers_config({"_class_name": AutoencoderKLLTX2Video.__name__, **raw}, "diffusers")
    names = described.original_names("decoder", model.decoder.state_dict())
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
