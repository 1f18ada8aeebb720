"""Descriptions of networks, layer by layer, from their configuration alone. No MLX.

A network describes itself once, as a sequence of `LayerSpec`. Memory, receptive field, lookahead, step sizes, weight
counts and noise shapes are folds over that sequence (`planning/`), and the modules are built from the same specs.
"""

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..backend.machine import FLOAT32_BYTES, Backend, Machine
from ..shapes import Grid, ScaleFactors
from ..streaming.axis import Axis, WindowSpec
from .convolution.rules import TAPS, ConvRule, ConvShape, choose, scratch_bytes

#: Factors along time, height and width.
Stride = tuple[int, int, int]


class PaddingMode(enum.Enum):
    """How a convolution pads the edges of the picture."""

    ZEROS = "zeros"
    REFLECT = "reflect"
    REPLICATE = "replicate"


class Step(NamedTuple):
    """The properties of one step of a layer that its memory depends on.

    Attributes:
        axis: the axis of the stream.
        grid: (T, H, W) of the step's input.
        is_whole: whether the input is the whole clip, so that nothing is cached or concatenated.
        is_band: whether rows of neighboring bands are joined to the input.
    """

    axis: Axis
    grid: Grid
    is_whole: bool
    machine: Machine
    is_band: bool = False


@dataclass(frozen=True)
class LayerSpec:
    """One stage of a network: its shapes, windows, weights and memory.

    Attributes:
        name: the path of its module, such as "up_blocks.0.res_blocks.1.conv2".
        up: upsampling factor along each axis.
        down: downsampling factor along each axis.
        trim: leading output frames that are dropped.
        windows: the input window of one output along time, height and width, before `up`.
        unbounded: axes along which an output depends on the whole input, so that they cannot be streamed.
        padding: spatial padding.
        weights: the shape of each weight, by its name within the network.
    """

    name: str
    in_channels: int
    out_channels: int
    up: Stride = (1, 1, 1)
    down: Stride = (1, 1, 1)
    trim: int = 0
    windows: tuple[WindowSpec, WindowSpec, WindowSpec] = (WindowSpec(), WindowSpec(), WindowSpec())
    unbounded: frozenset[Axis] = frozenset()
    padding: PaddingMode = PaddingMode.ZEROS
    weights: tuple[tuple[str, tuple[int, ...]], ...] = ()
    has_noise: bool = False

    def window(self, axis: Axis) -> WindowSpec:
        """The input window of one output along an axis."""
        return self.windows[axis.grid]

    def out_grid(self, grid: Grid) -> Grid:
        """(T, H, W) of the output for an input of this grid."""
        results = (window.results(extent) for window, extent in zip(self.windows, grid, strict=True))
        time, height, width = (up * count for up, count in zip(self.up, results, strict=True))
        return time - self.trim, height, width

    def noise_shape(self, grid: Grid) -> tuple[int, ...] | None:
        """The shape (H, W) of the noise map that the layer adds for an input of this grid, or None."""
        return self.out_grid(grid)[1:] if self.has_noise else None

    def work_bytes(self, step: Step) -> int:
        """Bytes that one step allocates per batch item: the input concatenated to the cache, and the output."""
        extent = step.grid[step.axis.grid]
        positions = math.prod(step.grid)
        seen = positions // extent * (extent + (0 if step.is_whole else self.window(step.axis).cached))
        results = math.ceil(positions * math.prod(self.up) / math.prod(self.down))
        return (seen * self.in_channels + results * self.out_channels) * step.machine.itemsize

    def weight_copy_bytes(self, machine: Machine) -> int:
        """Bytes of copies of the weights that one step makes, whatever the batch."""
        return 0


class Activation(enum.Enum):
    """Whether, and where, norm and SiLU are applied before a convolution."""

    NONE = "none"
    INPUT = "input"  # applied to the whole view; the cache holds the layer's input unchanged
    CACHED = "cached"  # applied to new input; the cache holds post-activation values


@dataclass(frozen=True)
class ConvSpec(LayerSpec):
    """A layer around one 3x3x3 convolution.

    Attributes:
        conv_channels: output channels of the convolution itself, before any rearrangement.
        conv_stride: stride of the convolution itself.
        is_modulated: whether a timestep shifts and scales the normalized input.
        skip_channels: channels of the skip connection that is added to the output; 0 for none.
        has_residual: whether the layer adds its own input, rearranged like its output.
        rule: chooses how the convolution is computed.
    """

    conv_channels: int = 0
    conv_stride: Stride = (1, 1, 1)
    activation: Activation = Activation.NONE
    is_modulated: bool = False
    skip_channels: int = 0
    has_residual: bool = False
    rule: ConvRule = choose

    def work_bytes(self, step: Step) -> int:
        """Bytes that one step allocates per batch item.

        MLX allocates ahead of execution, so every array in a step's graph counts, not only those alive at the same
        time.
        """
        extent = step.grid[step.axis.grid]
        position = math.prod(step.grid) // extent
        cached = 0 if step.is_whole else self.window(step.axis).cached
        seen = position * (extent + cached)
        activated = {Activation.NONE: 0, Activation.INPUT: seen, Activation.CACHED: position * extent}[self.activation]
        # The input concatenated to the cache, the next cache, the norm, and SiLU with its intermediate arrays.
        elements = (seen + position * cached + 3 * activated) * self.in_channels
        elements += seen * self.skip_channels
        padded = math.prod(extent + TAPS - 1 for extent in step.grid) * self.in_channels
        if step.axis is not Axis.TIME or step.is_whole:
            elements += padded  # time is padded by a copy and not by the convolution (see `conv.pad`)
        if step.is_band:
            elements += padded
        if self.padding is not PaddingMode.ZEROS:
            elements += 2 * padded  # height and width are padded by a copy each
        results = math.prod(self._conv_grid(step)) * self.conv_channels
        is_rearranged = self.conv_channels != self.out_channels
        elements += results if is_rearranged else 0
        if self.has_residual:
            elements += (results if math.prod(self.up) > 1 else 0) + math.prod(step.grid) * self.in_channels
        return elements * step.machine.itemsize + self._residual_mean_bytes(step) + self._conv_bytes(step)

    def weight_copy_bytes(self, machine: Machine) -> int:
        """Bytes of the kernel in float32, in which the CPU backend computes in any precision."""
        if machine.backend is not Backend.CPU or machine.itemsize == FLOAT32_BYTES:
            return 0
        return TAPS**3 * self.in_channels * self.conv_channels * FLOAT32_BYTES

    def _conv_grid(self, step: Step) -> Grid:
        """(T, H, W) of the convolution's output in one step."""
        time, height, width = (-(-extent // stride) for extent, stride in zip(step.grid, self.conv_stride, strict=True))
        return time, height, width

    def _residual_mean_bytes(self, step: Step) -> int:
        """Bytes for averaging the rearranged input of a downsampling layer, which is done in float32."""
        if not self.has_residual or math.prod(self.down) == 1:
            return 0
        return math.prod(step.grid) * self.in_channels * (FLOAT32_BYTES + step.machine.itemsize)

    def _conv_bytes(self, step: Step) -> int:
        """Bytes of the convolution's scratch memory and output."""
        machine = step.machine
        on_cpu = machine.backend is Backend.CPU
        is_half = machine.itemsize != FLOAT32_BYTES
        is_normed = self.activation is not Activation.NONE
        shape = ConvShape(
            self._conv_grid(step), self.in_channels, self.conv_channels, is_strided=self.conv_stride != (1, 1, 1)
        )
        allows_winograd = not is_half or (is_normed and not machine.keeps_dtype)
        formulation = self.rule(shape, machine.backend, allows_winograd=allows_winograd)
        scratch = scratch_bytes(shape, formulation, machine.itemsize, on_cpu=on_cpu)
        if on_cpu and is_half and is_normed:
            # The norm's squares and outputs in float32.
            scratch += 2 * math.prod(extent + TAPS - 1 for extent in step.grid) * self.in_channels * FLOAT32_BYTES
        return scratch


@dataclass(frozen=True)
class FrameAttentionSpec(LayerSpec):
    """A self-attention layer over the positions of each frame."""

    def work_bytes(self, step: Step) -> int:
        """Bytes of the norm in float32, queries, keys, values, scores per frame and their softmax, and the output."""
        frames, height, width = step.grid
        elements = frames * height * width * self.in_channels
        scores = frames * (height * width) ** 2
        return elements * (2 * FLOAT32_BYTES + 6 * step.machine.itemsize) + 2 * scores * FLOAT32_BYTES


@dataclass(frozen=True)
class NetworkSpec:
    """A whole network: one spec per stage, in execution order.

    Attributes:
        stream_axes: the axes along which its stages can stream.
        has_latent_noise: whether noise is mixed into the input latents.
    """

    layers: tuple[LayerSpec, ...]
    stream_axes: tuple[Axis, ...] = tuple(Axis)
    has_timestep: bool = False
    has_latent_noise: bool = False

    @property
    def in_channels(self) -> int:
        """Input channels."""
        return self.layers[0].in_channels

    @property
    def out_channels(self) -> int:
        """Output channels."""
        return self.layers[-1].out_channels

    @property
    def scale(self) -> ScaleFactors:
        """Pixels per latent cell, for a decoder or an encoder."""
        ups = (math.prod(layer.up[axis] for layer in self.layers) for axis in range(3))
        downs = (math.prod(layer.down[axis] for layer in self.layers) for axis in range(3))
        return ScaleFactors(*(max(up, down) for up, down in zip(ups, downs, strict=True)))

    @property
    def weights(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight, by name."""
        return {name: shape for layer in self.layers for name, shape in layer.weights}

    @property
    def num_weights(self) -> int:
        """The number of elements of all weights."""
        return sum(math.prod(shape) for shape in self.weights.values())

    def walk(self, grid: Grid) -> Iterator[tuple[LayerSpec, Grid]]:
        """Yield each layer with the (T, H, W) of its input, for a network input of this grid."""
        for layer in self.layers:
            yield layer, grid
            grid = layer.out_grid(grid)

    def out_grid(self, grid: Grid) -> Grid:
        """(T, H, W) of the output for an input of this grid."""
        for layer in self.layers:
            grid = layer.out_grid(grid)
        return grid

    def noise_shapes(self, grid: Grid) -> dict[str, tuple[int, ...]]:
        """The shape of each noise map by the name of its layer, in drawing order."""
        shapes = ((layer.name, layer.noise_shape(extents)) for layer, extents in self.walk(grid))
        return {name: shape for name, shape in shapes if shape is not None}

    def unbounded_layer(self, axis: Axis) -> LayerSpec | None:
        """The first layer whose outputs depend on the whole input along an axis, or None."""
        return next((layer for layer in self.layers if axis in layer.unbounded), None)
