"""The layers of the tiny networks, each written for a stream. Arrays are (B, T, H, W, C)."""

from collections.abc import Callable, Sequence
from typing import cast

import mlx.core as mx
import mlx.nn as nn

from ...backend.mlx_utils import take
from ...streaming.axis import Axis, WindowSpec
from ...streaming.context import Stage, StreamContext
from ...streaming.delay import Delay, Trim
from ...streaming.window import View, Window
from ..convolution.conv2d import Conv2d
from ..layers.conv import make_window, pad
from ..specs import LayerSpec
from .config import FRAMES, FrameLayerSpec

Pointwise = Callable[[mx.array], mx.array]


class FrameConv(Conv2d):
    """A convolution with its window: one stage. Checkpoint keys: `weight`, `bias` if it has one."""

    def __init__(self, spec: FrameLayerSpec, order: Sequence[int] | None = None) -> None:
        (_, shape), *bias = spec.weights
        super().__init__(
            shape,
            has_bias=len(bias) > 0,
            groups=spec.groups,
            stride=spec.down[1],
            is_upsampled=spec.is_upsampled,
            order=order,
        )
        self.spec = spec

    def convolve(self, view: View, context: StreamContext, *, upsamples: bool = True) -> mx.array:
        """Convolve the positions in view, with the padding of all axes, in float32."""
        frames, (_, *padding) = pad(view.frames, view, self.spec, context)
        if self.spec.window(Axis.TIME).kernel == 2:
            frames = mx.concatenate([frames[:, 1:], frames[:, :-1]], axis=-1)
        return self(frames, (padding[0], padding[1]), upsamples=upsamples)

    def stages(
        self, context: StreamContext, *, enter: Pointwise | None = None, leave: Pointwise, upsamples: bool = True
    ) -> list[Stage]:
        """`enter` is applied to the input before it is cached, `leave` to the result in float32."""
        window = make_window(self.spec, context)

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            view = window.push(x if x is None or enter is None else enter(x), last)
            return None if view is None else leave(self.convolve(view, context, upsamples=upsamples)).astype(self.dtype)

        return [Stage(step, window)]


class PointConv(nn.Module):
    """A 1x1 convolution, computed in float32. Checkpoint keys: `weight` (O, I), `bias` (O,) if it has one."""

    def __init__(self, in_channels: int, out_channels: int, *, has_bias: bool) -> None:
        super().__init__()
        self.weight = mx.random.uniform(-(in_channels**-0.5), in_channels**-0.5, (out_channels, in_channels))
        if has_bias:
            self.bias = mx.zeros((out_channels,))

    def __call__(self, x: mx.array) -> mx.array:
        x, weight = x.astype(mx.float32), self.weight.astype(mx.float32)
        return mx.addmm(self.bias.astype(mx.float32), x, weight.T) if "bias" in self else x @ weight.T


class MemoryBlock(nn.Module):
    """relu(f(frame joined to the frame before it) + frame); before the first frame there are zeros.

    f is three 3x3 convolutions with ReLU between them. Checkpoint keys: `conv.0`, `conv.2`, `conv.4`.
    """

    def __init__(self, first: FrameLayerSpec, second: FrameLayerSpec, third: FrameLayerSpec) -> None:
        super().__init__()
        self.conv: list[nn.Module] = [FrameConv(first), nn.ReLU(), FrameConv(second), nn.ReLU(), FrameConv(third)]

    def stages(self, context: StreamContext) -> list[Stage]:
        """One stage per convolution."""
        first, second, third = (cast(FrameConv, self.conv[index]) for index in (0, 2, 4))

        def convolve(view: View) -> mx.array:
            return relu(first.convolve(view, context)).astype(first.dtype)

        entering, skip = _enter(first.spec, convolve, context)
        return [entering, *second.stages(context, leave=relu), _leave(third, skip, context)]


class GroupedMemoryBlock(nn.Module):
    """A memory block of the wide decoder: 3x3 convolutions in groups of channels, and 1x1 ones before and between.

    Checkpoint keys: `conv.0` (1x1), `conv.2`, `conv.4` (1x1), `conv.6`.
    """

    def __init__(self, first: FrameLayerSpec, second: FrameLayerSpec, third: FrameLayerSpec) -> None:
        super().__init__()
        width = first.in_channels
        joined, inner = PointConv(2 * width, width, has_bias=True), PointConv(width, width, has_bias=True)
        self.conv: list[nn.Module] = [
            joined,
            nn.ReLU(),
            FrameConv(second),
            nn.ReLU(),
            inner,
            nn.ReLU(),
            FrameConv(third),
        ]
        self._first = first

    def stages(self, context: StreamContext) -> list[Stage]:
        """One stage per 3x3 convolution, and one before them."""
        joined, inner = (cast(PointConv, self.conv[index]) for index in (0, 4))
        second, third = (cast(FrameConv, self.conv[index]) for index in (2, 6))

        def join(view: View) -> mx.array:
            frames, _ = pad(view.frames, view, self._first, context)
            pairs = mx.concatenate([frames[:, 1:], frames[:, :-1]], axis=-1)
            return relu(joined(pairs)).astype(second.dtype)

        middle = second.stages(context, leave=lambda x: relu(inner(relu(x))))
        entering, skip = _enter(self._first, join, context)
        return [entering, *middle, _leave(third, skip, context)]


class Growth(nn.Module):
    """Two frames of each, the earlier one in the first channels. Checkpoint key: `conv.weight`."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        self.conv = PointConv(spec.in_channels, 2 * spec.in_channels, has_bias=False)

    def stages(self, context: StreamContext, *, grows: bool, trim: int) -> list[Stage]:
        """Without growth, the later one of the two frames."""
        dropped = Trim(context.axis, trim)

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            if x is None:
                return dropped.push(None, last)
            weight = self.conv.weight.astype(mx.float32)
            if not grows:
                return dropped.push((x.astype(mx.float32) @ weight[x.shape[-1] :].T).astype(x.dtype), last)
            frames = mx.unflatten(self.conv(x).astype(x.dtype), -1, (2, -1))
            return dropped.push(frames.transpose(0, 1, 4, 2, 3, 5).flatten(1, 2), last)

        return [Stage(step, dropped)]


class Pool(nn.Module):
    """One frame of two. Checkpoint key: `conv.weight`, with the earlier frame in the first input channels."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        self.conv = PointConv(2 * spec.in_channels, spec.out_channels, has_bias=False)
        self.spec = spec

    def stages(self, context: StreamContext) -> list[Stage]:
        window = Window(context.axis, self.spec.window(context.axis))

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            view = window.push(x, last)
            if view is None:
                return None
            pairs = mx.unflatten(take(view.frames, Axis.TIME, 0, 2 * view.results), 1, (-1, 2))
            return self.conv(pairs.transpose(0, 1, 3, 4, 2, 5).flatten(-2)).astype(pairs.dtype)

        return [Stage(step, window)]


def whole_groups(context: StreamContext) -> Stage:
    """Hands frames on in groups of `FRAMES`, the last one filled up with the last frame."""
    assert context.axis is Axis.TIME, "encoders stream along time"
    window = Window(context.axis, WindowSpec(FRAMES, FRAMES, 0, FRAMES - 1))

    def step(x: mx.array | None, last: bool) -> mx.array | None:
        view = window.push(x, last)
        if view is None:
            return None
        frames, count = view.frames, FRAMES * view.results
        missing = max(0, count - frames.shape[1])
        return mx.concatenate([frames[:, :count]] + [frames[:, -1:]] * missing, axis=1)

    return Stage(step, window)


def relu(x: mx.array) -> mx.array:
    """The positive values; zero for others."""
    return mx.maximum(x, 0)


def _enter(spec: FrameLayerSpec, compute: Callable[[View], mx.array], context: StreamContext) -> tuple[Stage, Delay]:
    """The first stage of a memory block, and what delays the block's input until it is added."""
    window, skip = make_window(spec, context), Delay(context.axis)

    def step(x: mx.array | None, last: bool) -> mx.array | None:
        if x is not None:
            skip.push(x)
        view = window.push(x, last)
        return None if view is None else compute(view)

    return Stage(step, window), skip


def _leave(conv: FrameConv, skip: Delay, context: StreamContext) -> Stage:
    """The last stage of a memory block, which adds the block's input."""
    window = make_window(conv.spec, context)

    def step(x: mx.array | None, last: bool) -> mx.array | None:
        view = window.push(x, last)
        if view is None:
            return None
        own = skip.take(view.output, view.results)
        return relu(conv.convolve(view, context) + own).astype(conv.dtype)

    return Stage(step, window, skip)
