"""Layers that rearrange channels into space and time, and back.

Checkpoints have two channel orders: (c, time, height, width) between blocks, and (c, width, height) for pixel patches.
The symptom of the wrong order is a picture whose 4x4 blocks are transposed. Where a convolution is
followed by upsampling, it returns its channels as (time, height, width, c) instead, so that they stay together in
memory: see `interleave`.
"""

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ...backend.mlx_utils import take
from ...streaming.axis import Axis
from ...streaming.context import Stage, StreamContext
from ..specs import ConvSpec, Stride
from .conv import CausalConv3d


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
        window = self.conv.window(context)

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            view = window.push(x, last)
            if view is None:
                return None
            result = interleave(self.conv(view, view.frames, context), spec.up)
            if spec.has_residual:
                skip = depth_to_space(view.own(axis), spec.up)
                result = result + mx.tile(skip, (1, 1, 1, 1, spec.conv_channels // spec.in_channels))
            if spec.trim and (axis is not Axis.TIME or view.output == 0):
                result = result[:, spec.trim :]
            return result

        return [Stage(step, window)]


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
        window = self.conv.window(context)

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            view = window.push(x, last)
            if view is None:
                return None
            # An incomplete pair at the end stays in the window and is not convolved yet.
            frames = take(view.frames, Axis.TIME, 0, spec.down[0] * view.results + 2 - view.before)
            result = space_to_depth(self.conv(view, frames, context), spec.down)
            skip = frames
            if view.before:
                skip = mx.concatenate([frames[:, :1]] * view.before + [frames], axis=1)
            skip = space_to_depth(skip[:, 2:], spec.down)
            skip = skip.reshape(*skip.shape[:-1], spec.out_channels, -1).astype(mx.float32).mean(axis=-1)
            return result + skip.astype(result.dtype)

        return [Stage(step, window)]
