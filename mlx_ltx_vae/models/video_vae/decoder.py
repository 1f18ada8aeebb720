"""The convolutional decoder."""

from dataclasses import replace
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from ...streaming.context import StreamContext
from ...streaming.stage import Stage, pointwise
from ..layers.activation import Modulation, read_modulations
from ..layers.conv import CausalConv3d
from ..layers.resample import unpatchify
from ..layers.time_embedding import TimeEmbedder
from ..noise import Draws
from .blocks import make_block
from .config import VAEConfig
from .specs import decoder_parts, decoder_spec


class ConvDecoder(nn.Module):
    """Decodes denormalized latents (B, T, H, W, C) to pixels (B, 1 + t*(T-1), s*H, s*W, 3), approximately in [-1, 1].

    `stages` is the only forward pass; its caller chooses how many positions to process at a time.

    Checkpoint keys: `conv_in`, `up_blocks.i`, `conv_out`; with a timestep `timestep_scale_multiplier`,
    `last_time_embedder`, `last_scale_shift_table` (2, C: shift, scale).
    """

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        parts = decoder_parts(config)
        self.conv_in = CausalConv3d(parts.conv_in)
        self.up_blocks = [make_block(block) for block in parts.blocks]
        self.conv_out = CausalConv3d(parts.conv_out)
        if parts.conv_out.is_modulated:
            self.timestep_scale_multiplier = mx.array(1000.0)
            self.last_time_embedder = TimeEmbedder(2 * parts.conv_out.in_channels)
            self.last_scale_shift_table = mx.zeros((2, parts.conv_out.in_channels))
        self.spec = decoder_spec(config)
        self._patch_size = parts.patch_size

    @property
    def dtype(self) -> mx.Dtype:
        """The compute dtype."""
        return self.conv_in.conv.weight.dtype

    def prepare(self, latents: mx.array, mean: mx.array, std: mx.array, noise: Draws) -> mx.array:
        """Mix normalized latents (B, C, T, H, W) with noise and denormalize them: (B, T, H, W, C) in `dtype`."""
        latents = latents.astype(mx.float32)
        if self.spec.has_latent_noise:
            latents = (1 - noise.scale) * latents
            if noise.latents is not None:
                latents = latents + noise.scale * noise.latents
        return (latents.transpose(0, 2, 3, 4, 1) * std + mean).astype(self.dtype)

    def stages(self, context: StreamContext) -> list[Stage]:
        """The forward pass of a new stream."""
        modulation: Modulation | None = None
        if self.spec.has_timestep and context.timesteps is not None:
            multiplier = self.timestep_scale_multiplier.astype(mx.float32)
            timesteps = context.timesteps.astype(mx.float32) * multiplier
            context = replace(context, timesteps=timesteps)
            (modulation,) = read_modulations(self.last_scale_shift_table, self.last_time_embedder(timesteps))
        stages = self.conv_in.stages(context)
        for block in self.up_blocks:
            stages += block.stages(context)
        stages += self.conv_out.stages(context, modulation=modulation)
        return [*stages, pointwise(partial(unpatchify, size=self._patch_size))]
