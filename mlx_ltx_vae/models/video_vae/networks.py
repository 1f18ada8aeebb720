"""The convolutional encoder and decoder, and the module that computes each block type of `block_types.py`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from ...errors import LatentsError
from ...streaming.context import Stage, StreamContext, pointwise
from ...streaming.driver import run_whole
from ..base import Layer, Statistics
from ..convolution.rules import ConvRule, choose
from ..input_shapes import check_frame_shape, check_latent_shape
from ..layers.activation import Modulation, read_modulations
from ..layers.attention import FrameAttention
from ..layers.conv import CausalConv3d
from ..layers.resample import DepthToSpaceUpsample, SpaceToDepthDownsample, interleave, patch_order, patchify
from ..layers.resnet import ResnetBlock, ResnetStack, TimeEmbedder
from ..noise import LatentNoise, draw
from .block_types import ATTENTION, DOWNSAMPLE, RES_CHANGE, RES_STACK, STRIDED, UPSAMPLE, BlockType
from .config import VAEConfig
from .network_specs import decoder_parts, decoder_spec, encoder_parts, encoder_spec

#: For each type, what makes a block's module from its layer specs.
BLOCK_MODULES: dict[BlockType, Callable[..., Layer]] = {
    RES_STACK: ResnetStack,
    RES_CHANGE: ResnetBlock,
    UPSAMPLE: DepthToSpaceUpsample,
    DOWNSAMPLE: SpaceToDepthDownsample,
    STRIDED: CausalConv3d,
    ATTENTION: FrameAttention,
}


class ConvDecoder(nn.Module):
    """Decodes denormalized latents (B, T, H, W, C) to pixels (B, 1 + t*(T-1), s*H, s*W, 3), approximately in [-1, 1].

    `stages` is the only forward pass; its caller chooses how many positions to process at a time. The decoder can also
    be called, on normalized latents in the axes of the API.

    Checkpoint keys: `conv_in`, `up_blocks.i`, `conv_out`; with a timestep `timestep_scale_multiplier`,
    `last_time_embedder`, `last_scale_shift_table` (2, C: shift, scale).
    """

    def __init__(self, config: VAEConfig, statistics: Statistics, rule: ConvRule = choose) -> None:
        super().__init__()
        parts = decoder_parts(config, rule)
        self.conv_in = CausalConv3d(parts.conv_in)
        self.up_blocks = [BLOCK_MODULES[kind](*layers) for kind, layers in parts.blocks]
        self.conv_out = CausalConv3d(parts.conv_out, patch_order(parts.conv_out.conv_channels, config.patch_size))
        if parts.conv_out.is_modulated:
            self.timestep_scale_multiplier = mx.array(1000.0)
            self.last_time_embedder = TimeEmbedder(2 * parts.conv_out.in_channels)
            self.last_scale_shift_table = mx.zeros((2, parts.conv_out.in_channels))
        self.spec = decoder_spec(config, rule)
        self.statistics = statistics
        self._patch_size = config.patch_size
        self._is_causal = config.causal_decoder

    def __call__(
        self,
        latents: mx.array,
        causal: bool | None = None,
        timestep: float | mx.array | None = None,
        debug: bool = False,
        chunked_conv: bool = False,
    ) -> mx.array:
        """Decode normalized latents (B, C, T, H, W) to pixels (B, 3, F, H, W), approximately in [-1, 1], in one pass.

        Its memory grows with the clip; `VideoVAE.stream` gives the same result.

        Args:
            causal: what the tilers of other ports pass; must agree with the checkpoint.
            timestep: see `VideoVAE.stream`. Noise is drawn from seed 0.
            debug, chunked_conv: without effect; the tilers of other ports pass them.

        Raises:
            LatentsError: if the network cannot take the latents or the timestep.
        """
        if causal is not None and causal != self._is_causal:
            raise LatentsError(f"this decoder has causal={self._is_causal}, and was called with causal={causal}.")
        shape = check_latent_shape(self.spec, latents.shape)
        draws = draw(self.spec, shape, self.dtype, timestep=None if timestep is None else float(timestep))
        whole = (slice(0, shape.frames), slice(0, shape.height), slice(0, shape.width))
        prepared = self.prepare(latents, draws.crop(whole))
        context = StreamContext(timesteps=draws.timesteps(shape.batch), noise_maps=draws.maps)
        return run_whole(self.stages(context), prepared).transpose(0, 4, 1, 2, 3)

    @property
    def dtype(self) -> mx.Dtype:
        return self.conv_in.conv.dtype

    def prepare(self, latents: mx.array, noise: LatentNoise | None) -> mx.array:
        latents = latents.astype(mx.float32)
        if noise is not None and not noise.is_late:
            latents = noise.mix(latents)
        latents = self.statistics.denormalize(latents)
        if noise is not None and noise.is_late:
            latents = noise.mix(latents)
        return latents.transpose(0, 2, 3, 4, 1).astype(self.dtype)

    def stages(self, context: StreamContext) -> list[Stage]:
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
        return [*stages, pointwise(partial(interleave, stride=(1, self._patch_size, self._patch_size)))]


class ConvEncoder(nn.Module):
    """Encodes pixels (B, 1 + t*(T-1), s*H, s*W, 3) in [-1, 1] to the means of unnormalized latents (B, T, H, W, C).

    It streams along time. `conv_out` has weights for mean and log-variance; only the means are computed. The encoder
    can also be called, on frames in the axes of the API. Checkpoint keys: `conv_in`, `down_blocks.i`, `conv_out`.
    """

    def __init__(self, config: VAEConfig, statistics: Statistics, rule: ConvRule = choose) -> None:
        super().__init__()
        parts = encoder_parts(config, rule)
        self.conv_in = CausalConv3d(parts.conv_in)
        self.down_blocks = [BLOCK_MODULES[kind](*layers) for kind, layers in parts.blocks]
        self.conv_out = CausalConv3d(parts.conv_out)
        self.spec = encoder_spec(config, rule)
        self.statistics = statistics
        self._patch_size = config.patch_size

    def __call__(self, pixels: mx.array) -> mx.array:
        """Encode pixels (B, 3, F, H, W) in [-1, 1], where F is 1 + t*k, in one pass.

        Its memory grows with the clip; `VideoVAE.encode` gives the same: normalized latents (B, C, F', H', W'), not
        sampled, in `dtype`. Frames that it cannot take are a `LatentsError`.
        """
        if pixels.ndim != 5:
            raise LatentsError(f"frames have the shape {pixels.shape}; expected (B, 3, F, H, W).")
        check_frame_shape(self.spec, pixels.shape, pad=False)
        self.spec.scale.latent_grid(pixels.shape[2:])  # also refuses frames that would be left out
        frames = pixels.transpose(0, 2, 3, 4, 1).astype(self.dtype)
        return self.to_latents(run_whole(self.stages(StreamContext()), frames))

    @property
    def dtype(self) -> mx.Dtype:
        return self.conv_in.conv.dtype

    def to_latents(self, outputs: mx.array) -> mx.array:
        return self.statistics.normalize(outputs.transpose(0, 4, 1, 2, 3)).astype(self.dtype)

    def stages(self, context: StreamContext) -> list[Stage]:
        stages = [pointwise(partial(patchify, size=self._patch_size)), *self.conv_in.stages(context)]
        for block in self.down_blocks:
            stages += block.stages(context)
        return stages + self.conv_out.stages(context)
