"""The decoder of the mlx-video package with our weights."""

from collections.abc import Iterator

import mlx.core as mx
import numpy as np

from mlx_ltx_vae.bench.case import Case
from mlx_ltx_vae.models.video_vae.block_types import RES_STACK
from mlx_ltx_vae.vae import VideoVAE

from .adapters import FrameDecoder, original_weights, to_frames


def load_mlx_video(vae: VideoVAE, _: Case) -> FrameDecoder:
    """mlx-video's decoder, in its default tiles, with the weights of a VAE."""
    from mlx_video.models.ltx_2.video_vae.convolution import PaddingModeType
    from mlx_video.models.ltx_2.video_vae.decoder import LTX2VideoDecoder
    from mlx_video.models.ltx_2.video_vae.tiling import TilingConfig

    decoder = vae.config.decoder
    blocks = [
        ("res", block.out_channels, block.num_layers)
        if block.type is RES_STACK
        else ("d2s", block.in_channels, block.in_channels // block.out_channels, block.stride, block.residual)
        for block in decoder.blocks
    ]
    model = LTX2VideoDecoder(
        in_channels=vae.config.latent_channels,
        patch_size=vae.config.patch_size,
        spatial_padding_mode=PaddingModeType(decoder.options.padding.value),
        timestep_conditioning=False,
        decoder_blocks=blocks,
    )
    weights = {f"vae.decoder.{name}": array for name, array in original_weights(vae).items()}
    weights["vae.per_channel_statistics.mean-of-means"] = vae.mean
    weights["vae.per_channel_statistics.std-of-means"] = vae.std
    model.load_weights(list(model.sanitize(weights).items()))
    mx.eval(model.parameters())
    dtype, causal = vae.dtype, decoder.options.causal

    def decode(latents: mx.array) -> Iterator[np.ndarray]:
        tiling = TilingConfig.default()
        yield to_frames(model.decode_tiled(latents.astype(dtype), tiling, tiling_mode="default", causal=causal))

    return decode
