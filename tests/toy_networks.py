"""Two decoders that the package has never seen. Each has layers of a kind of its own, and is written against the base
classes alone: two-dimensional convolutions with a memory, and attention windows with a context.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import mlx.core as mx

from mlx_ltx_vae.backend.machine import Machine
from mlx_ltx_vae.networks.base import Decoder
from mlx_ltx_vae.networks.layers import make_window, pad
from mlx_ltx_vae.networks.specs import LayerSpec, NetworkSpec, PaddingMode, Step
from mlx_ltx_vae.shapes import Axis, Grid, WindowSpec
from mlx_ltx_vae.streaming.context import Stage, StreamContext, pointwise
from mlx_ltx_vae.streaming.window import Delay, Trim, View, window_starts

WIDTH = 6
THREE = WindowSpec(3, 1, 1, 1)


def random_weights(spec: NetworkSpec) -> dict[str, mx.array]:
    keys = mx.random.split(mx.random.key(0), len(spec.weights))
    return {
        name: mx.random.normal(shape, key=key) / math.sqrt(math.prod(shape[1:]))
        for (name, shape), key in zip(spec.weights.items(), keys, strict=True)
    }


class Toy(Decoder):
    """What the two have in common: random weights, and latents that are taken as they are."""

    dtype = mx.float32

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__(spec)
        self.weights = random_weights(spec)


# (a) Two-dimensional convolutions. Each memory block sees the frame before; growth makes two frames of each; in the end
# the first seven of eight frames of the first latent frame are dropped, and values are clamped.


@dataclass(frozen=True)
class MemorySpec(LayerSpec):
    def work_bytes(self, step: Step) -> int:
        padded = math.prod(extent + 2 for extent in step.grid) * self.in_channels
        unfolded = 2 * 9 * math.prod(step.grid) * self.in_channels  # by the convolution of MLX's CPU backend
        return super().work_bytes(step) + (3 * padded + unfolded + padded) * step.machine.itemsize


class MemoryDecoder(Toy):
    def __init__(self) -> None:
        seen = (WindowSpec(2, 1, 1, 0), THREE, THREE)
        layers: list[LayerSpec] = []
        for level in range(3):
            memory = MemorySpec(f"memory_{level}", WIDTH, WIDTH, windows=seen, time_padding=PaddingMode.ZEROS)
            layers.append(replace(memory, weights=((memory.name, (WIDTH, 3, 3, 2 * WIDTH)),)))
            grow = LayerSpec(f"grow_{level}", WIDTH, WIDTH, up=(2, 2, 2))
            layers.append(replace(grow, weights=((grow.name, (2 * WIDTH, WIDTH)),)))
        layers.append(LayerSpec("color", WIDTH, 3, weights=(("color", (3, WIDTH)),), trim=7))
        super().__init__(NetworkSpec(tuple(layers)))

    def stages(self, context: StreamContext) -> list[Stage]:
        stages = []
        for layer in self.spec.layers[:-1]:
            is_memory = isinstance(layer, MemorySpec)
            stages.append(self.memory(layer, context) if is_memory else pointwise(partial(self.grow, layer.name)))
        trim = Trim(context.axis, 7)

        def color(x: mx.array | None, last: bool) -> mx.array | None:
            return trim.push(None if x is None else mx.clip(x @ self.weights["color"].T, -1, 1), last)

        return [*stages, Stage(color, trim)]

    def memory(self, spec: LayerSpec, context: StreamContext) -> Stage:
        window = make_window(spec, context)

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            view = window.push(x, last)
            if view is None:
                return None
            frames, padding = pad(view.frames, view, spec, context)
            pairs = mx.concatenate([frames[:, 1:], frames[:, :-1]], axis=-1)
            batch, time = pairs.shape[:2]
            result = mx.conv2d(pairs.flatten(0, 1), self.weights[spec.name], padding=padding[1:])
            return mx.maximum(mx.unflatten(result, 0, (batch, time)) + view.at_outputs(context.axis), 0)

        return Stage(step, window)

    def grow(self, name: str, x: mx.array) -> mx.array:
        x = x @ self.weights[name].T  # first the channels of the earlier frame
        batch, time, height, width, _ = x.shape
        x = x.reshape(batch, time, height, width, 2, WIDTH).transpose(0, 1, 4, 2, 3, 5)
        return mx.repeat(mx.repeat(x.flatten(1, 2), 2, axis=2), 2, axis=3)


# (b) A context: noise is refined in two passes over three layers, each of which takes what the first layer made. All
# look at windows that shift inwards at the borders of the clip.

PASSES, BLOCKS = 2, 3
DRAWN = 6  # arrays that drawing noise takes
LONG = WindowSpec(5, shifts=True)
SHORT = WindowSpec(3, shifts=True)


@dataclass(frozen=True)
class BoxSpec(LayerSpec):
    """The mean over a window along three axes, and matrix products. `waiting` positions of the context are kept."""

    waiting: int = 0

    def lag(self, axis: Axis, piece: int) -> int:
        return self.waiting * self.window(axis).ahead + self.window(axis).kernel + piece if self.waiting else 0

    def cache_bytes(self, axis: Axis, grid: Grid, piece: int, machine: Machine) -> int:
        position = math.prod(grid) // grid[axis.grid] * self.in_channels * machine.itemsize
        return super().cache_bytes(axis, grid, piece, machine) + min(self.lag(axis, piece), grid[axis.grid]) * position

    def work_bytes(self, step: Step) -> int:
        positions = math.prod(step.grid)
        gathered = 3 * sum(window.kernel for window in self.windows) * positions // 2
        joined = (0 if step.is_whole else self.lag(step.axis, 0)) * positions // step.grid[step.axis.grid]
        made = positions * (1 + DRAWN if self.noise_channels else step.is_whole)  # with the context
        return 2 * super().work_bytes(step) + (gathered + joined + made) * self.in_channels * step.machine.itemsize


class ContextDecoder(Toy):
    def __init__(self) -> None:
        square = (WIDTH, WIDTH)
        first = BoxSpec("context", WIDTH, WIDTH, windows=(SHORT, LONG, LONG), weights=(("context", square),))
        layers: list[LayerSpec] = [replace(first, noise_channels=WIDTH)]
        for index in range(PASSES * BLOCKS):
            block = BoxSpec(f"block_{index}", WIDTH, WIDTH, windows=(LONG, SHORT, SHORT))
            weights = tuple((f"{kind}_{index % BLOCKS}", square) for kind in ("own", "given"))
            layers.append(replace(block, weights=weights, waiting=0 if index else PASSES * BLOCKS))
        layers.append(LayerSpec("color", WIDTH, 3, up=(1, 2, 2), weights=(("color", (12, WIDTH)),)))
        super().__init__(NetworkSpec(tuple(layers), patch_size=2))

    def stages(self, context: StreamContext) -> list[Stage]:
        delay = Delay(context.axis, readers=PASSES * BLOCKS)
        blocks = [self.block(index, delay, context) for index in range(PASSES * BLOCKS)]
        return [self.context(delay, context), *blocks, pointwise(self.color)]

    def context(self, delay: Delay, context: StreamContext) -> Stage:
        spec = self.spec.layers[0]
        window = make_window(spec, context)

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            view = window.push(x, last)
            if view is None:
                return None
            made = mx.tanh(box_mean(view, spec, context) @ self.weights["context"].T)
            time, rows, columns = (view.output if axis is context.axis else 0 for axis in Axis)
            delay.push(made)
            _, frames, height, width, _ = made.shape
            return context.draw_noise("context", (time, rows, columns), (frames, height, width))

        return Stage(step, window, delay)

    def block(self, index: int, delay: Delay, context: StreamContext) -> Stage:
        spec = self.spec.layers[1 + index]
        window = make_window(spec, context)

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            view = window.push(x, last)
            if view is None:
                return None
            own, given = (self.weights[f"{kind}_{index % BLOCKS}"].T for kind in ("own", "given"))
            waited = delay.take(view.output, view.num_outputs, reader=index)
            return view.at_outputs(context.axis) + mx.tanh(box_mean(view, spec, context) @ own + waited @ given)

        return Stage(step, window, delay)

    def color(self, x: mx.array) -> mx.array:
        batch, time, height, width, _ = x.shape
        x = (x @ self.weights["color"].T).reshape(batch, time, height, width, 2, 2, 3)
        return x.transpose(0, 1, 2, 4, 3, 5, 6).reshape(batch, time, 2 * height, 2 * width, 3)


def box_mean(view: View, spec: LayerSpec, context: StreamContext) -> mx.array:
    """The mean over each output's window, axis by axis."""
    frames = view.frames
    for axis in Axis:
        window, length = spec.window(axis), frames.shape[axis]
        starts = view.window_starts if axis is context.axis else window_starts(window, length, 0, length)
        positions = mx.array(starts)[:, None] + mx.arange(window.kernel)
        seen = mx.unflatten(mx.take(frames, positions.flatten(), axis=axis), axis, positions.shape)
        frames = seen.mean(axis=axis + 1)
    return frames


#: The toys by name.
TOYS: dict[str, Callable[[], Decoder]] = {
    "memory": MemoryDecoder,
    "context": ContextDecoder,
}
