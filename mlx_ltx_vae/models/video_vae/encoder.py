"""The convolutional encoder."""

from functools import partial

import mlx.core as mx
import mlx.nn as nn

from ...streaming.context import StreamContext
from ...streaming.stage import Stage, pointwise
from ..layers.conv import CausalConv3d
from ..layers.resample import patchify
from .blocks import make_block
from .config import VAEConfig
from .specs import encoder_parts, encoder_spec


class ConvEncoder(nn.Module):
    """Encodes pixels (B, 1 + t*(T-1), s*H, s*W, 3) in [-1, 1] to the means of unnormalized latents (B, T, H, W, C).

    It is causal and streams along time. `conv_out` has weights for mean and log-variance; only the means are computed.

    Checkpoint keys: `conv_in`, `down_blocks.i`, `conv_out`.
    """

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        parts = encoder_parts(config)
        self.conv_in = CausalConv3d(parts.conv_in)
        self.down_blocks = [make_block(block) for block in parts.blocks]
        self.conv_out = CausalConv3d(parts.conv_out)
        self.spec = encoder_spec(config)
        self._patch_size = parts.patch_size

    @property
    def dtype(self) -> mx.Dtype:
        """The compute dtype."""
        return self.conv_in.conv.weight.dtype

    def stages(self, context: StreamContext) -> list[Stage]:
        """The forward pass of a new stream along time."""
        stages = [pointwise(partial(patchify, size=self._patch_size)), *self.conv_in.stages(context)]
        for block in self.down_blocks:
            stages += block.stages(context)
        return stages + self.conv_out.stages(context)
