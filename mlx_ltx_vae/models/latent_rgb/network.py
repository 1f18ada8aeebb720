"""The projection as a decoder: one picture per latent frame."""

from functools import partial

import mlx.core as mx
import mlx.nn as nn

from ...streaming.context import Stage, StreamContext, pointwise
from ...streaming.driver import run_whole
from ..input_shapes import check_latent_shape
from ..layers.resample import interleave
from ..noise import LatentNoise
from ..specs import LayerSpec, NetworkSpec
from .config import LatentRGBConfig

WEIGHT, BIAS = "to_rgb.weight", "to_rgb.bias"


class LatentRGBDecoder(nn.Module):
    """Projects normalized latents (B, T, H, W, C) to pixels (B, T, p*H, p*W, 3), approximately in [-1, 1].

    It can also be called, on latents in the axes of the API. Checkpoint keys: `to_rgb.weight` (p*p*3, C), its rows
    ordered (rows, columns, colors), and `to_rgb.bias` (p*p*3,).
    """

    statistics = None

    def __init__(self, config: LatentRGBConfig) -> None:
        super().__init__()
        self.spec = decoder_spec(config)
        self.to_rgb = nn.Linear(config.latent_channels, 3 * config.patch_size**2)
        self._patch_size = config.patch_size

    def __call__(self, latents: mx.array) -> mx.array:
        check_latent_shape(self.spec, latents.shape)
        return run_whole(self.stages(StreamContext()), self.prepare(latents, None)).transpose(0, 4, 1, 2, 3)

    @property
    def dtype(self) -> mx.Dtype:
        return self.to_rgb.weight.dtype

    def prepare(self, latents: mx.array, noise: LatentNoise | None) -> mx.array:
        return latents.transpose(0, 2, 3, 4, 1).astype(self.dtype)

    def stages(self, context: StreamContext) -> list[Stage]:
        patch = (1, self._patch_size, self._patch_size)
        return [pointwise(self.to_rgb), pointwise(partial(interleave, stride=patch))]


def decoder_spec(config: LatentRGBConfig) -> NetworkSpec:
    """The layers. Pictures of still latents repeat patches, so they may."""
    channels, size = config.latent_channels, config.patch_size
    colors = 3 * size**2
    weights = ((WEIGHT, (colors, channels)), (BIAS, (colors,)))
    projection = LayerSpec("to_rgb", channels, colors, weights=weights)
    return NetworkSpec((projection, LayerSpec("patches", colors, 3, up=(1, size, size))))
