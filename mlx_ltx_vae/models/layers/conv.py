"""The 3x3x3 convolution of the LTX VAE: edge frames repeated in time, a chosen padding in space."""

import mlx.core as mx
import mlx.nn as nn

from ...streaming.window import Axis, View, Window, take
from ..specs import PaddingMode


class CausalConv3d(nn.Module):
    """A 3x3x3 convolution over (B, T, H, W, C).

    In time the edge frames are repeated: two copies of the first in front (`causal`), or one of the first in front
    and one of the last behind. In space one position of `padding` stands on each side.

    Checkpoint keys: `<name>.conv.weight` (here (O, 3, 3, 3, I)), `<name>.conv.bias`.
    """

    def __init__(self, in_channels: int, out_channels: int, *, causal: bool, padding: PaddingMode) -> None:
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, 3)
        self._causal = causal
        self._padding = padding

    def window(self, axis: Axis) -> Window:
        """A fresh memory for a stream along `axis`."""
        if axis is Axis.TIME and self._causal:
            return Window(axis, before=2, after=0)
        return Window(axis)

    def __call__(self, view: View, frames: mx.array, axis: Axis, outputs: int | None = None) -> mx.array:
        """Convolve one step of a stream.

        Args:
            view: what the window showed; its padding along `axis` is added here.
            frames: what stands for `view.frames`, normed and activated: (B, T, H, W, I).
            axis: the axis of the stream. The other axes are whole and padded at both ends.
            outputs: so many of the output channels are computed, the first; None for all.

        Returns:
            `view.count` results along `axis`: (B, T', H', W', O).
        """
        ends = {Axis.TIME: (2, 0) if self._causal else (1, 1), Axis.HEIGHT: (1, 1), Axis.WIDTH: (1, 1)}
        ends[axis] = (view.before, view.after)
        frames, conv_padding = pad(frames, ends, self._padding)
        return mx.conv3d(frames, self.conv.weight[:outputs], padding=conv_padding) + self.conv.bias[:outputs]


def pad(
    frames: mx.array, ends: dict[Axis, tuple[int, int]], spatial: PaddingMode
) -> tuple[mx.array, tuple[int, int, int]]:
    """Pad (B, T, H, W, C) by `ends` positions per axis: edge frames in time, `spatial` in height and width.

    Returns:
        The padded array, and what is left for the convolution's own zero padding, per axis: time is always padded
        here (Metal has its fast route only without it), zeros in space are left where both sides want them.
    """
    frames = _extend(frames, Axis.TIME, *ends[Axis.TIME], PaddingMode.REPLICATE)
    left = [0, 0, 0]
    for axis in (Axis.HEIGHT, Axis.WIDTH):
        before, after = ends[axis]
        if spatial is PaddingMode.ZEROS and before == after:
            left[axis - 1] = before
        else:
            frames = _extend(frames, axis, before, after, spatial)
    return frames, (left[0], left[1], left[2])


def _extend(frames: mx.array, axis: Axis, before: int, after: int, mode: PaddingMode) -> mx.array:
    """Put `before` positions in front of and `after` behind `frames` along `axis`."""
    if before == after == 0:
        return frames
    length = frames.shape[axis]

    def at(index: int) -> mx.array:
        return take(frames, axis, index, index + 1)

    if mode is PaddingMode.ZEROS:
        front = back = mx.zeros_like(at(0))
    elif mode is PaddingMode.REPLICATE:
        front, back = at(0), at(length - 1)
    elif mode is PaddingMode.REFLECT:
        front, back = at(1), at(length - 2)
    else:
        front, back = at(length - 1), at(0)
    return mx.concatenate([front] * before + [frames] + [back] * after, axis=axis)
