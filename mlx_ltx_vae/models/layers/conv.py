"""The 3x3x3 convolution of the LTX VAE: replication padding in time, configurable padding in space."""

import mlx.core as mx
import mlx.nn as nn

from ...mlx_utils import take
from ...streaming.axis import Axis
from ...streaming.context import StreamContext
from ...streaming.halo import Halo
from ...streaming.stage import Stage
from ...streaming.window import View, Window
from ..specs import Activation, ConvSpec, PaddingMode
from .activation import Modulation, activate
from .norm import PixelNorm


class CausalConv3d(nn.Module):
    """A 3x3x3 convolution over (B, T, H, W, C).

    In time the edge frames are repeated: the first frame twice before the clip (causal), or the first frame once before
    it and the last frame once after it. In space there is one position of padding on each side.

    Checkpoint keys: `<name>.conv.weight` (here (O, 3, 3, 3, I)), `<name>.conv.bias`.
    """

    def __init__(self, spec: ConvSpec) -> None:
        super().__init__()
        shapes = dict(spec.weights)
        self.conv = nn.Conv3d(spec.in_channels, shapes[f"{spec.name}.conv.bias"][0], 3)
        self.spec = spec

    def window(self, context: StreamContext) -> Window:
        """The cache of a new stream."""
        neighbors = context.neighbors
        halo = None if neighbors is None else Halo(context.axis, neighbors, self.spec.window(neighbors.axis))
        return Window(context.axis, self.spec.window(context.axis), halo)

    def __call__(self, view: View, frames: mx.array, context: StreamContext) -> mx.array:
        """Convolve one step of a stream.

        Args:
            view: from the window; its padding along the axis of the stream is added here.
            frames: `view.frames` after norm and activation: (B, T, H, W, I).
            context: the stream. The other axes are complete, or bands with neighbors, and are padded at both ends.

        Returns:
            The outputs of this step: (B, T', H', W', O).
        """
        frames, conv_padding = pad(frames, view, self.spec, context)
        weight, bias = self.conv.weight, self.conv.bias
        if len(bias) != self.spec.conv_channels:  # an encoder computes only the means, not the log-variance
            weight, bias = weight[: self.spec.conv_channels], bias[: self.spec.conv_channels]
        return mx.conv3d(frames, weight, stride=self.spec.conv_stride, padding=conv_padding) + bias

    def stages(self, context: StreamContext, *, modulation: Modulation | None = None) -> list[Stage]:
        """One stage: the convolution, after norm and SiLU if the spec requires them."""
        axis, spec = context.axis, self.spec
        window = self.window(context)
        norm = PixelNorm()

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            if x is not None and spec.activation is not Activation.NONE:
                x = activate(x, norm, modulation)
            view = window.push(x, last)
            if view is None:
                return None
            # With a stride, positions that do not complete an output stay in the window and are not convolved yet.
            length = window.spec.stride * (view.results - 1) + window.spec.kernel - view.before - view.after
            return self(view, take(view.frames, axis, 0, length), context)

        return [Stage(step, window)]


def pad(frames: mx.array, view: View, spec: ConvSpec, context: StreamContext) -> tuple[mx.array, tuple[int, int, int]]:
    """Pad (B, T, H, W, C) on all axes, or leave the padding to the convolution if possible.

    Returns:
        The padded array, and the zero padding per axis that the convolution adds itself: none in time (Metal's fast
        path requires none), and in space only if both sides are padded with zeros.
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
            frames = _extend(frames, axis, before, after, PaddingMode.REPLICATE)
        elif spec.padding is PaddingMode.ZEROS and before == after:
            left[axis.grid] = before
        else:
            frames = _extend(frames, axis, before, after, spec.padding)
    return frames, (left[0], left[1], left[2])


def _extend(frames: mx.array, axis: Axis, before: int, after: int, mode: PaddingMode) -> mx.array:
    """Pad `frames` along `axis` by `before` positions at the start and `after` at the end."""
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
