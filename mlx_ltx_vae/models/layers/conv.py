"""The 3x3x3 convolution of the LTX VAE: replication padding in time, configurable padding in space."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from ...backend.mlx_utils import take
from ...streaming.axis import Axis
from ...streaming.context import Stage, StreamContext
from ...streaming.window import Halo, View, Window
from ..convolution.module import Conv3d
from ..specs import Activation, ConvSpec, LayerSpec, PaddingMode
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
        self.conv = Conv3d(
            spec.in_channels,
            stored,
            stride=spec.conv_stride,
            order=order,
            rule=spec.rule,
        )
        self.spec = spec

    def operands(self, modulation: Modulation | None) -> mx.Dtype:
        """The dtype in which it takes its input, which is behind a norm with this modulation."""
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
        axis, spec = context.axis, self.spec
        window = self.window(context)
        operands = self.operands(modulation) if spec.activation is not Activation.NONE else None

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            if x is not None and operands is not None:
                x = activate(x, modulation, operands)
            view = window.push(x, last)
            if view is None:
                return None
            # With a stride, positions that do not complete an output stay in the window and are not convolved yet.
            length = window.spec.stride * (view.results - 1) + window.spec.kernel - view.before - view.after
            return self(view, take(view.frames, axis, 0, length), context)

        return [Stage(step, window)]


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
