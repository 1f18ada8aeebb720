"""What the adapters to other decoders share."""

from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np

from mlx_ltx_vae.bench.subject import loaded_networks
from mlx_ltx_vae.mlx_utils import named_parameters
from mlx_ltx_vae.pipeline.postprocess import FrameChunk
from mlx_ltx_vae.vae import VideoVAE

#: Takes latents (1, C, F', H', W'), normalized; yields frames (n, H, W, 3) uint8.
FrameDecoder = Callable[[mx.array], Iterator[np.ndarray]]


def to_frames(pixels: mx.array) -> np.ndarray:
    """Pixels (1, 3, n, H, W) in [-1, 1] as frames (n, H, W, 3) uint8, converted on the device."""
    return FrameChunk(0, pixels.transpose(0, 2, 3, 4, 1)).to_uint8()


def original_weights(vae: VideoVAE) -> dict[str, mx.array]:
    """The weights of a VAE without encoder, named as in the original files, in torch's layout (O, I, D, H, W)."""
    (decoder,) = loaded_networks(vae)
    return {
        name: array.transpose(0, 4, 1, 2, 3) if array.ndim == 5 else array
        for name, array in named_parameters(decoder).items()
    }
