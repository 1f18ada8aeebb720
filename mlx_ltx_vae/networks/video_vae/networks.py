"""Convolutional encoder and decoder, and the module that computes each block type of `block_types.py`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import cast

import mlx.core as mx
import mlx.nn as nn

from ...errors import LatentsError
from ...streaming.context import Stage, StreamContext, pointwise
from ..base import Decoder, Encoder, Statistics
from ..convolution.rules import ConvRule, choose
from ..layers import (
    CausalConv3d,
    DepthToSpaceUpsample,
    FrameAttention,
    Modulation,
    ResnetBlock,
    ResnetStack,
    SpaceToDepthDownsample,
    TimeEmbedder,
    add_weights,
    interleave,
    patch_order,
    patchify,
    read_modulations,
)
from ..specs import ConvSpec, NetworkSpec
from .block_types import ATTENTION, DOWNSAMPLE, RES_CHANGE, RES_STACK, STRIDED, UPSAMPLE, BlockType
from .config import NetworkConfig, VAEConfig, decoder_spec, encoder_spec

#: For each type, the module of a block, which is made from its layer specs.
BLOCK_MODULES: dict[BlockType, Callable[..., nn.Module]] = {
    RES_STACK: ResnetStack,
    RES_CHANGE: ResnetBlock,
    UPSAMPLE: DepthToSpaceUpsample,
    DOWNSAMPLE: SpaceToDepthDownsample,
    STRIDED: CausalConv3d,
    ATTENTION: FrameAttention,
}


def _read_layers(spec: NetworkSpec, network: NetworkConfig) -> tuple[ConvSpec, list[nn.Module], ConvSpec]:
    """Return the first convolution of a network, the modules of its blocks, and the last convolution."""
    layers = [layer for layer in spec.layers if layer.name not in ("patchify", "unpatchify")]
    groups = groupby(layers[1:-1], lambda layer: layer.name.split(".")[:2])
    modules = [BLOCK_MODULES[block.type](*group) for block, (_, group) in zip(network.blocks, groups, strict=True)]
    return cast(ConvSpec, layers[0]), modules, cast(ConvSpec, layers[-1])


class ConvDecoder(Decoder):
    """Decoder of denormalized latents (B, T, H, W, C) to pixels (B, 1 + t*(T-1), s*H, s*W, 3).

    Pixels are approximately in [-1, 1]. Checkpoint keys: `conv_in`, `up_blocks.i`, `conv_out`; with a timestep
    `timestep_scale_multiplier`, `last_time_embedder`, `last_scale_shift_table` (2, C: shift, scale).
    """

    def __init__(self, config: VAEConfig, statistics: Statistics, rule: ConvRule = choose) -> None:
        super().__init__(decoder_spec(config, rule), statistics)
        conv_in, self.up_blocks, conv_out = _read_layers(self.spec, config.network("decoder"))
        self.conv_in = CausalConv3d(conv_in)
        self.conv_out = CausalConv3d(conv_out, patch_order(conv_out.conv_channels, config.patch_size))
        if conv_out.is_modulated:
            self.timestep_scale_multiplier = mx.array(1000.0)
            self.last_time_embedder = TimeEmbedder()
            add_weights(self, conv_out.weights)
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
        """Decode like any decoder, with the arguments that the tilers of other ports pass.

        Args:
            causal: must agree with the checkpoint.
            timestep: see `VideoVAE.stream`.
            debug, chunked_conv: without effect.
        """
        if causal is not None and causal != self._is_causal:
            raise LatentsError(f"this decoder has causal={self._is_causal}, and was called with causal={causal}.")
        return self.decode_whole(latents, None if timestep is None else float(timestep))

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


class ConvEncoder(Encoder):
    """Encoder of pixels (B, 1 + t*(T-1), s*H, s*W, 3) in [-1, 1] to the means of unnormalized latents (B, T, H, W, C).

    It streams along time. `conv_out` has weights for mean and log-variance; only the means are computed. Checkpoint
    keys: `conv_in`, `down_blocks.i`, `conv_out`.
    """

    def __init__(self, config: VAEConfig, statistics: Statistics, rule: ConvRule = choose) -> None:
        super().__init__(encoder_spec(config, rule), statistics)
        conv_in, self.down_blocks, conv_out = _read_layers(self.spec, config.network("encoder"))
        self.conv_in, self.conv_out = CausalConv3d(conv_in), CausalConv3d(conv_out)
        self._patch_size = config.patch_size

    def stages(self, context: StreamContext) -> list[Stage]:
        stages = [pointwise(partial(patchify, size=self._patch_size)), *self.conv_in.stages(context)]
        for block in self.down_blocks:
            stages += block.stages(context)
        return stages + self.conv_out.stages(context)
