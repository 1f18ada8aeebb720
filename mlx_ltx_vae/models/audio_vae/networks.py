"""The modules of the audio VAE. Checkpoint names are those of the original files."""

from collections.abc import Callable, Iterable, Iterator

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ...backend.device import is_cpu
from ...backend.mlx_utils import take
from ...streaming.axis import Axis
from ...streaming.context import Stage, StreamContext, pointwise
from ...streaming.delay import Delay, Trim
from ...streaming.window import View, Window
from ..base import DecoderModule, EncoderModule, NetworkModule, Statistics
from ..layers.activation import pixel_norm, silu
from ..specs import NetworkSpec
from .config import AudioConfig, Norm
from .specs import (
    GROUPS,
    PlaneAttentionSpec,
    PlaneParts,
    PlaneSpec,
    decoder_parts,
    decoder_spec,
    encoder_parts,
    encoder_spec,
)
from .spectrogram import resample, spectrogram

_NORM_EPS = 1e-6


class GroupNorm(nn.Module):
    """Over all positions of the clip and the channels of each group. Checkpoint keys: `weight`, `bias` (C,)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = mx.ones((channels,))
        self.bias = mx.zeros((channels,))

    def __call__(self, x: mx.array) -> mx.array:
        wide = x.astype(mx.float32).reshape(x.shape[0], -1, GROUPS, x.shape[-1] // GROUPS)
        mean = wide.mean(axis=(1, 3), keepdims=True)
        variance = mx.square(wide - mean).mean(axis=(1, 3), keepdims=True)
        normalized = ((wide - mean) * mx.rsqrt(variance + _NORM_EPS)).reshape(x.shape)
        return (normalized * self.weight.astype(mx.float32) + self.bias.astype(mx.float32)).astype(x.dtype)


class PixelNorm(nn.Module):
    """RMS norm over the channels of each position. It has no weights."""

    def __call__(self, x: mx.array) -> mx.array:
        return pixel_norm(x, _NORM_EPS)


def _make_norm(norm: Norm, channels: int) -> PixelNorm | GroupNorm:
    return PixelNorm() if norm is Norm.PIXEL else GroupNorm(channels)


class PlaneConv(nn.Module):
    """A 3x3 convolution over time and frequency (B, T, F, 1, C), padded with zeros.

    Checkpoint keys: `conv.weight` (O, 3, 3, I), `conv.bias` (O,).
    """

    def __init__(self, spec: PlaneSpec) -> None:
        super().__init__()
        self.conv = nn.Module()
        self.conv.weight = mx.zeros(dict(spec.weights)[f"{spec.name}.conv.weight"])
        self.conv.bias = mx.zeros((spec.out_channels,))
        self.spec = spec

    def window(self) -> Window:
        return Window(Axis.TIME, self.spec.window(Axis.TIME))

    def __call__(self, view: View, frames: mx.array) -> mx.array:
        """Convolve the view's positions after norm and activation, padded at the true ends."""
        time, _ = self.spec.conv_windows
        # With a stride, positions that do not complete an output stay in the window, and padding may not be needed.
        needed = time.stride * (view.results - 1) + time.kernel - view.before
        plane = take(frames[:, :, :, 0], Axis.TIME, 0, needed)
        return self.convolve(plane, view.before, needed - plane.shape[1])

    def convolve(self, plane: mx.array, before: int, after: int) -> mx.array:
        """(B, T, F, C), with so many rows of zeros along time, to (B, T', F', 1, C')."""
        time, frequency = self.spec.conv_windows
        plane = mx.pad(plane, [(0, 0), (before, after), (frequency.before, frequency.after), (0, 0)])
        weight, dtype = self.conv.weight, plane.dtype
        if is_cpu() and dtype != mx.float32:  # MLX's CPU backend has no fast convolution of half precision
            plane, weight = plane.astype(mx.float32), weight.astype(mx.float32)
        result = mx.conv2d(plane, weight, stride=(time.stride, frequency.stride))
        return (result.astype(dtype) + self.conv.bias)[:, :, :, None]

    def stages(self, context: StreamContext, norm: nn.Module | None = None) -> list[Stage]:
        """One stage, of a convolution behind norm and SiLU if there is a norm."""
        window = self.window()

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            view = window.push(x, last)
            if view is None:
                return None
            return self(view, view.frames if norm is None else silu(norm(view.frames)))

        return [Stage(step, window)]


class ResidualBlock(nn.Module):
    """x + conv2(act(norm(conv1(act(norm(x)))))), with a 1x1 convolution of x if the width changes.

    Checkpoint keys: `conv1`, `conv2`; if the width changes `nin_shortcut.conv`; with group norm `norm1`, `norm2`.
    """

    def __init__(self, first: PlaneSpec, second: PlaneSpec, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.conv2 = PlaneConv(first), PlaneConv(second)
        self.norm1, self.norm2 = _make_norm(norm, first.in_channels), _make_norm(norm, second.in_channels)
        if first.in_channels != second.out_channels:
            self.nin_shortcut = nn.Module()
            self.nin_shortcut.conv = nn.Linear(first.in_channels, second.out_channels)

    def stages(self, context: StreamContext) -> list[Stage]:
        """One stage per convolution."""
        outer, inner = self.conv1.window(), self.conv2.window()
        # The first convolution caches its input before the norm, so the skip needs no copy of its own.
        skip = Delay(Axis.TIME, outer)

        def enter(x: mx.array | None, last: bool) -> mx.array | None:
            view = outer.push(x, last)
            if view is None:
                return None
            skip.push_view(view)
            return self.conv1(view, silu(self.norm1(view.frames)))

        def leave(x: mx.array | None, last: bool) -> mx.array | None:
            view = inner.push(None if x is None else silu(self.norm2(x)), last)
            if view is None:
                return None
            past = skip.take(view.output, view.results)
            if "nin_shortcut" in self:
                past = self.nin_shortcut.conv(past)
            return self.conv2(view, view.frames) + past

        return [Stage(enter, outer), Stage(leave, inner, skip)]


class Attention(nn.Module):
    """Single-head self-attention over all positions of the clip. Checkpoint keys: `norm`, `q`, `k`, `v`, `proj_out`."""

    def __init__(self, spec: PlaneAttentionSpec, norm: Norm) -> None:
        super().__init__()
        channels = spec.in_channels
        self.norm = _make_norm(norm, channels)
        self.q, self.k, self.v, self.proj_out = (nn.Linear(channels, channels) for _ in range(4))

    def __call__(self, x: mx.array) -> mx.array:
        batch, *_, channels = x.shape
        normalized = self.norm(x).reshape(batch, 1, -1, channels)
        queries, keys, values = (project(normalized) for project in (self.q, self.k, self.v))
        attended = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=channels**-0.5)
        return x + self.proj_out(attended).reshape(x.shape)

    def stages(self, context: StreamContext) -> list[Stage]:
        return [pointwise(self)]


class Upsample(nn.Module):
    """Repeats every position along both axes, and convolves. Checkpoint keys: `conv.conv`."""

    def __init__(self, spec: PlaneSpec) -> None:
        super().__init__()
        self.conv = PlaneConv(spec)

    def stages(self, context: StreamContext) -> list[Stage]:
        spec = self.conv.spec
        window, trim = self.conv.window(), Trim(Axis.TIME, spec.trim)
        time, _ = spec.conv_windows
        first, end = 2 * window.spec.before - time.before, 2 * window.spec.after - time.after

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            view = window.push(x, last)
            if view is None:
                return trim.push(None, last)
            rows = mx.pad(view.frames[:, :, :, 0], [(0, 0), (view.before, view.after), (0, 0), (0, 0)])
            rows = mx.repeat(mx.repeat(rows, 2, axis=1), 2, axis=2)
            result = self.conv.convolve(rows[:, first : rows.shape[1] - end], 0, 0)
            return trim.push(result[:, :, spec.dropped_bins :], last)

        return [Stage(step, window, trim)]


class _Level(nn.Module):
    """Checkpoint keys: `block.i`, `attn.i`, and `upsample` or `downsample`."""

    def __init__(self, blocks: list[ResidualBlock], attentions: list[Attention]) -> None:
        super().__init__()
        self.block = blocks
        if attentions:
            self.attn = attentions

    def stages(self, context: StreamContext) -> list[Stage]:
        stages: list[Stage] = []
        for index, block in enumerate(self.block):
            stages += block.stages(context)
            if "attn" in self:
                stages += self.attn[index].stages(context)
        for name in ("upsample", "downsample"):
            if name in self:
                stages += self[name].stages(context)
        return stages


class _Middle(nn.Module):
    """Checkpoint keys: `block_1`, `attn_1`, `block_2`."""

    def __init__(self, parts: PlaneParts, norm: Norm) -> None:
        super().__init__()
        (first, second), (third, fourth) = parts.middle
        self.block_1, self.block_2 = ResidualBlock(first, second, norm), ResidualBlock(third, fourth, norm)
        if parts.mid_attention is not None:
            self.attn_1 = Attention(parts.mid_attention, norm)

    def stages(self, context: StreamContext) -> list[Stage]:
        attention = self.attn_1.stages(context) if "attn_1" in self else []
        return [*self.block_1.stages(context), *attention, *self.block_2.stages(context)]


class _PlaneNetwork(NetworkModule):
    """What the encoder and the decoder have in common. Checkpoint keys: `conv_in`, `mid`, `norm_out`, `conv_out`."""

    def __init__(self, config: AudioConfig, spec: NetworkSpec, statistics: Statistics, parts: PlaneParts) -> None:
        super().__init__(spec, statistics)
        self.conv_in = PlaneConv(parts.conv_in)
        self.mid = _Middle(parts, config.norm)
        self.norm_out = _make_norm(config.norm, parts.conv_out.in_channels)
        self.conv_out = PlaneConv(parts.conv_out)
        self._config = config

    def _levels(self, parts: PlaneParts, name: str, make_resample: Callable[..., nn.Module]) -> list[_Level]:
        """The levels by their index. What resamples one has this name, and is made of its spec."""
        norm = self._config.norm
        levels: dict[int, _Level] = {}
        for level in parts.levels:
            blocks = [ResidualBlock(first, second, norm) for first, second in level.blocks]
            made = levels[level.number] = _Level(blocks, [Attention(spec, norm) for spec in level.attentions])
            if level.resample is not None:
                made[name] = make_resample(level.resample)
        return [levels[index] for index in sorted(levels)]


class AudioDecoder(_PlaneNetwork, DecoderModule):
    """Decodes packed latents (B, C, T, 1, 1) to log-mel spectrograms (B, T', 1, 1, 2 * bins), channel by channel.

    Checkpoint keys besides those of both: `up.i`.
    """

    def __init__(self, config: AudioConfig, statistics: Statistics) -> None:
        parts = decoder_parts(config)
        super().__init__(config, decoder_spec(config), statistics, parts)
        self.up = self._levels(parts, "upsample", Upsample)

    def stages(self, context: StreamContext) -> list[Stage]:
        config, spec = self._config, self.spec.layers[-1]
        trim = Trim(Axis.TIME, 0, spec.crop)

        def unpack(x: mx.array) -> mx.array:
            return x.reshape(*x.shape[:2], config.channels, config.bins, 1).transpose(0, 1, 3, 4, 2)

        def pack(x: mx.array | None, last: bool) -> mx.array | None:
            if x is not None:
                missing = config.mel.bins - x.shape[2]
                x = mx.pad(x, [(0, 0), (0, 0), (0, missing), (0, 0), (0, 0)]) if missing else x
                x = x.transpose(0, 1, 4, 2, 3).reshape(*x.shape[:2], 1, 1, -1)
            return trim.push(x, last)

        stages = [pointwise(unpack), *self.conv_in.stages(context), *self.mid.stages(context)]
        for level in reversed(self.up):
            stages += level.stages(context)
        stages += self.conv_out.stages(context, self.norm_out)
        return [*stages, Stage(pack, trim)]


class AudioEncoder(_PlaneNetwork, EncoderModule):
    """Encodes log-mel spectrograms (B, T, bins, 1, 2) to the means of packed latents (B, T', 1, 1, C).

    Checkpoint keys besides those of both: `down.i`.
    """

    def __init__(self, config: AudioConfig, statistics: Statistics) -> None:
        parts = encoder_parts(config)
        super().__init__(config, encoder_spec(config), statistics, parts)
        self.down = self._levels(parts, "downsample", PlaneConv)

    def prepare(self, waveform: Iterable[np.ndarray], sample_rate: int, frames: int = 256) -> Iterator[mx.array]:
        """The input of the first stage, so many frames at a time, for a waveform in pieces (B, channels, n) float32."""
        mel = self._config.mel
        pieces = spectrogram(resample(waveform, sample_rate, mel.sample_rate), mel, frames)
        return (piece.astype(self.dtype) for piece in pieces)

    def stages(self, context: StreamContext) -> list[Stage]:
        channels = self._config.channels

        def pack(x: mx.array) -> mx.array:
            means = x[..., :channels].transpose(0, 1, 4, 2, 3)
            return means.reshape(*x.shape[:2], 1, 1, -1)

        stages = self.conv_in.stages(context)
        for level in self.down:
            stages += level.stages(context)
        stages += self.mid.stages(context)
        return [*stages, *self.conv_out.stages(context, self.norm_out), pointwise(pack)]
