"""The description of a layer around one 3x3x3 convolution, and the memory that its steps take. No MLX."""

import enum
import math
from dataclasses import dataclass

from ..backend.machine import FLOAT32_BYTES, Backend, Machine
from ..shapes import Axis, Grid
from .convolution.rules import TAPS, ConvRule, ConvShape, choose, scratch_bytes
from .specs import LayerSpec, PaddingMode, Step, Stride


class Activation(enum.Enum):
    """Whether, and where, norm and SiLU are applied before a convolution."""

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
        # The input concatenated to the cache, the next cache, the norm, and SiLU with its intermediate array, which on
        # a CPU is in float32 (see `_conv_bytes`).
        is_half_on_cpu = step.machine.backend is Backend.CPU and step.machine.itemsize != FLOAT32_BYTES
        elements = (2 * seen - new + (2 if is_half_on_cpu else 3) * activated) * self.in_channels
        elements += seen * self.skip_channels
        padded = math.prod(extent + TAPS - 1 for extent in step.grid) * self.in_channels
        if step.axis is not Axis.TIME or step.is_whole:
            elements += padded  # time is padded by a copy and not by the convolution (see `conv.pad`)
        if step.is_band:
            elements += padded
        if self.padding is not PaddingMode.ZEROS:
            elements += 2 * padded  # height and width are padded by a copy each
        results = math.prod(self._conv_grid(step)) * self.conv_channels
        elements += results if self.conv_channels != self.out_channels else 0  # rearranged
        if self.has_residual:
            elements += (results if math.prod(self.up) > 1 else 0) + math.prod(step.grid) * self.in_channels
        mean_bytes = 0
        if self.has_residual and math.prod(self.down) > 1:
            # A downsampling layer averages its rearranged input, which is done in float32.
            mean_bytes = math.prod(step.grid) * self.in_channels * (FLOAT32_BYTES + step.machine.itemsize)
        return elements * step.machine.itemsize + mean_bytes + self._conv_bytes(step, seen, activated)

    def weight_copy_bytes(self, machine: Machine) -> int:
        """Bytes of the kernel in float32, in which the CPU backend computes in any precision."""
        if machine.backend is not Backend.CPU or machine.itemsize == FLOAT32_BYTES:
            return 0
        return TAPS**3 * self.in_channels * self.conv_channels * FLOAT32_BYTES

    def multiply_adds(self, part: Grid, whole: Grid) -> int:
        """Those of the convolution, and of a skip connection that changes the number of channels."""
        positions = math.prod(
            window.results(extent) * window.stride // stride
            for window, extent, stride in zip(self.windows, part, self.conv_stride, strict=True)
        )
        has_shortcut = self.skip_channels not in (0, self.out_channels)
        products = TAPS**3 * self.in_channels * self.conv_channels
        return positions * (products + (self.skip_channels * self.out_channels if has_shortcut else 0))

    def _conv_grid(self, step: Step) -> Grid:
        time, height, width = (-(-extent // stride) for extent, stride in zip(step.grid, self.conv_stride, strict=True))
        return time, height, width

    def _conv_bytes(self, step: Step, seen: int, activated: int) -> int:
        machine = step.machine
        on_cpu = machine.backend is Backend.CPU
        is_half = machine.itemsize != FLOAT32_BYTES
        is_strided = self.conv_stride != (1, 1, 1)
        shape = ConvShape(self._conv_grid(step), self.in_channels, self.conv_channels, is_strided)
        allows_winograd = not (is_half and machine.keeps_dtype)
        formulation = self.rule(shape, machine.backend, allows_winograd=allows_winograd)
        is_scaled = is_half and not machine.keeps_dtype and self.activation is Activation.NONE
        scratch = scratch_bytes(shape, formulation, machine.itemsize, on_cpu=on_cpu, is_scaled=is_scaled)
        if not on_cpu:
            return scratch
        # The norm's partial sums; in half precision norm, SiLU and the convolution's input, all in float32.
        extra = seen + 4 * activated if is_half else activated // 2
        return scratch + extra * self.in_channels * FLOAT32_BYTES
