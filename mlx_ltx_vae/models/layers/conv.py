"""The 3x3x3 convolution of the LTX VAE, and layers that rearrange its channels into space and time, and back.

Checkpoints have two channel orders: (c, time, height, width) between blocks, and (c, width, height) for pixel patches.
The symptom of the wrong order is a picture whose 4x4 blocks are transposed. Where a convolution is
followed by upsampling, it returns its channels as (time, height, width, c) instead, so that they stay together in
memory: see `interleave`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ...backend.mlx_utils import take
from ...shapes import Axis
from ...streaming.context import Stage, StreamContext
from ...streaming.window import Halo, View, Window, windowed
from ..conv_spec import Activation, ConvSpec
from ..convolution.conv3d import Conv3d
from ..specs import LayerSpec, PaddingMode, Shapes, Stride, Weights
from .activation import Modulation, activate, norm_bound


class CausalConv3d(nn.Module):
    """A 3x3x3 convolution over (B, T, H, W, C), padded by one position on each side in space.

    In time the edge frames are repeated: the first frame twice before the clip (causal), or the first frame once before
    it and the last frame once after it. `order` lists the stored output channels in the order in which this layer
    returns them; None for the stored order. Checkpoint keys: `<name>.conv.weight`, `<name>.conv.bias` (see `Conv3d`).
    """

    def __init__(self, spec: ConvSpec, order: Sequence[int] | None = None) -> None:
        super().__init__()
        (stored,) = dict(spec.weights)[f"{spec.name}.conv.bias"]
        if order is None and stored != spec.conv_channels:
            order = range(spec.conv_channels)  # an encoder computes only the means, not the log-variance
        self.conv = Conv3d(spec.in_channels, stored, stride=spec.conv_stride, order=order, rule=spec.rule)
        self.spec = spec

    def operands(self, modulation: Modulation | None) -> mx.Dtype:
        """The dtype in which it takes its input, which follows a norm with this modulation."""
        return self.conv.operands(lambda: norm_bound(self.spec.in_channels, modulation))

    def window(self, context: StreamContext) -> Window:
        return make_window(self.spec, context)

    def __call__(self, view: View, frames: mx.array, context: StreamContext, skip: mx.array | None = None) -> mx.array:
        """Convolve frames (B, T, H, W, I), which are `view.frames` after norm and activation, and add `skip`.

        The padding of all axes is added here; axes other than the stream's are complete, or bands with neighbors.
        """
        frames, conv_padding = pad(frames, view, self.spec, context)
        return self.conv(frames, conv_padding, skip)

    def stages(self, context: StreamContext, *, modulation: Modulation | None = None) -> list[Stage]:
        window, enter = self.window(context), None
        if self.spec.activation is not Activation.NONE:
            enter = partial(activate, modulation=modulation, dtype=self.operands(modulation))

        def compute(view: View) -> mx.array:
            # With a stride, positions that do not complete an output stay in the window and are not convolved yet.
            length = window.spec.stride * (view.results - 1) + window.spec.kernel - view.before - view.after
            return self(view, take(view.frames, context.axis, 0, length), context)

        return [windowed(window, compute, enter=enter)]


def make_window(spec: LayerSpec, context: StreamContext) -> Window:
    """The cache of a layer in a new stream, with its halo if the stream is a band."""
    neighbors = context.neighbors
    halo = None if neighbors is None else Halo(context.axis, neighbors, spec.window(neighbors.axis))
    return Window(context.axis, spec.window(context.axis), halo)


def pad(frames: mx.array, view: View, spec: LayerSpec, context: StreamContext) -> tuple[mx.array, tuple[int, int, int]]:
    """Join (B, T, H, W, C) with the halo and pad all axes, or leave the padding to the convolution if possible.

    The second result is the zero padding per axis that the convolution adds itself: none in time (Metal's fast path
    requires none), and in space only if both sides are padded with zeros.
    """
    left = [0, 0, 0]
    has_front = has_back = False
    if view.halo is not None:
        frames, has_front, has_back = view.halo.extend(frames, view.start)
    for axis in Axis:
        window = spec.window(axis)
        before, after = (view.before, view.after) if axis is context.axis else (window.before, window.after)
        if context.neighbors is not None and context.neighbors.axis is axis:
            before, after = (0 if has_front else before), (0 if has_back else after)
        if axis is Axis.TIME:
            frames = _extend(frames, axis, before, after, spec.time_padding)
        elif spec.padding is PaddingMode.ZEROS and before == after:
            left[axis.grid] = before
        else:
            frames = _extend(frames, axis, before, after, spec.padding)
    return frames, (left[0], left[1], left[2])


def _extend(frames: mx.array, axis: Axis, before: int, after: int, mode: PaddingMode) -> mx.array:
    if before == after == 0:
        return frames
    length = frames.shape[axis]

    def at(index: int) -> mx.array:
        return take(frames, axis, index, index + 1)

    if mode is PaddingMode.ZEROS:
        front = back = mx.zeros_like(at(0))
    elif mode is PaddingMode.REPLICATE:
        front, back = at(0), at(length - 1)
    else:
        front, back = at(1), at(length - 2)
    return mx.concatenate([front] * before + [frames] + [back] * after, axis=axis)


def depth_to_space(x: mx.array, stride: Stride) -> mx.array:
    """(B, T, H, W, c*p1*p2*p3) -> (B, T*p1, H*p2, W*p3, c), channels ordered (c, p1, p2, p3)."""
    batch, time, height, width, channels = x.shape
    p1, p2, p3 = stride
    x = x.reshape(batch, time, height, width, channels // (p1 * p2 * p3), p1, p2, p3)
    x = x.transpose(0, 1, 5, 2, 6, 3, 7, 4)
    return x.reshape(batch, time * p1, height * p2, width * p3, -1)


def space_to_depth(x: mx.array, stride: Stride) -> mx.array:
    """(B, T*p1, H*p2, W*p3, c) -> (B, T, H, W, c*p1*p2*p3): the inverse of `depth_to_space`."""
    batch, time, height, width, channels = x.shape
    p1, p2, p3 = stride
    x = x.reshape(batch, time // p1, p1, height // p2, p2, width // p3, p3, channels)
    x = x.transpose(0, 1, 3, 5, 7, 2, 4, 6)
    return x.reshape(batch, time // p1, height // p2, width // p3, channels * p1 * p2 * p3)


def interleave(x: mx.array, stride: Stride) -> mx.array:
    """(B, T, H, W, p1*p2*p3*c) -> (B, T*p1, H*p2, W*p3, c), channels ordered (p1, p2, p3, c)."""
    batch, time, height, width, _ = x.shape
    p1, p2, p3 = stride
    x = x.reshape(batch, time, height, width, p1, p2, p3, -1)
    x = x.transpose(0, 1, 4, 2, 5, 3, 6, 7)
    return x.reshape(batch, time * p1, height * p2, width * p3, -1)


def depth_to_space_order(channels: int, stride: Stride) -> list[int]:
    """The channels of a checkpoint, which are ordered (c, p1, p2, p3), as `interleave` takes them."""
    return np.arange(channels).reshape(-1, *stride).transpose(1, 2, 3, 0).flatten().tolist()


def patch_order(channels: int, size: int) -> list[int]:
    """The channels of pixel patches, which a checkpoint orders (c, width, height), as `interleave` takes them."""
    return np.arange(channels).reshape(-1, size, size).transpose(2, 1, 0).flatten().tolist()


def patchify(x: mx.array, size: int) -> mx.array:
    """(B, T, H*size, W*size, c) -> (B, T, H, W, c*size*size)."""
    batch, time, height, width, channels = x.shape
    x = x.reshape(batch, time, height // size, size, width // size, size, channels)
    x = x.transpose(0, 1, 2, 4, 6, 5, 3)
    return x.reshape(batch, time, height // size, width // size, channels * size**2)


def unpatchify(x: mx.array, size: int) -> mx.array:
    """(B, T, H, W, c*size*size) -> (B, T, H*size, W*size, c)."""
    batch, time, height, width, channels = x.shape
    x = x.reshape(batch, time, height, width, channels // size**2, size, size).transpose(0, 1, 2, 6, 3, 5, 4)
    return x.reshape(batch, time, height * size, width * size, -1)


class DepthToSpaceUpsample(nn.Module):
    """A convolution to `prod(up)` times the output channels, rearranged into time and space.

    If time doubles, the first output frame is dropped, causal or not, so that 1 + n frames become 1 + 2n. With a
    residual, the input is added, rearranged alike, its channels repeated. Checkpoint keys: `conv.conv`.
    """

    def __init__(self, spec: ConvSpec) -> None:
        super().__init__()
        self.conv = CausalConv3d(spec, depth_to_space_order(spec.conv_channels, spec.up))

    def stages(self, context: StreamContext) -> list[Stage]:
        axis, spec = context.axis, self.conv.spec

        def compute(view: View) -> mx.array:
            result = interleave(self.conv(view, view.frames, context), spec.up)
            if spec.has_residual:
                skip = depth_to_space(view.own(axis), spec.up)
                result = result + mx.tile(skip, (1, 1, 1, 1, spec.conv_channels // spec.in_channels))
            if spec.trim and (axis is not Axis.TIME or view.output == 0):
                result = result[:, spec.trim :]
            return result

        return [windowed(self.conv.window(context), compute)]


class SpaceToDepthDownsample(nn.Module):
    """A convolution and space-to-depth, plus the input, rearranged in the same way and averaged.

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
            frames = take(view.frames, Axis.TIME, 0, spec.down[0] * view.results + 2 - view.before)
            result = space_to_depth(self.conv(view, frames, context), spec.down)
            skip = frames
            if view.before:
                skip = mx.concatenate([frames[:, :1]] * view.before + [frames], axis=1)
            skip = space_to_depth(skip[:, 2:], spec.down)
            skip = skip.reshape(*skip.shape[:-1], spec.out_channels, -1).astype(mx.float32).mean(axis=-1)
            return result + skip.astype(result.dtype)

        return [windowed(self.conv.window(context), compute)]


_SCALES = ("weight", "gamma")  # vectors that multiply


def add_weights(module: nn.Module, weights: Weights, path: str = "") -> None:
    """Add a network's weights that lie below the `path` of a module, and that it does not have yet.

    A matrix `name.weight` becomes a linear layer `name`, unless the module has something else there. All else is an
    array, of ones if it scales, and otherwise of zeros. What no module stands for is an `nn.Module` of its own.
    """
    shapes, prefix = dict(weights), f"{path}." if path else ""
    for name in (name for name in shapes if name.startswith(prefix)):
        holder: Any = module
        *parents, own = name.removeprefix(prefix).split(".")
        is_matrix = own == "weight" and len(shapes[name]) == 2
        for index, part in enumerate(parents, 1):
            if not isinstance(holder, list) and part not in holder:
                is_linear = is_matrix and index == len(parents)
                holder[part] = linear(shapes, name.removesuffix(".weight")) if is_linear else nn.Module()
            holder = holder[int(part) if isinstance(holder, list) else part]
        if own not in holder:
            shape = shapes[name]
            holder[own] = mx.ones(shape) if len(shape) == 1 and own in _SCALES else mx.zeros(shape)


def linear(shapes: Shapes, name: str) -> nn.Linear:
    """The linear layer of this name."""
    outputs, inputs = shapes[f"{name}.weight"]
    return nn.Linear(inputs, outputs, bias=f"{name}.bias" in shapes)
