"""Residual blocks, optionally with timestep modulation and injected noise, and self-attention within each frame."""

import math
from collections.abc import Sequence
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from ...backend.mlx_utils import take
from ...shapes import Axis
from ...streaming.context import Neighbors, Stage, StreamContext, pointwise
from ...streaming.window import Delay, View, windowed
from ..conv_spec import ConvSpec
from ..specs import FrameAttentionSpec
from .activation import Modulation, activate, read_modulations
from .conv import CausalConv3d, add_weights

_LAYER_NORM_EPS = 1e-6
_NORM_EPS = 1e-12  # of the attention
_SINUSOID_CHANNELS = 256
_MAX_PERIOD = 10000.0


def sinusoid(timesteps: mx.array, channels: int) -> mx.array:
    """The embedding (B, channels) of timesteps (B,): cosines, then sines. Float32."""
    half = channels // 2
    frequencies = mx.exp(-math.log(_MAX_PERIOD) * mx.arange(half, dtype=mx.float32) / half)
    angles = timesteps.astype(mx.float32)[:, None] * frequencies[None]
    return mx.concatenate([mx.cos(angles), mx.sin(angles)], axis=-1)


class TimeEmbedder(nn.Module):
    """Timesteps (B,) to (B, channels), float32. Checkpoint keys: `timestep_embedder.linear_1` and `.linear_2`."""

    def __call__(self, timesteps: mx.array) -> mx.array:
        x = self.timestep_embedder.linear_1(sinusoid(timesteps, _SINUSOID_CHANNELS))
        return self.timestep_embedder.linear_2(x * mx.sigmoid(x)).astype(mx.float32)


class ResnetBlock(nn.Module):
    """x + conv(act(norm(conv(act(norm(x)))))). If the width changes, the skip is a layer norm and a 1x1x1 convolution.

    Checkpoint keys: `conv1.conv`, `conv2.conv`; if the width changes, `norm3.norm`, `conv_shortcut`; with a timestep
    `scale_shift_table` (4, C), rows shift1, scale1, shift2, scale2; with noise injection `per_channel_scale1`,
    `per_channel_scale2` (C,).
    """

    def __init__(self, first: ConvSpec, second: ConvSpec) -> None:
        super().__init__()
        self.conv1 = CausalConv3d(first)
        self.conv2 = CausalConv3d(second)
        add_weights(self, first.weights + second.weights, first.name.removesuffix(".conv1"))

    def stages(self, context: StreamContext, embedding: mx.array | None = None) -> list[Stage]:
        """One stage per convolution, so that the scratch memory of one is free while the other runs."""
        modulations: Sequence[Modulation | None] = (None, None)
        if embedding is not None:
            modulations = read_modulations(self.scale_shift_table, embedding)
        outer, inner = self.conv1.window(context), self.conv2.window(context)
        first, second = (conv.operands(each) for conv, each in zip((self.conv1, self.conv2), modulations, strict=True))
        # The first convolution caches its input before the norm, so the skip needs no copy of its own.
        skip = Delay(context.axis, outer)

        def enter(view: View) -> mx.array:
            skip.push_view(view)
            frames = activate(view.frames, modulations[0], first)
            return self.conv1(view, frames, context, self._noise(self.conv1.spec, view, context))

        def leave(view: View) -> mx.array:
            past = skip.take(view.output, view.results)
            if "conv_shortcut" in self:
                # The original code normalizes each position separately; a group norm with one group over the whole
                # volume is a known mistake (error 0.4 to 0.8 of the output's magnitude).
                norm = self.norm3.norm
                past = self.conv_shortcut(mx.fast.layer_norm(past, norm.weight, norm.bias, _LAYER_NORM_EPS))
            noise = self._noise(self.conv2.spec, view, context)
            return self.conv2(view, view.frames, context, past if noise is None else past + noise)

        # The cache of the second one holds post-activation values.
        activated = partial(activate, modulation=modulations[1], dtype=second)
        return [windowed(outer, enter), windowed(inner, leave, skip, enter=activated)]

    def _noise(self, spec: ConvSpec, view: View, context: StreamContext) -> mx.array | None:
        """A map (H, W) or (B, H, W), which all frames share, times the per-channel scale; the part of this step."""
        if not spec.has_noise:
            return None
        scale = self.per_channel_scale1 if spec is self.conv1.spec else self.per_channel_scale2
        noise = context.noise_maps[spec.name]
        noise = noise[:, None, :, :, None] if noise.ndim == 3 else noise[None, None, :, :, None]
        if context.axis is not Axis.TIME:
            noise = take(noise, context.axis, view.output, view.output + view.results)
        return (noise * scale.astype(mx.float32)).astype(scale.dtype)


class ResnetStack(nn.Module):
    """Residual blocks that share a time embedding. Checkpoint keys: `res_blocks.i`, with a timestep `time_embedder`."""

    def __init__(self, *layers: ConvSpec) -> None:
        super().__init__()
        self.res_blocks = [ResnetBlock(first, second) for first, second in zip(layers[::2], layers[1::2], strict=True)]
        if layers[0].is_modulated:
            self.time_embedder = TimeEmbedder()
            add_weights(self, layers[0].weights, layers[0].name.partition(".res_blocks.")[0])

    def stages(self, context: StreamContext) -> list[Stage]:
        embedding = None
        if "time_embedder" in self and context.timesteps is not None:
            embedding = self.time_embedder(context.timesteps)
        return [stage for block in self.res_blocks for stage in block.stages(context, embedding)]


class FrameAttention(nn.Module):
    """Single-head self-attention over the positions of each frame; the configured head size is ignored.

    Checkpoint keys: `norm.gamma` (C,), `to_qkv`, `proj` (1x1 convolutions, stored as matrices here).
    """

    def __init__(self, spec: FrameAttentionSpec) -> None:
        super().__init__()
        self._spec = spec
        add_weights(self, spec.weights, spec.name)

    def __call__(self, x: mx.array, neighbors: Neighbors | None = None) -> mx.array:
        """(B, T, H, W, C) -> (B, T, H, W, C); the positions of a band attend to all bands."""
        batch, time, _, _, channels = x.shape
        queries, keys, values = mx.split(self.to_qkv(self._normalize(x)), 3, axis=-1)
        if neighbors is not None:
            keys, values = mx.split(neighbors.gather(mx.concatenate([keys, values], axis=-1)), 2, axis=-1)
        tokens = (part.reshape(batch * time, 1, -1, channels) for part in (queries, keys, values))
        return x + self.proj(self._attend(*tokens).reshape(x.shape))

    def _attend(self, queries: mx.array, keys: mx.array, values: mx.array) -> mx.array:
        """Single-head attention, (N, 1, L, C), in blocks of queries.

        MLX fuses no attention with this many channels, so all scores of a block are in memory. Each block is evaluated
        before the next one, since otherwise their memory would be taken together.
        """
        attend = partial(mx.fast.scaled_dot_product_attention, scale=keys.shape[-1] ** -0.5)
        size, length = self._spec.query_block(len(keys), keys.shape[2]), queries.shape[2]
        if length <= size:
            return attend(queries, keys, values)
        parts = []
        for start in range(0, length, size):
            parts.append(attend(queries[:, :, start : start + size], keys, values))
            mx.eval(parts)
        return mx.concatenate(parts, axis=2)

    def _normalize(self, x: mx.array) -> mx.array:
        """`x / |x| * sqrt(C) * gamma` over the channels of each position."""
        wide = x.astype(mx.float32)
        length = mx.maximum(mx.linalg.norm(wide, axis=-1, keepdims=True), _NORM_EPS)
        return (wide / length * x.shape[-1] ** 0.5 * self.norm.gamma.astype(mx.float32)).astype(x.dtype)

    def stages(self, context: StreamContext) -> list[Stage]:
        return [pointwise(partial(self, neighbors=context.neighbors))]
