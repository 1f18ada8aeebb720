"""The convolutional encoder."""

from functools import partial

import mlx.core as mx
import mlx.nn as nn

from ...errors import LatentsError
from ...streaming.context import StreamContext
from ...streaming.driver import run_whole
from ...streaming.stage import Stage, pointwise
from ..base import Statistics
from ..convolution.rules import ConvRule, choose
from ..input_shapes import check_frame_shape
from ..layers.conv import CausalConv3d
from ..layers.resample import patchify
from .blocks import make_block
from .config import VAEConfig
from .network_specs import encoder_parts, encoder_spec


class ConvEncoder(nn.Module):
    """Encodes pixels (B, 1 + t*(T-1), s*H, s*W, 3) in [-1, 1] to the means of unnormalized latents (B, T, H, W, C).

    It is causal and streams along time. `conv_out` has weights for mean and log-variance; only the means are computed.
    The encoder can also be called, on frames in the axes of the API.

    Args:
        rule: of all convolutions.

    Checkpoint keys: `conv_in`, `down_blocks.i`, `conv_out`.
    """

    def __init__(self, config: VAEConfig, statistics: Statistics, rule: ConvRule = choose) -> None:
        super().__init__()
        parts = encoder_parts(config, rule)
        self.conv_in = CausalConv3d(parts.conv_in)
        self.down_blocks = [make_block(block) for block in parts.blocks]
        self.conv_out = CausalConv3d(parts.conv_out)
        self.spec = encoder_spec(config, rule)
        self.statistics = statistics
        self._patch_size = parts.patch_size

    def __call__(self, pixels: mx.array) -> mx.array:
        """Encode a whole clip in one pass, whose memory grows with the clip; `VideoVAE.encode` gives the same result.

        Args:
            pixels: (B, 3, F, H, W) in [-1, 1], where F is 1 + t*k.

        Returns:
            Normalized latents (B, C, F', H', W') in `dtype`: the means, without sampling.

        Raises:
            LatentsError: if the encoder cannot take the frames.
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
        """The forward pass, along time only."""
        stages = [pointwise(partial(patchify, size=self._patch_size)), *self.conv_in.stages(context)]
        for block in self.down_blocks:
            stages += block.stages(context)
        return stages + self.conv_out.stages(context)
