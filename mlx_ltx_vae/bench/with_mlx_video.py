"""The decoder of the mlx-video package, which this one's tiling takes its names from, with our weights."""

from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from ..models.video_vae.config import BlockKind
from ..vae import VideoVAE
from .case import Case
from .subject import to_levels


def load_mlx_video(vae: VideoVAE, _: Case) -> Callable[[mx.array], Iterator[np.ndarray]]:
    """mlx-video's decoder in its default tiles, with a VAE's weights: latents to frames (n, H, W, 3) uint8."""
    from mlx_video.models.ltx_2.video_vae.convolution import PaddingModeType
    from mlx_video.models.ltx_2.video_vae.decoder import LTX2VideoDecoder
    from mlx_video.models.ltx_2.video_vae.tiling import TilingConfig

    decoder = vae.config.decoder
    blocks = [
        ("res", block.out_channels, block.num_layers)
        if block.kind is BlockKind.RES_STACK
        else ("d2s", block.in_channels, block.in_channels // block.out_channels, block.stride, block.residual)
        for block in decoder.blocks
    ]
    model = LTX2VideoDecoder(
        in_channels=vae.config.latent_channels,
        patch_size=vae.config.patch_size,
        spatial_padding_mode=PaddingModeType(decoder.padding.value),
        timestep_conditioning=False,
        decoder_blocks=blocks,
    )
    # It reads the original files' names and layout.
    weights = {
        f"vae.decoder.{name}": array.transpose(0, 4, 1, 2, 3) if array.ndim == 5 else array
        for name, array in tree_flatten(vae.decoder.parameters())
    }
    weights["vae.per_channel_statistics.mean-of-means"] = vae.mean
    weights["vae.per_channel_statistics.std-of-means"] = vae.std
    model.load_weights(list(model.sanitize(weights).items()))
    dtype = vae.dtype
    mx.eval(model.parameters())

    def decode(latents: mx.array) -> Iterator[np.ndarray]:
        pixels = model.decode_tiled(
            latents.astype(dtype), TilingConfig.default(), tiling_mode="default", causal=decoder.causal
        )
        yield to_levels(pixels)

    return decode
