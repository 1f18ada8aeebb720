"""The description of a layer around one 3x3x3 convolution, and the memory that its steps take. No MLX."""

import enum
import math
from dataclasses import dataclass

from ..backend.machine import FLOAT32_BYTES, Backend, Machine
from ..shapes import Axis, Grid
from .convolution.rules import TAPS, ConvRule, ConvShape, choose, scratch_bytes
from .specs import LayerSpec, PaddingMode, Step, Stride


class Activation(enum.Enum):
    """Position of the norm and SiLU before a convolution, or none."""

    NONE = "none"
    INPUT = "input"  # applied to the whole view; the cache holds the layer's input unchanged
    CACHED = "cached"  # applied to new input; the cache holds post-activation values


@dataclass(frozen=True)
class ConvSpec(LayerSpec):
    """A layer around one 3x3x3 convolution, which has `conv_channels` outputs before any rearrangement."""

    conv_channels: int = 0
    conv_stride: Stride = (1, 1, 1)
    activation: Activation = Activation.NONE
    is_modulated: bool = False  # a timestep shifts and scales the normalized input
    skip_channels: int = 0  # of the skip connection that is added to the output; 0 for none
    has_residual: bool = False  # the layer adds its own input, rearranged like its output
    rule: ConvRule = choose

    def work_bytes(self, step: Step) -> int:
        # MLX allocates ahead of execution, so every array in a step's graph counts, not only those alive at one time.
        seen, new = self.seen(step), math.prod(step.grid)
        activated = {Activation.NONE: 0, Activation.INPUT: seen, Activation.CACHED: new}[self.activation]
        # The input concatenated to the cache, the next cache, the norm, and SiLU with its intermediate array.
        elements = (2 * seen - new + 3 * activated) * self.in_channels + seen * self.skip_channels
        padded = math.prod(extent + TAPS - 1 for extent in step.grid) * self.in_channels
        if step.axis is not Axis.TIME or step.is_whole:
            elements += padded  # time is padded by a copy and not by the convolution (see `conv.pad`)
        if step.is_band:
            elements += padded
        if self.padding is not PaddingMode.ZEROS:
            elements += 2 * padded  # height and width are padded by a copy each
        shape = self._shape(step.grid)
        results = shape.results * self.conv_channels
        elements += results if self.conv_channels != self.out_channels else 0  # rearranged
        if self.has_residual:
            elements += (results if math.prod(self.up) > 1 else 0) + new * self.in_channels
        size = elements * step.machine.itemsize
        if self.has_residual and math.prod(self.down) > 1:
            # A downsampling layer averages its rearranged input, which is done in float32.
            size += new * self.in_channels * (FLOAT32_BYTES + step.machine.itemsize)
        if step.machine.backend is Backend.CPU and step.machine.itemsize != FLOAT32_BYTES:
            # There the norm, SiLU and the convolution's input are in float32.
            size += (seen + 3 * activated) * self.in_channels * FLOAT32_BYTES
        return size + self._scratch_bytes(shape, step.machine)

    def _shape(self, grid: Grid) -> ConvShape:
        time, height, width = (-(-extent // stride) for extent, stride in zip(grid, self.conv_stride, strict=True))
        is_strided = self.conv_stride != (1, 1, 1)
        return ConvShape((time, height, width), self.in_channels, self.conv_channels, is_strided)

    def _scratch_bytes(self, shape: ConvShape, machine: Machine) -> int:
        is_half = machine.itemsize != FLOAT32_BYTES
        formulation = self.rule(shape, machine.backend, allows_winograd=not (is_half and machine.keeps_dtype))
        is_scaled = is_half and not machine.keeps_dtype and self.activation is Activation.NONE
        on_cpu = machine.backend is Backend.CPU
        return scratch_bytes(shape, formulation, machine.itemsize, on_cpu=on_cpu, is_scaled=is_scaled)

    def weight_copy_bytes(self, machine: Machine) -> int:
        """Bytes of the kernel in float32: the CPU backend computes in it in any precision."""
        if machine.backend is not Backend.CPU or machine.itemsize == FLOAT32_BYTES:
            return 0
        return TAPS**3 * self.in_channels * self.conv_channels * FLOAT32_BYTES

    def multiply_adds(self, part: Grid, whole: Grid) -> int:
        """Multiply-adds of the convolution, and of a skip connection that changes the number of channels."""
        positions = math.prod(
            window.results(extent) * window.stride // stride
            for window, extent, stride in zip(self.windows, part, self.conv_stride, strict=True)
        )
        has_shortcut = self.skip_channels not in (0, self.out_channels)
        products = TAPS**3 * self.in_channels * self.conv_channels
        return positions * (products + (self.skip_channels * self.out_channels if has_shortcut else 0))
