"""Layers of convolutional networks, written for streams. Arrays are (B, T, H, W, C).

A layer's norm, timestep modulation and SiLU precede its convolution. On a GPU, SiLU is a single kernel, which on Metal
joins the convolution's frames too. MLX's CPU backend for x86 computes exponentials one at a time (measured at 16 ns
each, a third of the decode time). On the CPU the exponential is therefore a series of multiplications, which the
compiler vectorizes.

Checkpoints have two channel orders: (c, time, height, width) between blocks, and (c, width, height) for pixel patches.
The symptom of the wrong order is a picture whose 4x4 blocks are transposed. Where a convolution is followed by
upsampling, it returns its channels as (time, height, width, c) instead, so that they stay together in memory: see
`interleave`.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..backend.device import is_cpu
from ..backend.mlx_utils import contiguous, in_words, is_tracing, take, to_float
from ..shapes import Axis
from ..streaming.context import Stage, StreamContext, pointwise
from ..streaming.window import Delay, View, Window, windowed
from .convolution.conv3d import Conv3d, Pointwise
from .specs import (
    SINUSOID_CHANNELS,
    Activation,
    ConvSpec,
    FrameAttentionSpec,
    LayerSpec,
    PaddingMode,
    Shapes,
    Stride,
    Weights,
)

PIXEL_NORM_EPS = 1e-8
_AXES = tuple(Axis)
_LANES = 16
_TERMS = 6  # of the series of an exponential, for arguments up to 1/4
_HALVINGS = 4  # times that x is halved, so that few terms suffice
_LAYER_NORM_EPS = 1e-6
_NORM_EPS = 1e-12  # of the attention
_MAX_PERIOD = 10000.0
_SCALES = ("weight", "gamma")  # vectors that multiply


class Modulation(NamedTuple):
    """Shift and scale of one norm, each (B, 1, 1, 1, C) in float32."""

    shift: mx.array
    scale: mx.array


def read_modulations(table: mx.array, embedding: mx.array) -> list[Modulation]:
    """Return a layer's n modulations: its table (2n, C), rows shift, scale, ..., plus an embedding (B, 2n*C)."""
    rows = table.astype(mx.float32)[None] + embedding.reshape(embedding.shape[0], *table.shape)
    values = [rows[:, row, None, None, None, :] for row in range(table.shape[0])]
    mx.eval(values)  # they are constants of a stream
    return [Modulation(shift, scale) for shift, scale in zip(values[::2], values[1::2], strict=True)]


def norm_bound(channels: int, modulation: Modulation | None) -> float:
    """Return an upper bound of a position's vector length after norm, modulation and SiLU. Evaluates the modulation."""
    bound = math.sqrt(channels)
    if modulation is None:
        return bound
    scale = mx.abs(1 + modulation.scale.astype(mx.float32)).max()
    shift = mx.sqrt(mx.square(modulation.shift.astype(mx.float32)).sum(axis=-1)).max()
    return to_float(scale * bound + shift)


def inverse_rms(x: mx.array, eps: float = PIXEL_NORM_EPS) -> mx.array:
    """Return 1 / sqrt(mean(x^2) + eps) over the channels of each position (..., C), as (..., 1) in float32."""
    channels = x.shape[-1]
    if not is_cpu():
        return mx.rsqrt(_squares(x).sum(axis=-1, keepdims=True) / channels + eps)
    # Summed in two steps, the first one vectorized: MLX's CPU backend reduces the last axis one element at
    # a time. A matrix product would be faster, but its rounding depends on the length of the piece.
    squares = mx.square(x.astype(mx.float32)).reshape(*x.shape[:-1], -1, math.gcd(channels, _LANES))
    return mx.rsqrt(squares.sum(axis=-2).sum(axis=-1, keepdims=True) / channels + eps)


def pixel_norm(x: mx.array, eps: float = PIXEL_NORM_EPS) -> mx.array:
    """Apply the RMS norm over the channels of each position (..., C), without weights, computed in float32."""
    if not is_cpu():
        return mx.fast.rms_norm(x, None, eps)
    return (x.astype(mx.float32) * inverse_rms(x, eps)).astype(x.dtype)


def group_norm(x: mx.array, norm: nn.Module, groups: int, eps: float) -> mx.array:
    """Normalize each group of channels of (B, T, H, W, C) over all positions, in float32.

    The weights of `norm` are `weight` and `bias` (C,). Means are of rows, then of frames, then of all: a long sum would
    lose digits.
    """
    wide = mx.unflatten(x.astype(mx.float32), -1, (groups, -1))

    def mean(values: mx.array) -> mx.array:
        rows = values.mean(axis=(3, 5), keepdims=True)
        return rows.mean(axis=2, keepdims=True).mean(axis=1, keepdims=True)

    centered = wide - mean(wide)
    normalized = (centered * mx.rsqrt(mean(mx.square(centered)) + eps)).reshape(x.shape)
    return normalized * norm.weight.astype(mx.float32) + norm.bias.astype(mx.float32)


@partial(mx.compile, shapeless=True)
def _squares(x: mx.array) -> mx.array:
    return mx.square(x.astype(mx.float32))


def activate(x: mx.array, modulation: Modulation | None = None, dtype: mx.Dtype | None = None) -> mx.array:
    """Apply the norm, the modulation (shift + x * (1 + scale)) and SiLU. The default dtype is the dtype of `x`."""
    target = dtype or x.dtype
    x = pixel_norm(x)
    if modulation is not None:
        x = x * (1 + modulation.scale) + modulation.shift
    return silu(x, target)


class InputActivation(NamedTuple):
    """Norm, modulation and SiLU before a convolution: what is computed first, and what the convolution computes."""

    enter: Pointwise
    join: Pointwise | None  # `None` if everything is computed first


def silu(x: mx.array, dtype: mx.Dtype | None = None) -> mx.array:
    """Return x * sigmoid(x), computed in float32. The default dtype is the dtype of `x`."""
    target = dtype or x.dtype
    return _subtract(x, _series(x)).astype(target) if is_cpu() else _SILU_KERNELS[target](x)


def gated_silu(x: mx.array, other: mx.array) -> mx.array:
    """Return silu(x) * other, computed in float32, in the dtype of `x`."""
    return _subtract_gated(x, _series(x), other) if is_cpu() else _gated_kernel(x, other)


def expm1_series(x: mx.array, halvings: int) -> mx.array:
    """Return exp(x / 2^halvings) - 1 as a Taylor series, for compiled functions. x / 2^halvings is at most 1/4."""
    c1, c2, c3, c4, c5, c6 = (0.5 ** (halvings * term) / math.factorial(term) for term in range(1, _TERMS + 1))
    square = x * x
    return x * (c1 + c2 * x + square * (c3 + c4 * x + square * (c5 + c6 * x)))


def _silu_kernel(dtype: mx.Dtype) -> Callable[[mx.array], mx.array]:
    """Return SiLU as a single kernel in float32, since MLX rounds every operation in a kernel to its dtype."""

    def compute(x: mx.array) -> mx.array:
        wide = x.astype(mx.float32)
        return (wide * mx.sigmoid(wide)).astype(dtype)

    return mx.compile(compute, shapeless=True)


_SILU_KERNELS = {dtype: _silu_kernel(dtype) for dtype in (mx.float32, mx.bfloat16, mx.float16)}


@partial(mx.compile, shapeless=True)
def _gated_kernel(x: mx.array, other: mx.array) -> mx.array:
    wide = x.astype(mx.float32)
    return (wide * mx.sigmoid(wide) * other.astype(mx.float32)).astype(x.dtype)


# On a CPU, SiLU is max(x, 0) - |x| / (1 + exp(|x|)), where exp(|x|) - 1 is the Taylor series at |x| / 16, squared four
# times. With |x|, it is correct even if the exponential overflows float32, so no clipping is needed. Subtracting the 1
# keeps the rounding error small: at most 1e-6, against 1.4e-6 for MLX's own SiLU. There are two kernels because MLX
# fuses at most 11 operations in depth, and the kernel that it splits off no longer reads contiguous memory.
# Not `shapeless`: a shapeless kernel assumes non-contiguous input and is 4x slower.
@mx.compile
def _series(x: mx.array) -> mx.array:
    """Return exp(|x| / 8) - 1 in float32."""
    power = expm1_series(mx.abs(x.astype(mx.float32)), _HALVINGS)
    return power * (2 + power)


@mx.compile
def _subtract(x: mx.array, power: mx.array) -> mx.array:
    return _silu_of(x, power).astype(x.dtype)


@mx.compile
def _subtract_gated(x: mx.array, power: mx.array, other: mx.array) -> mx.array:
    return (_silu_of(x, power) * other.astype(mx.float32)).astype(x.dtype)


def _silu_of(x: mx.array, power: mx.array) -> mx.array:
    """Return SiLU in float32 from the result of `_series`, squared twice more and once without subtracting the 1."""
    for _ in range(_HALVINGS - 2):
        power = power * (2 + power)
    root = 1 + power
    wide = x.astype(mx.float32)
    magnitude = mx.abs(wide)
    return 0.5 * wide + 0.5 * magnitude - magnitude / (1 + root * root)


class CausalConv3d(nn.Module):
    """3x3x3 convolution over (B, T, H, W, C), padded by one position on each side in space.

    In time the edge frames are repeated: the first frame twice before the clip (causal), or the first frame once before
    it and the last frame once after it. `order` lists the stored output channels in the order in which this layer
    returns them. `None` means the stored order. Checkpoint keys: `<name>.conv.weight`, `<name>.conv.bias` (see
    `Conv3d`).
    """

    def __init__(self, spec: ConvSpec, order: Sequence[int] | None = None) -> None:
        super().__init__()
        (stored_channels,) = dict(spec.weights)[f"{spec.name}.conv.bias"]
        if order is None and stored_channels != spec.conv_channels:
            order = range(spec.conv_channels)  # an encoder computes only the means, not the log-variance
        self.conv = Conv3d(spec.in_channels, stored_channels, stride=spec.conv_stride, order=order, rule=spec.rule)
        self.spec = spec

    def activation(self, modulation: Modulation | None) -> InputActivation:
        """Return the norm, this modulation and SiLU, which returns the dtype of `Conv3d.operands`."""
        dtype = self.conv.operands(lambda: norm_bound(self.spec.in_channels, modulation))
        if modulation is None and self.conv.takes_activation(dtype):
            return InputActivation(pixel_norm, partial(silu, dtype=dtype))
        return InputActivation(partial(activate, modulation=modulation, dtype=dtype), None)

    def __call__(
        self,
        view: View,
        frames: mx.array,
        context: StreamContext,
        skip: mx.array | None = None,
        activation: Pointwise | None = None,
    ) -> mx.array:
        """Convolve frames (B, T, H, W, I), which are `view.frames` or computed from them, and add `skip`.

        All axes are padded here. Axes other than the stream's are complete. See `Conv3d` for `activation`.
        """
        frames, conv_padding = pad(frames, view, self.spec, context)
        return self.conv(frames, conv_padding, skip, activation)

    def stages(self, context: StreamContext, *, modulation: Modulation | None = None) -> list[Stage]:
        window, enter, join = make_window(self.spec, context), None, None
        if self.spec.activation is not Activation.NONE:
            enter, join = self.activation(modulation)

        def compute(view: View) -> mx.array:
            # With a stride, positions that do not complete an output stay in the window and are not convolved yet.
            length = window.spec.stride * (view.num_outputs - 1) + window.spec.kernel - view.before - view.after
            return self(view, take(view.frames, context.axis, 0, length), context, activation=join)

        return [windowed(window, compute, enter=enter)]


def make_window(spec: LayerSpec, context: StreamContext) -> Window:
    """Return the cache of a layer in a new stream."""
    return Window(context.axis, spec.window(context.axis))


def pad(frames: mx.array, view: View, spec: LayerSpec, context: StreamContext) -> tuple[mx.array, tuple[int, int, int]]:
    """Pad all axes of (B, T, H, W, C), or leave the padding to the convolution if possible.

    The second result is the zero padding per axis that the convolution adds itself: none in time (Metal's fast path
    requires none), and in space only if both sides are padded with zeros.
    """
    conv_padding = [0, 0, 0]
    for axis, window in zip(_AXES, spec.windows, strict=True):
        before, after = (view.before, view.after) if axis is context.axis else (window.before, window.after)
        if axis is Axis.TIME:
            frames = extend(frames, axis, before, after, spec.time_padding)
        elif spec.padding is PaddingMode.ZEROS and before == after:
            conv_padding[axis.grid] = before
        else:
            frames = extend(frames, axis, before, after, spec.padding)
    return frames, (conv_padding[0], conv_padding[1], conv_padding[2])


def extend(
    frames: mx.array, axis: Axis, before: int, after: int, mode: PaddingMode = PaddingMode.REPLICATE
) -> mx.array:
    """Pad an axis of (B, T, H, W, C), or the time of (B, T, C)."""
    if before == after == 0:
        return frames
    length = frames.shape[axis]

    def frame(index: int) -> mx.array:
        return take(frames, axis, index, index + 1)

    if mode is PaddingMode.ZEROS:
        front = back = mx.zeros_like(frame(0))
    elif mode is PaddingMode.REPLICATE:
        front, back = frame(0), frame(length - 1)
    else:
        front, back = frame(1), frame(length - 2)
    return mx.concatenate([front] * before + [frames] + [back] * after, axis=axis)


def depth_to_space(x: mx.array, stride: Stride) -> mx.array:
    """Rearrange (B, T, H, W, c*p1*p2*p3) to (B, T*p1, H*p2, W*p3, c), with channels ordered (c, p1, p2, p3)."""
    batch, time, height, width, channels = x.shape
    p1, p2, p3 = stride
    x = x.reshape(batch, time, height, width, channels // (p1 * p2 * p3), p1, p2, p3)
    x = x.transpose(0, 1, 5, 2, 6, 3, 7, 4)
    return x.reshape(batch, time * p1, height * p2, width * p3, -1)


def space_to_depth(x: mx.array, stride: Stride) -> mx.array:
    """Rearrange (B, T*p1, H*p2, W*p3, c) to (B, T, H, W, c*p1*p2*p3), the inverse of `depth_to_space`."""
    batch, time, height, width, channels = x.shape
    p1, p2, p3 = stride
    x = x.reshape(batch, time // p1, p1, height // p2, p2, width // p3, p3, channels)
    x = x.transpose(0, 1, 3, 5, 7, 2, 4, 6)
    return x.reshape(batch, time // p1, height // p2, width // p3, channels * p1 * p2 * p3)


def interleave(x: mx.array, stride: Stride) -> mx.array:
    """Rearrange (B, T, H, W, p1*p2*p3*c) to (B, T*p1, H*p2, W*p3, c), with channels ordered (p1, p2, p3, c)."""
    batch, time, height, width, channels = x.shape
    p1, p2, p3 = stride

    def move(x: mx.array) -> mx.array:
        x = x.reshape(batch, time, height, width, p1, p2, p3, -1)
        x = x.transpose(0, 1, 4, 2, 5, 3, 6, 7)
        x = x.reshape(batch, time * p1, height * p2, width * p3, -1)
        # Of a single position in time that becomes several it is a view, of which no words can be taken.
        return contiguous(x) if time == p2 * p3 == 1 else x

    return in_words(move, x, run=channels // (p1 * p2 * p3))


def depth_to_space_order(channels: int, stride: Stride) -> list[int]:
    """Return the channels of a checkpoint, which are ordered (c, p1, p2, p3), in the order of `interleave`."""
    return np.arange(channels).reshape(-1, *stride).transpose(1, 2, 3, 0).flatten().tolist()


def patch_order(channels: int, size: int) -> list[int]:
    """Return the channels of patches, which a checkpoint orders (c, width, height), in the order of `interleave`."""
    return np.arange(channels).reshape(-1, size, size).transpose(2, 1, 0).flatten().tolist()


def patchify(x: mx.array, size: int) -> mx.array:
    """Rearrange (B, T, H*size, W*size, c) to (B, T, H, W, c*size*size)."""
    batch, time, height, width, channels = x.shape
    x = x.reshape(batch, time, height // size, size, width // size, size, channels)
    x = x.transpose(0, 1, 2, 4, 6, 5, 3)
    return x.reshape(batch, time, height // size, width // size, channels * size**2)


def unpatchify(x: mx.array, size: int) -> mx.array:
    """Rearrange (B, T, H, W, c*size*size) to (B, T, H*size, W*size, c)."""
    batch, time, height, width, channels = x.shape
    x = x.reshape(batch, time, height, width, channels // size**2, size, size).transpose(0, 1, 2, 6, 3, 5, 4)
    return x.reshape(batch, time, height * size, width * size, -1)


class DepthToSpaceUpsample(nn.Module):
    """Convolution to `prod(up)` times the output channels, rearranged into time and space.

    If time doubles, the first output frame is dropped, causal or not, so that 1 + n frames become 1 + 2n. A residual
    adds the input, rearranged in the same way, with its channels repeated. Checkpoint keys: `conv.conv`.
    """

    def __init__(self, spec: ConvSpec) -> None:
        super().__init__()
        self.conv = CausalConv3d(spec, depth_to_space_order(spec.conv_channels, spec.up))

    def stages(self, context: StreamContext) -> list[Stage]:
        axis, spec = context.axis, self.conv.spec

        def compute(view: View) -> mx.array:
            result = interleave(self.conv(view, view.frames, context), spec.up)
            if spec.has_residual:
                skip = depth_to_space(view.at_outputs(axis), spec.up)
                result = result + mx.tile(skip, (1, 1, 1, 1, spec.conv_channels // spec.in_channels))
            if spec.trim and (axis is not Axis.TIME or view.output == 0):
                result = result[:, spec.trim :]
            return result

        return [windowed(make_window(spec, context), compute)]


class SpaceToDepthDownsample(nn.Module):
    """Convolution and space-to-depth, plus the input, rearranged in the same way and averaged.

    If time halves, the first frame is repeated once before the clip, so that 1 + 2n frames become 1 + n.
    Checkpoint keys: `conv.conv`.
    """

    def __init__(self, spec: ConvSpec) -> None:
        super().__init__()
        self.conv = CausalConv3d(spec)

    def stages(self, context: StreamContext) -> list[Stage]:
        spec = self.conv.spec

        # A pair of convolved frames depends on four input frames; the repeated first frame adds padding before them.
        def compute(view: View) -> mx.array:
            # An incomplete pair at the end stays in the window and is not convolved yet.
            frames = take(view.frames, Axis.TIME, 0, spec.down[0] * view.num_outputs + 2 - view.before)
            result = space_to_depth(self.conv(view, frames, context), spec.down)
            skip = space_to_depth(extend(frames, Axis.TIME, view.before, 0)[:, 2:], spec.down)
            skip = skip.reshape(*skip.shape[:-1], spec.out_channels, -1).astype(mx.float32).mean(axis=-1)
            return result + skip.astype(result.dtype)

        return [windowed(make_window(spec, context), compute)]


def add_weights(module: nn.Module, weights: Weights, path: str = "") -> None:
    """Add a network's weights under the `path` of a module, except for the weights that the module has already.

    A matrix `name.weight` becomes a linear layer `name`, unless the module has an entry with this name. All other
    weights become arrays, of ones if they scale, and otherwise of zeros. Missing parents become an `nn.Module`.
    """
    shapes, prefix = dict(weights), f"{path}." if path else ""
    for name in (name for name in shapes if name.startswith(prefix)):
        holder: Any = module
        *parents, leaf = name.removeprefix(prefix).split(".")
        is_matrix = leaf == "weight" and len(shapes[name]) == 2
        for index, part in enumerate(parents, 1):
            if not isinstance(holder, list) and part not in holder:
                is_linear = is_matrix and index == len(parents)
                holder[part] = linear(shapes, name.removesuffix(".weight")) if is_linear else nn.Module()
            holder = holder[int(part) if isinstance(holder, list) else part]
        if leaf not in holder:
            shape = shapes[name]
            holder[leaf] = mx.ones(shape) if len(shape) == 1 and leaf in _SCALES else mx.zeros(shape)


def linear(shapes: Shapes, name: str) -> nn.Linear:
    """Return the linear layer with this name."""
    outputs, inputs = shapes[f"{name}.weight"]
    return nn.Linear(inputs, outputs, bias=f"{name}.bias" in shapes)


def sinusoid(timesteps: mx.array) -> mx.array:
    """Return the embedding (B, `SINUSOID_CHANNELS`) of timesteps (B,) in float32: cosines, then sines."""
    half = SINUSOID_CHANNELS // 2
    frequencies = mx.exp(-math.log(_MAX_PERIOD) * mx.arange(half, dtype=mx.float32) / half)
    angles = timesteps.astype(mx.float32)[:, None] * frequencies[None]
    return mx.concatenate([mx.cos(angles), mx.sin(angles)], axis=-1)


class TimeEmbedder(nn.Module):
    """Embedding of timesteps (B,) as (B, channels) in float32.

    Checkpoint keys: `timestep_embedder.linear_1` and `timestep_embedder.linear_2`.
    """

    def __call__(self, timesteps: mx.array) -> mx.array:
        x = self.timestep_embedder.linear_1(sinusoid(timesteps))
        return self.timestep_embedder.linear_2(x * mx.sigmoid(x)).astype(mx.float32)


class ResnetBlock(nn.Module):
    """Residual block: x + conv(act(norm(conv(act(norm(x)))))).

    If the width changes, the skip connection is a layer norm and a 1x1x1 convolution. Checkpoint keys: `conv1.conv`,
    `conv2.conv`; if the width changes, `norm3.norm`, `conv_shortcut`; with a timestep `scale_shift_table` (4, C), rows
    shift1, scale1, shift2, scale2; with noise injection `per_channel_scale1`, `per_channel_scale2` (C,).
    """

    def __init__(self, conv1: ConvSpec, conv2: ConvSpec) -> None:
        super().__init__()
        self.conv1 = CausalConv3d(conv1)
        self.conv2 = CausalConv3d(conv2)
        add_weights(self, conv1.weights + conv2.weights, conv1.name.removesuffix(".conv1"))

    def stages(self, context: StreamContext, embedding: mx.array | None = None) -> list[Stage]:
        """Return one stage per convolution, so that the scratch memory of one is free while the other runs."""
        modulations: Sequence[Modulation | None] = (None, None)
        if embedding is not None:
            modulations = read_modulations(self.scale_shift_table, embedding)
        window1, window2 = (make_window(conv.spec, context) for conv in (self.conv1, self.conv2))
        (enter1, join1), (enter2, join2) = map(CausalConv3d.activation, (self.conv1, self.conv2), modulations)
        # The first convolution caches its input before the norm, so the skip needs no separate copy.
        skip = Delay(context.axis, window1)

        def enter(view: View) -> mx.array:
            skip.push_view(view)
            noise = self._noise(self.conv1.spec, view, context)
            return self.conv1(view, enter1(view.frames), context, noise, join1)

        def leave(view: View) -> mx.array:
            past = skip.take(view.output, view.num_outputs)
            if "conv_shortcut" in self:
                # The original code normalizes each position separately; a group norm with one group over the whole
                # volume is a known mistake (error 0.4 to 0.8 of the output's magnitude).
                norm = self.norm3.norm
                past = self.conv_shortcut(mx.fast.layer_norm(past, norm.weight, norm.bias, _LAYER_NORM_EPS))
            noise = self._noise(self.conv2.spec, view, context)
            return self.conv2(view, view.frames, context, past if noise is None else past + noise, join2)

        # The cache of the second convolution holds values after the norm, and after SiLU if the convolution takes none.
        return [windowed(window1, enter, skip), windowed(window2, leave, skip, window1, enter=enter2)]

    def _noise(self, spec: ConvSpec, view: View, context: StreamContext) -> mx.array | None:
        """Return this step's part of a map (H, W) or (B, H, W), which all frames share, times the per-channel scale."""
        if not spec.has_noise:
            return None
        scale = self.per_channel_scale1 if spec is self.conv1.spec else self.per_channel_scale2
        noise = context.noise_maps[spec.name]
        noise = noise[:, None, :, :, None] if noise.ndim == 3 else noise[None, None, :, :, None]
        if context.axis is not Axis.TIME:
            noise = take(noise, context.axis, view.output, view.output + view.num_outputs)
        return (noise * scale.astype(mx.float32)).astype(scale.dtype)


class ResnetStack(nn.Module):
    """Residual blocks that share a time embedding. Checkpoint keys: `res_blocks.i`, with a timestep `time_embedder`."""

    def __init__(self, *layers: ConvSpec) -> None:
        super().__init__()
        self.res_blocks = [ResnetBlock(conv1, conv2) for conv1, conv2 in zip(layers[::2], layers[1::2], strict=True)]
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

    def __call__(self, x: mx.array) -> mx.array:
        """Add the attention to (B, T, H, W, C)."""
        batch, time, _, _, channels = x.shape
        queries, keys, values = mx.split(self.to_qkv(self._normalize(x)), 3, axis=-1)
        tokens = (part.reshape(batch * time, 1, -1, channels) for part in (queries, keys, values))
        return x + self.proj(self._attend(*tokens).reshape(x.shape))

    def _attend(self, queries: mx.array, keys: mx.array, values: mx.array) -> mx.array:
        """Compute single-head attention, (N, 1, L, C), in blocks of queries.

        MLX fuses no attention with this many channels, so all scores of a block are in memory. Each block is evaluated
        before the next one, since otherwise the memory of all blocks would be allocated at once.
        """
        attend = partial(mx.fast.scaled_dot_product_attention, scale=keys.shape[-1] ** -0.5)
        size, length = self._spec.query_block(len(keys), keys.shape[2]), queries.shape[2]
        if length <= size:
            return attend(queries, keys, values)
        parts = []
        for start in range(0, length, size):
            parts.append(attend(queries[:, :, start : start + size], keys, values))
            if not is_tracing():
                mx.eval(parts)
        return mx.concatenate(parts, axis=2)

    def _normalize(self, x: mx.array) -> mx.array:
        """Return `x / |x| * sqrt(C) * gamma` over the channels of each position."""
        wide = x.astype(mx.float32)
        length = mx.maximum(mx.linalg.norm(wide, axis=-1, keepdims=True), _NORM_EPS)
        return (wide / length * x.shape[-1] ** 0.5 * self.norm.gamma.astype(mx.float32)).astype(x.dtype)

    def stages(self, context: StreamContext) -> list[Stage]:
        return [pointwise(self)]
