"""Residual blocks, optionally with timestep modulation and injected noise."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from ...backend.mlx_utils import take
from ...streaming.axis import Axis
from ...streaming.context import StreamContext
from ...streaming.delay import Delay
from ...streaming.stage import Stage
from ...streaming.window import View
from ..specs import ConvSpec
from .activation import Modulation, activate, read_modulations
from .conv import CausalConv3d
from .norm import PixelNorm, ShortcutNorm
from .time_embedding import TimeEmbedder


class ResnetBlock(nn.Module):
    """x + conv(act(norm(conv(act(norm(x)))))). If the width changes, the skip is a layer norm and a 1x1x1 convolution.

    Checkpoint keys: `conv1.conv`, `conv2.conv`; if the width changes, `norm3.norm`, `conv_shortcut`; with a timestep
    `scale_shift_table` (4, C), rows shift1, scale1, shift2, scale2; with noise injection `per_channel_scale1`,
    `per_channel_scale2` (C,).
    """

    def __init__(self, first: ConvSpec, second: ConvSpec) -> None:
        super().__init__()
        in_channels, out_channels = first.in_channels, second.out_channels
        self.norm = PixelNorm()
        self.conv1 = CausalConv3d(first)
        self.conv2 = CausalConv3d(second)
        if in_channels != out_channels:
            self.norm3 = ShortcutNorm(in_channels)
            self.conv_shortcut = nn.Linear(in_channels, out_channels)
        if first.is_modulated:
            self.scale_shift_table = mx.zeros((4, in_channels))
        if first.has_noise:
            self.per_channel_scale1 = mx.zeros((out_channels,))
            self.per_channel_scale2 = mx.zeros((out_channels,))

    def stages(self, context: StreamContext, embedding: mx.array | None = None) -> list[Stage]:
        """One stage per convolution, so that the scratch memory of one is free while the other runs.

        Args:
            context: the stream.
            embedding: (B, 4C), the timestep embedding.
        """
        modulations: Sequence[Modulation | None] = (None, None)
        if embedding is not None:
            modulations = read_modulations(self.scale_shift_table, embedding)
        outer, inner = self.conv1.window(context), self.conv2.window(context)
        first, second = (conv.operands(each) for conv, each in zip((self.conv1, self.conv2), modulations, strict=True))
        # The first convolution caches its input before the norm, so the skip needs no copy of its own.
        skip = Delay(context.axis, outer)

        def enter(x: mx.array | None, last: bool) -> mx.array | None:
            view = outer.push(x, last)
            if view is None:
                return None
            skip.push_view(view)
            frames = activate(view.frames, self.norm, modulations[0], first)
            return self.conv1(view, frames, context, self._noise(self.conv1.spec, view, context))

        def leave(x: mx.array | None, last: bool) -> mx.array | None:
            # The cache holds post-activation values.
            view = inner.push(None if x is None else activate(x, self.norm, modulations[1], second), last)
            if view is None:
                return None
            past = skip.take(view.output, view.results)
            if "conv_shortcut" in self:
                past = self.conv_shortcut(self.norm3(past))
            noise = self._noise(self.conv2.spec, view, context)
            return self.conv2(view, view.frames, context, past if noise is None else past + noise)

        return [Stage(enter, outer), Stage(leave, inner, skip)]

    def _noise(self, spec: ConvSpec, view: View, context: StreamContext) -> mx.array | None:
        """The noise map of a convolution times its per-channel scale; None without one."""
        if not spec.has_noise:
            return None
        scale = self.per_channel_scale1 if spec is self.conv1.spec else self.per_channel_scale2
        return scaled_noise(context.noise_maps[spec.name], scale, context.axis, view)


class ResnetStack(nn.Module):
    """A sequence of residual blocks of the same width ("mid block") that share a time embedding.

    Checkpoint keys: `res_blocks.i`; with a timestep `time_embedder` (4C outputs).
    """

    def __init__(self, layers: Sequence[ConvSpec]) -> None:
        super().__init__()
        self.res_blocks = [ResnetBlock(first, second) for first, second in zip(layers[::2], layers[1::2], strict=True)]
        if layers[0].is_modulated:
            self.time_embedder = TimeEmbedder(4 * layers[0].in_channels)

    def stages(self, context: StreamContext) -> list[Stage]:
        """The stages of all blocks."""
        embedding = None
        if "time_embedder" in self and context.timesteps is not None:
            embedding = self.time_embedder(context.timesteps)
        return [stage for block in self.res_blocks for stage in block.stages(context, embedding)]


def scaled_noise(noise: mx.array, scale: mx.array, axis: Axis, view: View) -> mx.array:
    """The noise for one step's outputs: an (H, W) or (B, H, W) map times the per-channel scale (C,).

    All frames share the map. A stream along rows or columns takes the part of it that belongs to its outputs.
    """
    noise = noise[:, None, :, :, None] if noise.ndim == 3 else noise[None, None, :, :, None]
    if axis is not Axis.TIME:
        noise = take(noise, axis, view.output, view.output + view.results)
    return (noise * scale.astype(mx.float32)).astype(scale.dtype)
