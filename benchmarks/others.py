"""Other decoders with our weights: tiles as MLX ports run them, the diffusers library on torch, and mlx-video."""

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np

from benchmarks.measuring import Case, make_random_network
from mlx_ltx_vae.backend.mlx_utils import dtype_name, named_parameters
from mlx_ltx_vae.checkpoint import open_checkpoint
from mlx_ltx_vae.models.video_vae.block_types import RES_STACK
from mlx_ltx_vae.models.video_vae.config import VAEConfig
from mlx_ltx_vae.models.video_vae.names import read_diffusers_config
from mlx_ltx_vae.pipeline.frames import FrameChunk
from mlx_ltx_vae.tiling import TilingConfig, decode_with_tiling
from mlx_ltx_vae.vae import VideoVAE

#: Takes latents (1, C, F', H', W'), normalized; yields frames (n, H, W, 3) uint8.
FrameDecoder = Callable[[mx.array], Iterator[np.ndarray]]

_UPSAMPLE_TYPES = {(1, 2, 2): "spatial", (2, 1, 1): "temporal", (2, 2, 2): "spatiotemporal"}


def load_ports(vae: VideoVAE, case: Case) -> FrameDecoder:
    """Tiles as MLX ports run them: one after the other, each in a single pass, blended on all three axes."""
    scale = vae.config.scale

    def decode_tile(latents: mx.array, **_: Any) -> mx.array:
        return vae.decode(latents, vae.plan(latents.shape, mode="single"))

    def decode(latents: mx.array) -> Iterator[np.ndarray]:
        frames: list[np.ndarray] = []

        def keep(pixels: mx.array, _: int) -> None:
            frames.append(_to_frames(pixels).copy())  # outside MLX's memory

        tiling, scales = case.make_tiling() or TilingConfig.default(), (scale.height, scale.time)
        decode_with_tiling(decode_tile, latents, tiling, *scales, on_frames_ready=keep, keep_output=False)
        yield from frames

    return decode


def load_diffusers(vae: VideoVAE, case: Case) -> FrameDecoder:
    """diffusers' decoder with the weights of a VAE."""
    import torch
    from diffusers import AutoencoderKLLTX2Video

    assert isinstance(vae.config, VAEConfig) and vae.mean is not None and vae.std is not None
    raw_config = diffusers_config(vae.config)
    model = AutoencoderKLLTX2Video(**raw_config)
    del model.encoder
    device = "mps" if torch.backends.mps.is_available() else "cpu"
    dtype = getattr(torch, dtype_name(vae.dtype))

    def to_torch(array: mx.array) -> torch.Tensor:
        return torch.from_numpy(np.array(array.astype(mx.float32), order="C"))

    weights = original_weights(case)
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


def diffusers_config(config: VAEConfig) -> dict[str, Any]:
    """Return a decoder's configuration for diffusers' `AutoencoderKLLTX2Video`, beside an encoder of the least size.

    Args:
        config: of a decoder in which residual stacks and upsampling blocks alternate.
    """
    decoder = config.network("decoder")
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


def load_mlx_video(vae: VideoVAE, case: Case) -> FrameDecoder:
    """mlx-video's decoder, in its default tiles, with the weights of a VAE."""
    from mlx_video.models.ltx_2.video_vae.convolution import PaddingModeType
    from mlx_video.models.ltx_2.video_vae.decoder import LTX2VideoDecoder
    from mlx_video.models.ltx_2.video_vae.tiling import TilingConfig

    config = vae.config
    assert isinstance(config, VAEConfig) and vae.mean is not None and vae.std is not None
    decoder = config.network("decoder")
    blocks = [
        ("res", block.out_channels, block.num_layers)
        if block.type is RES_STACK
        else ("d2s", block.in_channels, block.in_channels // block.out_channels, block.stride, block.residual)
        for block in decoder.blocks
    ]
    model = LTX2VideoDecoder(
        in_channels=config.latent_channels,
        patch_size=config.patch_size,
        spatial_padding_mode=PaddingModeType(decoder.options.padding.value),
        timestep_conditioning=False,
        decoder_blocks=blocks,
    )
    weights = {f"vae.decoder.{name}": array for name, array in original_weights(case).items()}
    weights["vae.per_channel_statistics.mean-of-means"] = vae.mean
    weights["vae.per_channel_statistics.std-of-means"] = vae.std
    model.load_weights(list(model.sanitize(weights).items()))
    mx.eval(model.parameters())
    dtype, causal = vae.dtype, decoder.options.causal

    def decode(latents: mx.array) -> Iterator[np.ndarray]:
        tiling = TilingConfig.default()
        yield _to_frames(model.decode_tiled(latents.astype(dtype), tiling, tiling_mode="default", causal=causal))

    return decode


def _to_frames(pixels: mx.array) -> np.ndarray:
    """Pixels (1, 3, n, H, W) in [-1, 1] as frames (n, H, W, 3) uint8, converted on the device."""
    return FrameChunk(0, pixels.transpose(0, 2, 3, 4, 1)).to_uint8()


def original_weights(case: Case, network: str = "decoder") -> dict[str, mx.array]:
    """Return the weights of a case's decoder or encoder, named and laid out (O, I, D, H, W) as in the original files.

    Weights of a loaded network are laid out for the device.
    """
    if case.model:
        weights = dict(open_checkpoint(case.model).networks[network].read())
    else:
        weights = named_parameters(make_random_network(case, network))
    return {name: array.transpose(0, 4, 1, 2, 3) if array.ndim == 5 else array for name, array in weights.items()}
