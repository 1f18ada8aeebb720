"""Trading depth (channels) for space and time, and back.

Two channel orders live here. Between blocks a position's channels are (c, time, height, width). At the picture they
are (c, width, height): a picture whose 4x4 blocks are mirrored at their diagonal has been unpatchified in the other.
"""

import math

import mlx.core as mx
import mlx.nn as nn

from ...streaming.window import Axis, Window, WindowCache, take
from ..specs import PaddingMode
from .conv import CausalConv3d, pad

Stride = tuple[int, int, int]


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


def unpatchify(x: mx.array, size: int) -> mx.array:
    """(B, T, H, W, c*size*size) -> (B, T, H*size, W*size, c), channels ordered (c, width, height)."""
    batch, time, height, width, channels = x.shape
    x = x.reshape(batch, time, height, width, channels // size**2, size, size)
    x = x.transpose(0, 1, 2, 6, 3, 5, 4)
    return x.reshape(batch, time, height * size, width * size, -1)


def patchify(x: mx.array, size: int) -> mx.array:
    """(B, T, H*size, W*size, c) -> (B, T, H, W, c*size*size): the inverse of `unpatchify`."""
    batch, time, height, width, channels = x.shape
    x = x.reshape(batch, time, height // size, size, width // size, size, channels)
    x = x.transpose(0, 1, 2, 4, 6, 5, 3)
    return x.reshape(batch, time, height // size, width // size, channels * size**2)


class DepthToSpaceUpsample(nn.Module):
    """A convolution to `prod(stride)` times the channels, rearranged into time and space.

    Where time doubles, the first resulting frame is dropped, causal or not, so that 1 + n frames become 1 + 2n.
    With `residual` the input, rearranged likewise and its channels repeated to the new width, is added.

    Checkpoint keys: `conv.conv`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: Stride,
        *,
        residual: bool,
        causal: bool,
        padding: PaddingMode,
    ) -> None:
        super().__init__()
        volume = math.prod(stride)
        self.conv = CausalConv3d(in_channels, out_channels * volume, causal=causal, padding=padding)
        self._stride = stride
        self._repeats = out_channels * volume // in_channels if residual else 0

    def make_cache(self, axis: Axis) -> WindowCache:
        """A fresh cache for a stream along `axis`."""
        return WindowCache(self.conv.window(axis))

    def __call__(self, x: mx.array | None, last: bool, *, cache: WindowCache) -> mx.array | None:
        """One step: (B, T, H, W, C) -> up to `stride` times as many positions, or None where none is finished."""
        axis = cache.window.axis
        view = cache.window.push(x, last)
        if view is None:
            return None
        result = depth_to_space(self.conv(view, view.frames, axis), self._stride)
        if self._repeats:
            first = view.output - view.start
            skip = depth_to_space(take(view.frames, axis, first, first + view.count), self._stride)
            result = result + mx.tile(skip, (1, 1, 1, 1, self._repeats))
        if self._stride[0] == 2 and (axis is not Axis.TIME or view.output == 0):
            result = result[:, 1:]
        return result


class SpaceToDepthDownsample(nn.Module):
    """A convolution whose result moves from space into depth, plus the input moved likewise and averaged.

    Where time halves, the first frame is put in front once more, so that 1 + 2n frames become 1 + n.

    Checkpoint keys: `conv.conv`.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: Stride, *, padding: PaddingMode) -> None:
        super().__init__()
        volume = math.prod(stride)
        self.conv = CausalConv3d(in_channels, out_channels // volume, causal=True, padding=padding)
        self._stride = stride
        self._group = in_channels * volume // out_channels

    def make_cache(self, axis: Axis) -> WindowCache:
        """A fresh cache for a stream along time, the only axis along which encoders stream."""
        # Pairs of frames out of a kernel of three see four; the doubled first frame is one more in front.
        stride = self._stride[0]
        return WindowCache(Window(axis, kernel=2 + stride, stride=stride, before=1 + stride, after=0))

    def __call__(self, x: mx.array | None, last: bool, *, cache: WindowCache) -> mx.array | None:
        """One step: (B, T, H, W, C) -> (B, T/p1, H/p2, W/p3, out_channels), or None where no group is complete."""
        axis = cache.window.axis
        view = cache.window.push(x, last)
        if view is None:
            return None
        stride = self._stride[0]
        # An incomplete group at the end stays in the window; the convolution must not see it.
        length = stride * view.count + 2 - view.before
        frames = take(view.frames, axis, 0, length)
        result = space_to_depth(self.conv(view, frames, axis), self._stride)
        skip = frames
        if view.before:
            skip = mx.concatenate([frames[:, :1]] * view.before + [frames], axis=axis)
        skip = space_to_depth(skip[:, 2:], self._stride)
        skip = skip.reshape(*skip.shape[:-1], -1, self._group).astype(mx.float32).mean(axis=-1)
        return result + skip.astype(result.dtype)


class StridedDownsample(nn.Module):
    """The causal 3x3x3 convolution with stride 2 along the axes named (encoders of 0.9.0 and 0.9.1).

    Checkpoint keys: `conv.weight`, `conv.bias` (one level less than the others).
    """

    def __init__(self, in_channels: int, out_channels: int, stride: Stride, *, padding: PaddingMode) -> None:
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, 3)
        self._stride = stride
        self._padding = padding

    def make_cache(self, axis: Axis) -> WindowCache:
        """A fresh cache for a stream along time, the only axis along which encoders stream."""
        return WindowCache(Window(axis, stride=self._stride[0], before=2, after=0))

    def __call__(self, x: mx.array | None, last: bool, *, cache: WindowCache) -> mx.array | None:
        """One step: (B, T, H, W, C) -> (B, T/s1, H/s2, W/s3, out_channels), or None where none is finished."""
        axis = cache.window.axis
        view = cache.window.push(x, last)
        if view is None:
            return None
        frames = take(view.frames, axis, 0, self._stride[0] * (view.count - 1) + 3 - view.before)
        ends = {Axis.TIME: (view.before, 0), Axis.HEIGHT: (1, 1), Axis.WIDTH: (1, 1)}
        frames, conv_padding = pad(frames, ends, self._padding)
        return mx.conv3d(frames, self.conv.weight, stride=self._stride, padding=conv_padding) + self.conv.bias
