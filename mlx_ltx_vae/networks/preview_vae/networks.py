"""Tiny decoder and encoder, and their layers, each written for a stream. Arrays are (B, T, H, W, C)."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

from ...backend.mlx_utils import take
from ...shapes import Axis, WindowSpec
from ...streaming.context import Stage, StreamContext, pointwise
from ...streaming.window import Delay, Trim, View, Window, windowed
from ..base import Decoder, Encoder
from ..convolution.conv2d import Conv2d
from ..layers import add_weights, depth_to_space_order, extend, interleave, make_window, pad, space_to_depth
from ..specs import LayerSpec, Weights
from .config import FRAMES, PATCH, FrameLayerSpec, OutputKind, PreviewConfig, decoder_spec, encoder_spec

Pointwise = Callable[[mx.array], mx.array]

_LIMIT = 3  # latents are squashed to (-3, 3)


class FrameConv(Conv2d):
    """Convolution with its window: one stage. Checkpoint keys: `weight`, `bias` if it has one."""

    def __init__(self, spec: FrameLayerSpec) -> None:
        (_, shape), *bias = spec.weights
        # Channels that become positions, (c, time, rows, columns) in checkpoints, are ordered for `interleave`.
        is_rearranged = math.prod(spec.up) > 1 and not spec.is_upsampled
        super().__init__(
            shape,
            has_bias=len(bias) > 0,
            groups=spec.groups,
            stride=spec.down[1],
            is_upsampled=spec.is_upsampled,
            order=depth_to_space_order(shape[0], spec.up) if is_rearranged else None,
        )
        self.spec = spec

    def convolve(self, view: View, context: StreamContext, *, upsamples: bool = True) -> mx.array:
        """Convolve the positions in view, with the padding of all axes, in float32."""
        frames, (_, *padding) = pad(view.frames, view, self.spec, context)
        if self.spec.window(Axis.TIME).kernel == 2:
            frames = mx.concatenate([frames[:, 1:], frames[:, :-1]], axis=-1)
        return self(frames, (padding[0], padding[1]), upsamples=upsamples)

    def stages(
        self,
        context: StreamContext,
        *,
        enter: Pointwise | None = None,
        leave: Pointwise | None = None,
        upsamples: bool = True,
    ) -> list[Stage]:
        """Return one stage. `enter` is applied to the input before it is cached, `leave` to the result in float32."""

        def compute(view: View) -> mx.array:
            result = self.convolve(view, context, upsamples=upsamples)
            return (result if leave is None else leave(result)).astype(self.dtype)

        return [windowed(make_window(self.spec, context), compute, enter=enter)]


class PointConv(nn.Module):
    """1x1 convolution, computed in float32. Checkpoint keys: `weight` (O, I), `bias` (O,) if it has one."""

    def __init__(self, weights: Weights, path: str) -> None:
        super().__init__()
        outputs, inputs = dict(weights)[f"{path}.weight"]
        self.weight = mx.random.uniform(-(inputs**-0.5), inputs**-0.5, (outputs, inputs))
        add_weights(self, weights, path)

    def __call__(self, x: mx.array) -> mx.array:
        x, weight = x.astype(mx.float32), self.weight.astype(mx.float32)
        return mx.addmm(self.bias.astype(mx.float32), x, weight.T) if "bias" in self else x @ weight.T


class MemoryBlock(nn.Module):
    """Memory block: relu(f(frame joined to the frame before it) + frame), with zeros before the first frame.

    f is three 3x3 convolutions with ReLU between them. Checkpoint keys: `conv.0`, `conv.2`, `conv.4`.
    """

    def __init__(self, first: FrameLayerSpec, second: FrameLayerSpec, third: FrameLayerSpec) -> None:
        super().__init__()
        self.conv: list[nn.Module] = [FrameConv(first), nn.ReLU(), FrameConv(second), nn.ReLU(), FrameConv(third)]

    def stages(self, context: StreamContext) -> list[Stage]:
        """Return one stage per convolution."""
        first, second, third = (cast(FrameConv, self.conv[index]) for index in (0, 2, 4))

        def convolve(view: View) -> mx.array:
            return relu(first.convolve(view, context)).astype(first.dtype)

        entering, skip = _enter(first.spec, convolve, context)
        return [entering, *second.stages(context, leave=relu), _leave(third, skip, context)]


class GroupedMemoryBlock(nn.Module):
    """Memory block of the wide decoder: 3x3 convolutions in groups of channels, with 1x1 convolutions before them.

    Checkpoint keys: `conv.0` (1x1), `conv.2`, `conv.4` (1x1), `conv.6`.
    """

    def __init__(self, first: FrameLayerSpec, second: FrameLayerSpec, third: FrameLayerSpec) -> None:
        super().__init__()
        joined = PointConv(first.weights, first.name)
        inner = PointConv(second.weights, f"{first.name.removesuffix('.0')}.4")
        relus = [nn.ReLU() for _ in range(3)]
        self.conv: list[nn.Module] = [joined, relus[0], FrameConv(second), relus[1], inner, relus[2], FrameConv(third)]
        self._first = first

    def stages(self, context: StreamContext) -> list[Stage]:
        """Return one stage per 3x3 convolution, and one before them."""
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
    """Growth in time: two frames of each, the earlier one in the first channels. Checkpoint key: `conv.weight`."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        self.conv = PointConv(spec.weights, f"{spec.name}.conv")

    def stages(self, context: StreamContext, *, grows: bool, trim: int) -> list[Stage]:
        """Return one stage. Without `grows`, it returns only the later one of the two frames."""
        cut = Trim(context.axis, trim)

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            if x is None:
                return cut.push(None, last)
            weight = self.conv.weight.astype(mx.float32)
            if not grows:
                return cut.push((x.astype(mx.float32) @ weight[x.shape[-1] :].T).astype(x.dtype), last)
            return cut.push(interleave(self.conv(x).astype(x.dtype), (2, 1, 1)), last)

        return [Stage(step, cut)]


class Pool(nn.Module):
    """Pooling in time: one frame of two, the earlier one in the first channels. Checkpoint key: `conv.weight`."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        self.conv = PointConv(spec.weights, f"{spec.name}.conv")
        self.spec = spec

    def stages(self, context: StreamContext) -> list[Stage]:
        def compute(view: View) -> mx.array:
            pairs = mx.unflatten(take(view.frames, Axis.TIME, 0, 2 * view.num_outputs), 1, (-1, 2))
            return self.conv(pairs.transpose(0, 1, 3, 4, 2, 5).flatten(-2)).astype(pairs.dtype)

        return [windowed(make_window(self.spec, context), compute)]


def whole_groups(context: StreamContext) -> Stage:
    """Return a stage that groups frames by `FRAMES`, and fills the last group with copies of the last frame."""
    assert context.axis is Axis.TIME, "encoders stream along time"
    window = Window(context.axis, WindowSpec(FRAMES, FRAMES, 0, FRAMES - 1))

    def compute(view: View) -> mx.array:
        frames, count = view.frames, FRAMES * view.num_outputs
        return extend(frames[:, :count], context.axis, 0, max(0, count - frames.shape[1]))

    return windowed(window, compute)


def relu(x: mx.array) -> mx.array:
    """Return the positive values, and zero for negative ones."""
    return mx.maximum(x, 0)


def _enter(spec: FrameLayerSpec, compute: Callable[[View], mx.array], context: StreamContext) -> tuple[Stage, Delay]:
    """Return the first stage of a memory block, and the delay of the block's input until it is added."""
    skip = Delay(context.axis)

    def enter(x: mx.array) -> mx.array:
        skip.push(x)
        return x

    return windowed(make_window(spec, context), compute, skip, enter=enter), skip


def _leave(conv: FrameConv, skip: Delay, context: StreamContext) -> Stage:
    """Return the last stage of a memory block, which adds the block's input."""

    def compute(view: View) -> mx.array:
        block_input = skip.take(view.output, view.num_outputs)
        return relu(conv.convolve(view, context) + block_input).astype(conv.dtype)

    return windowed(make_window(conv.spec, context), compute, skip)


class PreviewDecoder(Decoder):
    """Decoder of normalized latents (B, T, H, W, C) to pixels (B, 8T - 7, 32H, 32W, 3), clamped to [-1, 1].

    It is strictly causal: each latent frame gives its frames without later ones. Checkpoint keys: `layers.i`.
    """

    def __init__(self, config: PreviewConfig, layers: list[Any] | None = None) -> None:
        super().__init__(decoder_spec(config))
        block = MemoryBlock if config.group_width is None else GroupedMemoryBlock
        self.layers = _make_layers(self.spec.layers, block) if layers is None else layers
        self._config = config

    def stills(self, *, small: bool = False) -> "PreviewDecoder":
        config = replace(self._config, output=OutputKind.SMALL_STILLS if small else OutputKind.STILLS)
        return PreviewDecoder(config, self.layers)

    def stages(self, context: StreamContext) -> list[Stage]:
        specs = {layer.name: layer for layer in self.spec.layers}
        stages: list[Stage] = []
        for index, layer in enumerate(self.layers):
            spec = specs.get(f"layers.{index}")
            if isinstance(layer, (MemoryBlock, GroupedMemoryBlock)):
                stages += layer.stages(context)
            elif spec is not None and isinstance(layer, Growth):
                stages += layer.stages(context, grows=spec.up[0] == 2, trim=spec.trim)
            elif isinstance(spec, FrameLayerSpec):
                enter = {1: _squash, len(self.layers) - 1: relu}.get(index)
                leave = {1: relu, len(self.layers) - 1: _to_pixels}.get(index)
                stages += layer.stages(context, enter=enter, leave=leave, upsamples=spec.is_upsampled)
        return stages


class PreviewEncoder(Encoder):
    """Encoder of pixels (B, F, 32H, 32W, 3) in [-1, 1] to normalized latents (B, ceil(F / 8), H, W, C).

    The last frame is repeated until there are 8 frames for each latent frame, which sees all 8. It streams along time.
    Checkpoint keys: `layers.i`.
    """

    def __init__(self, config: PreviewConfig) -> None:
        super().__init__(encoder_spec(config))
        self.layers = _make_layers(self.spec.layers[2:])  # without the grouping of frames and pixels

    def stages(self, context: StreamContext) -> list[Stage]:
        stages = [whole_groups(context), pointwise(_from_pixels)]
        for index, layer in enumerate(self.layers):
            if isinstance(layer, FrameConv):
                stages += layer.stages(context, leave=relu if index == 0 else None)
            elif isinstance(layer, (MemoryBlock, Pool)):
                stages += layer.stages(context)
        return stages


def _make_layers(specs: Sequence[LayerSpec], block: Callable[..., nn.Module] = MemoryBlock) -> list[Any]:
    """Return the modules by their index in the checkpoint, which counts activations and resampling as well."""
    layers: list[Any] = []
    for index, group in groupby(specs, lambda spec: int(spec.name.split(".")[1])):
        layers += [nn.Identity() for _ in range(index - len(layers))]
        first, *later_specs = cast(Iterator[FrameLayerSpec], group)
        if later_specs:
            layers.append(block(first, *later_specs))
        elif len(first.weights[0][1]) > 2:
            layers.append(FrameConv(first))
        else:
            layers.append(Pool(first) if first.down[0] > 1 else Growth(first))
    return layers


def _squash(x: mx.array) -> mx.array:
    wide = x.astype(mx.float32)
    return (_LIMIT * mx.tanh(wide / _LIMIT)).astype(x.dtype)


def _to_pixels(x: mx.array) -> mx.array:
    """Convert (B, T, H, W, p * p * 3) in [0, 1] to pixels (B, T, H*p, W*p, 3) in [-1, 1]."""
    return interleave(_clamp(x), (1, PATCH, PATCH))


@partial(mx.compile, shapeless=True)
def _clamp(x: mx.array) -> mx.array:
    return mx.clip(x, 0, 1) * 2 - 1


def _from_pixels(x: mx.array) -> mx.array:
    """Convert pixels (B, T, H*p, W*p, 3) to (B, T, H, W, 3 * p * p) in [0, 1], channels ordered (c, rows, columns)."""
    return (space_to_depth(x, (1, PATCH, PATCH)).astype(mx.float32) * 0.5 + 0.5).astype(x.dtype)
