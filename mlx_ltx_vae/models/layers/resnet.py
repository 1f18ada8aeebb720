"""The residual block, and what may modulate it: a timestep and injected noise."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn

from ...streaming.stage import Stage
from ...streaming.window import Axis, View, Window, WindowCache, take
from ..specs import PaddingMode
from .activation import Modulation, activate
from .conv import CausalConv3d
from .norm import ShortcutNorm, make_norm
from .time_embedding import TimeEmbedder


class Skip:
    """A residual block's input on its way past the two convolutions.

    Results come late by as many positions as the convolutions wait, so the input has to wait too. It costs nothing:
    what it waits for is what the first convolution remembers anyway, as long as that is kept as it came, before the
    norm. Only between the two convolutions of one step is there more.
    """

    def __init__(self, outer: Window) -> None:
        self.outer = outer
        self.view: View | None = None

    def take(self, start: int, count: int) -> mx.array:
        """`count` positions of the input from index `start` on, each asked for once and in order."""
        if self.view is not None:
            frames, first = self.view.frames, self.view.start
        else:
            frames, first = mx.concatenate(self.outer.memory, axis=self.outer.axis), self.outer.start
        if start + count >= self.outer.start:
            self.view = None
        return take(frames, self.outer.axis, start - first, start - first + count)


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

    def modulations(self, embedding: mx.array | None) -> tuple[Modulation | None, Modulation | None]:
        """The block's two modulations from its stack's time embedding (B, 4C), once per decode."""
        if embedding is None:
            return None, None
        table = self.scale_shift_table.astype(mx.float32)[None] + embedding.reshape(embedding.shape[0], 4, -1)
        shift1, scale1, shift2, scale2 = (table[:, row, None, None, None, :] for row in range(4))
        return Modulation(shift1, scale1), Modulation(shift2, scale2)

    def stages(
        self,
        axis: Axis,
        modulations: tuple[Modulation | None, Modulation | None] = (None, None),
        fields: tuple[mx.array | None, mx.array | None] = (None, None),
    ) -> list[Stage]:
        """The block in a new stream along `axis`: a stage per convolution, so that one's scratch is gone at the other.

        Args:
            axis: of the stream.
            modulations: from `modulations`.
            fields: two noise fields of the whole picture, (H, W) or (B, H, W), with noise injection.
        """
        outer, inner = self.conv1.window(axis), self.conv2.window(axis)
        scales = (self.per_channel_scale1, self.per_channel_scale2) if self.injects_noise else (None, None)
        first = _Half(outer, self.conv1, self.norm1, modulations[0], fields[0], scales[0])
        second = _Half(inner, self.conv2, self.norm2, modulations[1], fields[1], scales[1])
        skip = Skip(outer)
        return [
            Stage(partial(self._enter, half=first, skip=skip), WindowCache(outer)),
            Stage(partial(self._leave, half=second, skip=skip), WindowCache(inner)),
        ]

    def _enter(self, x: mx.array | None, last: bool, *, half: "_Half", skip: Skip) -> mx.array | None:
        """The input (B, T, H, W, C) to the block's middle; the input itself goes to `skip`, kept as it came."""
        view = half.window.push(x, last)
        if view is None:
            return None
        skip.view = view
        return half.convolve(view, half.activate(view.frames))

    def _leave(self, x: mx.array | None, last: bool, *, half: "_Half", skip: Skip) -> mx.array | None:
        """The block's middle, kept activated, to its result, to which `skip` adds the input."""
        view = half.window.push(None if x is None else half.activate(x), last)
        if view is None:
            return None
        past = skip.take(view.output, view.count)
        if "conv_shortcut" in self:
            past = self.conv_shortcut(self.norm3(past))
        return half.convolve(view, view.frames) + past


class _Half(NamedTuple):
    """Norm, modulation, SiLU, convolution and noise, in one running stream: a residual block is two of these."""

    window: Window
    conv: CausalConv3d
    norm: nn.Module
    modulation: Modulation | None
    field: mx.array | None
    scale: mx.array | None

    def activate(self, x: mx.array) -> mx.array:
        """What the convolution sees of `x`."""
        return activate(x, self.norm, self.modulation)

    def convolve(self, view: View, frames: mx.array) -> mx.array:
        """The convolution of activated `frames`, as the window shows them, and the noise."""
        result = self.conv(view, frames, self.window.axis)
        if self.field is not None:
            result = result + inject(self.field, self.scale, self.window.axis, view.output, view.count)
        return result


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
        """The blocks' stages. `timesteps` (B,) are scaled already; each noisy block draws two of `fields`."""
        embedding = self.time_embedder(timesteps) if "time_embedder" in self else None
        stages = []
        for block in self.res_blocks:
            drawn = (next(fields), next(fields)) if block.injects_noise else (None, None)
            stages += block.stages(axis, block.modulations(embedding), drawn)
        return stages


def inject(field: mx.array, scale: mx.array, axis: Axis, start: int, count: int) -> mx.array:
    """Noise for `count` positions from `start` on: an (H, W) or (B, H, W) field times the per-channel scale (C,).

    The field belongs to the picture's positions, so a stream along rows or columns takes its own part of it, and
    every frame gets the same.
    """
    field = field[:, None, :, :, None] if field.ndim == 3 else field[None, None, :, :, None]
    if axis is not Axis.TIME:
        field = take(field, axis, start, start + count)
    return (field * scale.astype(mx.float32)).astype(scale.dtype)
