"""Modules of the audio VAE. Checkpoint names are those in the original files."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten

from ...backend.device import is_cpu
from ...backend.mlx_utils import take
from ...shapes import Axis
from ...streaming.context import Stage, StreamContext, pointwise
from ...streaming.window import Delay, Trim, View, windowed
from ..base import AudioEncoder, Decoder, Network, Statistics
from ..convolution.conv2d import arrange, by_phases, by_taps
from ..convolution.conv3d import PreparedModule
from ..layers import add_weights, group_norm, make_window, pixel_norm, silu
from ..specs import LayerSpec
from .config import AudioVAEConfig
from .specs import GROUPS, ClipAttentionSpec, Conv2DSpec, decoder_spec, encoder_spec
from .spectrogram import resample, spectrogram

_NORM_EPS = 1e-6
_LAST_PART = re.compile(r"\.conv[12]?$")  # of the names of layers, which is no part of the path of their module


def normalize(x: mx.array, norm: nn.Module | None) -> mx.array:
    """Apply an RMS norm over the channels of each position, without weights.

    With a `norm`, whose weights are `weight` and `bias` (C,), normalize each group of channels over all positions.
    """
    if norm is None:
        return pixel_norm(x, _NORM_EPS)
    return group_norm(x, norm, GROUPS, _NORM_EPS).astype(x.dtype)


class Conv2DLayer(PreparedModule):
    """3x3 convolution over time and frequency (B, T, F, 1, C), padded with zeros.

    Checkpoint keys: `conv.weight` (O, 3, 3, I), `conv.bias` (O,). `prepare` lays the weight out for the device, once.
    """

    def __init__(self, spec: Conv2DSpec) -> None:
        super().__init__()
        add_weights(self, spec.weights, spec.name)
        self.spec = spec
        self._is_arranged = False

    def prepare(self, *, keeps_dtype: bool = False) -> None:
        if self._uses_products and not self._is_arranged:
            self.conv.weight, self._is_arranged = arrange(self.conv.weight, 1), True
        self.conv.weight = mx.contiguous(self.conv.weight)
        mx.eval(self.conv.weight)

    @property
    def _uses_products(self) -> bool:
        return is_cpu() and not self.spec.is_strided

    def __call__(self, view: View, frames: mx.array) -> mx.array:
        """Convolve the view's positions after norm and activation, padded at the true ends."""
        time, _ = self.spec.conv_windows
        # With a stride, positions that do not complete an output stay in the window, and padding may not be needed.
        length = time.stride * (view.num_outputs - 1) + time.kernel - view.before
        plane = take(frames[:, :, :, 0], Axis.TIME, 0, length)
        return self.convolve(plane, view.before, length - plane.shape[1])

    def convolve(self, plane: mx.array, before: int, after: int) -> mx.array:
        """Convolve (B, T, F, C), with this many rows of zeros along time, to (B, T', F', 1, C')."""
        time, frequency = self.spec.conv_windows
        plane = mx.pad(plane, [(0, 0), (before, after), (frequency.before, frequency.after), (0, 0)])
        if self._uses_products:
            return self._apply(by_taps, plane)
        assert not self._is_arranged, "the default device has changed"
        # In half precision MLX's convolutions are slow on a CPU, and inaccurate where Metal takes Winograd kernels.
        weight, bias, dtype = self.conv.weight.astype(mx.float32), self.conv.bias, plane.dtype
        result = mx.conv2d(plane.astype(mx.float32), weight, stride=(time.stride, frequency.stride))
        return (result.astype(dtype) + bias)[:, :, :, None]

    def convolve_repeated(self, rows: mx.array, first: int, end: int) -> mx.array:
        """Convolve rows (B, T, F, C), each position counted as 2x2, without the `first` and the last `end` rows.

        Returns (B, 2 * T - first - end - 2, F', 1, C') without `dropped_bins`.
        """
        dropped_bins = self.spec.dropped_bins
        if not self._uses_products:
            rows = mx.repeat(mx.repeat(rows, 2, axis=1), 2, axis=2)
            return self.convolve(rows[:, first : rows.shape[1] - end], 0, 0)[:, :, dropped_bins:]
        # A causal convolution equals the centered one along frequencies without the dropped bin.
        bins = 2 * rows.shape[2] - dropped_bins
        front, back = 1 - first, 1 - end
        result = self._apply(by_phases, mx.pad(rows, [(0, 0), (front, back), (1, 1), (0, 0)]))
        return result[:, front : result.shape[1] - back, :bins]

    def _apply(self, products: Callable[[mx.array, mx.array, mx.array], mx.array], plane: mx.array) -> mx.array:
        """Convolve a padded plane by matrix products in float32."""
        taps = self.conv.weight if self._is_arranged else arrange(self.conv.weight, 1)
        result = products(*(array.astype(mx.float32) for array in (plane, taps, self.conv.bias)))
        return mx.contiguous(result).astype(plane.dtype)[:, :, :, None]

    def stages(self, context: StreamContext, enter: Callable[[mx.array], mx.array] | None = None) -> list[Stage]:
        """Return one stage, which applies `enter` to the positions in view before the convolution."""
        return [
            windowed(
                make_window(self.spec, context), lambda view: self(view, enter(view.frames) if enter else view.frames)
            )
        ]


class ResidualBlock(nn.Module):
    """Residual block: x + conv2(act(norm(conv1(act(norm(x)))))), with a 1x1 convolution of x if the width changes.

    Checkpoint keys: `conv1`, `conv2`; if the width changes `nin_shortcut.conv`; with group norm `norm1`, `norm2`.
    """

    def __init__(self, first: Conv2DSpec, second: Conv2DSpec) -> None:
        super().__init__()
        self.conv1, self.conv2 = Conv2DLayer(first), Conv2DLayer(second)
        add_weights(self, first.weights + second.weights, first.name.removesuffix(".conv1"))

    def stages(self, context: StreamContext) -> list[Stage]:
        """Return one stage per convolution."""
        outer, inner = (make_window(conv.spec, context) for conv in (self.conv1, self.conv2))
        # The first convolution caches its input before the norm, so the skip needs no second copy.
        skip = Delay(Axis.TIME, outer)

        def enter(view: View) -> mx.array:
            skip.push_view(view)
            return self.conv1(view, _activate(view.frames, self.get("norm1")))

        def leave(view: View) -> mx.array:
            shortcut = skip.take(view.output, view.num_outputs)
            if "nin_shortcut" in self:
                shortcut = self.nin_shortcut.conv(shortcut)
            return self.conv2(view, view.frames) + shortcut

        activate = partial(_activate, norm=self.get("norm2"))
        return [windowed(outer, enter), windowed(inner, leave, skip, enter=activate)]


class ClipAttention(nn.Module):
    """Single-head self-attention over all positions of the clip. Checkpoint keys: `norm`, `q`, `k`, `v`, `proj_out`."""

    def __init__(self, spec: ClipAttentionSpec) -> None:
        super().__init__()
        add_weights(self, spec.weights, spec.name)

    def __call__(self, x: mx.array) -> mx.array:
        batch, *_, channels = x.shape
        normalized = normalize(x, self.get("norm")).reshape(batch, 1, -1, channels)
        queries, keys, values = (project(normalized) for project in (self.q, self.k, self.v))
        attended = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=channels**-0.5)
        return x + self.proj_out(attended).reshape(x.shape)

    def stages(self, context: StreamContext) -> list[Stage]:
        return [pointwise(self)]


class Upsample(nn.Module):
    """Upsampling layer that repeats every position along both axes, and convolves. Checkpoint keys: `conv.conv`."""

    def __init__(self, spec: Conv2DSpec) -> None:
        super().__init__()
        self.conv = Conv2DLayer(spec)

    def stages(self, context: StreamContext) -> list[Stage]:
        spec = self.conv.spec
        window, trim = make_window(spec, context), Trim(Axis.TIME, spec.trim)
        time, _ = spec.conv_windows
        first, end = 2 * window.spec.before - time.before, 2 * window.spec.after - time.after

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            view = window.push(x, last)
            if view is None:
                return trim.push(None, last)
            rows = mx.pad(view.frames[:, :, :, 0], [(0, 0), (view.before, view.after), (0, 0), (0, 0)])
            return trim.push(self.conv.convolve_repeated(rows, first, end), last)

        return [Stage(step, window, trim)]


def _activate(x: mx.array, norm: nn.Module | None) -> mx.array:
    return silu(normalize(x, norm))


def _add_modules(network: Network) -> list[str]:
    """Add the modules of the layers at their paths, and the weights of the last norm. Return the paths, in order.

    A module has one layer, or two if it is a residual block.
    """
    layers = [layer for layer in network.spec.layers if layer.name not in ("unpack", "pack")]
    groups = groupby(layers, lambda layer: _LAST_PART.sub("", layer.name))
    modules = [(path, _make(*group)) for path, group in groups]
    for name, children in tree_unflatten(modules).items():
        network[name] = children
    add_weights(network, tuple(network.spec.weights.items()))
    return [path for path, _ in modules]


def _make(first: LayerSpec, second: LayerSpec | None = None) -> nn.Module:
    if isinstance(first, ClipAttentionSpec):
        return ClipAttention(first)
    assert isinstance(first, Conv2DSpec)
    if isinstance(second, Conv2DSpec):
        return ResidualBlock(first, second)
    return Upsample(first) if max(first.up) > 1 else Conv2DLayer(first)


def _stages(network: Network, paths: Sequence[str], context: StreamContext) -> list[Stage]:
    *modules, conv_out = map(network.at, paths)
    stages = [stage for module in modules for stage in module.stages(context)]
    return stages + conv_out.stages(context, partial(_activate, norm=network.get("norm_out")))


class MelDecoder(Decoder):
    """Decoder of packed latents (B, C, T, 1, 1) to log-mel spectrograms (B, T', 1, 1, 2 * bins), channel by channel.

    Checkpoint keys: `conv_in`, `mid.block_1`, `mid.attn_1`, `mid.block_2`, `up.i.block.j`, `up.i.attn.j`,
    `up.i.upsample`, `norm_out`, `conv_out`.
    """

    def __init__(self, config: AudioVAEConfig, statistics: Statistics) -> None:
        super().__init__(decoder_spec(config), statistics)
        self._config = config
        self._paths = _add_modules(self)

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

        return [pointwise(unpack), *_stages(self, self._paths, context), Stage(pack, trim)]


class MelEncoder(AudioEncoder):
    """Encoder of log-mel spectrograms (B, T, bins, 1, 2) to the means of packed latents (B, T', 1, 1, C).

    Checkpoint keys: those in `MelDecoder`, with `down.i` and `downsample` for `up.i` and `upsample`.
    """

    def __init__(self, config: AudioVAEConfig, statistics: Statistics) -> None:
        super().__init__(encoder_spec(config), statistics)
        self._config = config
        self._paths = _add_modules(self)

    def prepare(self, waveform: Iterable[np.ndarray], sample_rate: int, frames: int = 256) -> Iterator[mx.array]:
        mel = self._config.mel
        pieces = spectrogram(resample(waveform, sample_rate, mel.sample_rate), mel, frames)
        return (piece.astype(self.dtype) for piece in pieces)

    def stages(self, context: StreamContext) -> list[Stage]:
        channels = self._config.channels

        def pack(x: mx.array) -> mx.array:
            means = x[..., :channels].transpose(0, 1, 4, 2, 3)
            return means.reshape(*x.shape[:2], 1, 1, -1)

        return [*_stages(self, self._paths, context), pointwise(pack)]
