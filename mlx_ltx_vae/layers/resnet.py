"""The residual block, and what may modulate it: a timestep and injected noise."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn

from ..padding import PaddingMode
from .conv import CausalConv3d
from .norm import ShortcutNorm, make_norm
from .stage import Stage
from .time_embedding import TimeEmbedder
from .window import Axis, Window, take


class Modulation(NamedTuple):
    """Shift and scale of one norm, each (B, 1, 1, 1, C) in float32."""

    shift: mx.array
    scale: mx.array


def activate(x: mx.array, norm: nn.Module, modulation: Modulation | None = None) -> mx.array:
    """Norm, modulation (shift + x * (1 + scale)) and SiLU: what stands before every convolution but the first."""
    x = norm(x)
    if modulation is not None:
        x = (x * (1 + modulation.scale) + modulation.shift).astype(x.dtype)
    return x * mx.sigmoid(x)


class ResnetCache:
    """What a residual block remembers: two positions of its input and two of its middle.

    The input's two serve the first convolution and the delayed skip, so they are kept as they came, before the norm.
    """

    def __init__(self, outer: Window, inner: Window) -> None:
        self.outer = outer
        self.inner = inner

    @property
    def arrays(self) -> list[mx.array]:
        """See `Cache`."""
        return [window.memory for window in (self.outer, self.inner) if window.memory is not None]

    @property
    def closed(self) -> bool:
        """See `Cache`."""
        return self.inner.closed


class ResnetBlock(nn.Module):
    """x + conv(act(norm(conv(act(norm(x)))))); `in_channels != out_channels` makes the skip a normed 1x1x1 shortcut.

    Checkpoint keys: `conv1.conv`, `conv2.conv`; where the width changes `norm3.norm`, `conv_shortcut`; with timestep
    conditioning `scale_shift_table` (4, C), its rows shift1, scale1, shift2, scale2; with noise injection
    `per_channel_scale1`, `per_channel_scale2` (C,); with group norm `norm1`, `norm2`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        causal: bool,
        padding: PaddingMode,
        groups: int | None = None,
        timestep_conditioning: bool = False,
        inject_noise: bool = False,
    ) -> None:
        super().__init__()
        self.norm1 = make_norm(in_channels, groups)
        self.conv1 = CausalConv3d(in_channels, out_channels, causal=causal, padding=padding)
        self.norm2 = make_norm(out_channels, groups)
        self.conv2 = CausalConv3d(out_channels, out_channels, causal=causal, padding=padding)
        if in_channels != out_channels:
            self.norm3 = ShortcutNorm(in_channels)
            self.conv_shortcut = nn.Linear(in_channels, out_channels)
        if timestep_conditioning:
            self.scale_shift_table = mx.zeros((4, in_channels))
        if inject_noise:
            self.per_channel_scale1 = mx.zeros((out_channels,))
            self.per_channel_scale2 = mx.zeros((out_channels,))
        self.injects_noise = inject_noise

    def make_cache(self, axis: Axis) -> ResnetCache:
        """A fresh cache for a stream along `axis`."""
        return ResnetCache(self.conv1.window(axis), self.conv2.window(axis))

    def modulations(self, embedding: mx.array | None) -> tuple[Modulation | None, Modulation | None]:
        """The block's two modulations from its stack's time embedding (B, 4C), once per decode."""
        if embedding is None:
            return None, None
        table = self.scale_shift_table.astype(mx.float32)[None] + embedding.reshape(embedding.shape[0], 4, -1)
        shift1, scale1, shift2, scale2 = (table[:, row, None, None, None, :] for row in range(4))
        return Modulation(shift1, scale1), Modulation(shift2, scale2)

    def __call__(
        self,
        x: mx.array | None,
        last: bool,
        *,
        cache: ResnetCache,
        modulations: tuple[Modulation | None, Modulation | None] = (None, None),
        noise: tuple[mx.array, mx.array] | None = None,
    ) -> mx.array | None:
        """One step of the block.

        Args:
            x: the next piece (B, T, H, W, C), or None to flush: first what the first convolution holds back, at the
                next call what the second does.
            last: whether the stream ends here.
            cache: this block's memory in the running stream.
            modulations: from `modulations`.
            noise: two (H, W) fields of the whole picture, with noise injection.

        Returns:
            As many positions as can be finished now, behind the input by two where not causal; None if none.
        """
        axis = cache.outer.axis
        if cache.outer.closed:
            seen, start = cache.outer.memory, cache.outer.start
            inner = cache.inner.push(None, last)
        else:
            outer = cache.outer.push(x, last)
            if outer is None:
                return None
            seen, start = outer.frames, outer.start
            middle = self.conv1(outer, activate(seen, self.norm1, modulations[0]), axis)
            if noise is not None:
                middle = middle + inject(noise[0], self.per_channel_scale1, axis, outer.output, outer.count)
            inner = cache.inner.push(middle, last and x is not None)
        if inner is None:
            return None
        result = self.conv2(inner, activate(inner.frames, self.norm2, modulations[1]), axis)
        if noise is not None:
            result = result + inject(noise[1], self.per_channel_scale2, axis, inner.output, inner.count)
        skip = take(seen, axis, inner.output - start, inner.output - start + inner.count)
        if "conv_shortcut" in self:
            skip = self.conv_shortcut(self.norm3(skip))
        return result + skip


class ResnetStack(nn.Module):
    """Residual blocks of one width, one after the other ("mid block"), sharing a time embedding.

    Checkpoint keys: `res_blocks.i`; with timestep conditioning `time_embedder` to 4C values.
    """

    def __init__(
        self,
        channels: int,
        num_layers: int,
        *,
        causal: bool,
        padding: PaddingMode,
        groups: int | None,
        timestep_conditioning: bool,
        inject_noise: bool,
    ) -> None:
        super().__init__()
        self.res_blocks = [
            ResnetBlock(
                channels,
                channels,
                causal=causal,
                padding=padding,
                groups=groups,
                timestep_conditioning=timestep_conditioning,
                inject_noise=inject_noise,
            )
            for _ in range(num_layers)
        ]
        if timestep_conditioning:
            self.time_embedder = TimeEmbedder(4 * channels)

    def stages(self, axis: Axis, timesteps: mx.array | None, fields: Iterator[mx.array]) -> list[Stage]:
        """A stage per block. `timesteps` (B,) are scaled already; each noisy block draws two of `fields`."""
        embedding = self.time_embedder(timesteps) if "time_embedder" in self else None
        stages = []
        for block in self.res_blocks:
            cache = block.make_cache(axis)
            noise = (next(fields), next(fields)) if block.injects_noise else None
            modulations = block.modulations(embedding)
            stages.append(Stage(partial(block, cache=cache, modulations=modulations, noise=noise), cache))
        return stages


def inject(field: mx.array, scale: mx.array, axis: Axis, start: int, count: int) -> mx.array:
    """Noise for `count` positions from `start` on: an (H, W) field times the per-channel scale (C,).

    The field belongs to the picture's positions, so a stream along rows or columns takes its own part of it, and
    every frame gets the same.
    """
    field = field[None, None, :, :, None]
    if axis is not Axis.TIME:
        field = take(field, axis, start, start + count)
    return (field * scale.astype(mx.float32)).astype(scale.dtype)
