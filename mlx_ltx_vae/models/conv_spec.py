"""The description of a layer around one 3x3x3 convolution, and the memory that its steps take. No MLX."""

import enum
import math
from dataclasses import dataclass

from ..backend.machine import FLOAT32_BYTES, Backend, Machine
from ..shapes import Axis, Grid
from .convolution.rules import TAPS, ConvRule, ConvShape, Formulation, blocks, choose, scratch_bytes
from .specs import LayerSpec, PaddingMode, Part, Step, Stride

_LANES = 16  # by which the norm sums channels first (see `activation.inverse_rms`)


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

    def has_parts(self, machine: Machine) -> bool:
        return machine.backend is Backend.CPU

    def work_bytes(self, step: Step) -> int:
        return self._cpu_bytes(step) if self.has_parts(step.machine) else self._gpu_bytes(step)

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

    def _gpu_bytes(self, step: Step) -> int:
        # Every array in a step's graph counts, not only those alive at one time.
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
        return elements * step.machine.itemsize + self._behind(step, step.grid) + self._scratch(step, step.grid)

    def _cpu_bytes(self, step: Step) -> int:
        """What is alive together: MLX allocates the results of a hundred operations before the first one is done.

        Thus a chain of 27 products divides a step: in front of it is its input, and behind it what becomes of the sums.
        """
        cells = math.prod(step.grid) // step.grid[step.axis.grid] * self.in_channels * step.machine.itemsize
        given, seen, padded = self._positions(step)
        skip = (seen if given else 0) * cells // self.in_channels * self.skip_channels
        new, cached = given * cells, self.window(step.axis).cached * cells
        activated = self._activation_bytes(step, given, seen)
        if step.part is Part.ENTERING:
            return new + activated
        joined = 0 if step.part is Part.WHOLE else seen * cells
        # A piece that is no longer than the cache becomes part of it without a copy.
        kept = 0 if step.part is Part.WHOLE or not given else cached if new > cached else cached - new
        grid = list(step.grid)
        grid[step.axis.grid] = padded - (TAPS - 1)
        out = (grid[0], grid[1], grid[2])
        scratch, behind = self._scratch(step, out), self._behind(step, out)
        before = new + joined + kept + activated + self._padding_bytes(step, seen, padded)
        formulation = self._formulation(step, out)
        if formulation is not Formulation.TAPS:
            return skip + before + scratch + behind
        is_referred = self.activation is Activation.INPUT or self.has_residual
        after = new + (joined if is_referred else 0) + behind + self._sum_bytes(step, out)
        return skip + scratch + max(before, after)

    def _positions(self, step: Step) -> tuple[int, int, int]:
        """Of a step along its axis: those that arrive, those in view, and those in view with padding."""
        window, extent = self.window(step.axis), step.grid[step.axis.grid]
        padded = max(extent + window.cached, window.kernel)
        if step.part is Part.WHOLE:
            return extent, extent, padded
        if step.part is Part.LAST:
            return 0, extent, max(extent + window.after, window.kernel)
        if step.part is Part.FIRST:
            return extent, padded - window.before, padded
        return extent, padded, padded

    def _activation_bytes(self, step: Step, given: int, seen: int) -> int:
        """Norm and SiLU: the squares and their sums, the norm, the series, and the result, most of them in float32."""
        if self.activation is Activation.NONE:
            return 0
        positions = math.prod(step.grid) // step.grid[step.axis.grid]
        positions *= seen if self.activation is Activation.INPUT else given
        itemsize = step.machine.itemsize
        value = 3 * FLOAT32_BYTES
        if itemsize != FLOAT32_BYTES:
            value += (FLOAT32_BYTES if self.is_modulated else 0) + 2 * itemsize
        lanes = math.gcd(self.in_channels, _LANES)
        sums = (0 if lanes == self.in_channels else lanes) + 1
        return positions * (self.in_channels * value + sums * FLOAT32_BYTES)

    def _padding_bytes(self, step: Step, seen: int, padded: int) -> int:
        """Copies of the input, each padded along one more axis, and in float32; without what products are made of."""
        is_half = step.machine.itemsize != FLOAT32_BYTES
        is_cut = step.part in (Part.FIRST, Part.LAST)
        grid = list(step.grid)
        grid[step.axis.grid] = seen
        copies = 0
        for axis in Axis:
            is_own = axis is step.axis
            added = padded - seen if is_own else self.window(axis).cached
            is_copied = axis is Axis.TIME or self.padding is not PaddingMode.ZEROS or (is_own and is_cut)
            if added and is_copied:
                grid[axis.grid] += added
                copies += math.prod(grid)
        if step.is_band:
            copies += math.prod(grid)
        size = step.machine.itemsize * copies + (FLOAT32_BYTES * math.prod(grid) if is_half else 0)
        if self.padding is not PaddingMode.ZEROS:
            size -= FLOAT32_BYTES * math.prod(grid)  # the last one is what products are made of
        return size * self.in_channels

    def _sum_bytes(self, step: Step, out: Grid) -> int:
        """What joins the blocks of sums, adds the skip connection, and rounds the result."""
        results = math.prod(out) * self.conv_channels
        is_half = step.machine.itemsize != FLOAT32_BYTES
        row_bytes = (out[2] + TAPS - 1) * self.conv_channels * FLOAT32_BYTES
        copies = int(len(blocks(out[1], row_bytes, self.in_channels)) > 1)
        copies += (1 + is_half) * bool(self.skip_channels)
        size = results * (copies * FLOAT32_BYTES + (step.machine.itemsize if is_half else 0))
        if self.skip_channels not in (0, self.out_channels):
            size += math.prod(out) * (self.skip_channels + self.out_channels) * FLOAT32_BYTES
        return size

    def _behind(self, step: Step, grid: Grid) -> int:
        """Bytes of what a layer makes of the convolution's results for frames of this grid."""
        results, itemsize = math.prod(self._conv_grid(grid)) * self.conv_channels, step.machine.itemsize
        elements = results if self.conv_channels != self.out_channels else 0  # rearranged
        if self.has_residual:
            elements += (results if math.prod(self.up) > 1 else 0) + math.prod(grid) * self.in_channels
        if self.has_residual and math.prod(self.down) > 1:
            # A downsampling layer averages its rearranged input, which is done in float32.
            return elements * itemsize + math.prod(grid) * self.in_channels * (FLOAT32_BYTES + itemsize)
        return elements * itemsize

    def _conv_grid(self, grid: Grid) -> Grid:
        time, height, width = (-(-extent // stride) for extent, stride in zip(grid, self.conv_stride, strict=True))
        return time, height, width

    def _formulation(self, step: Step, grid: Grid) -> Formulation:
        allows_winograd = step.machine.itemsize == FLOAT32_BYTES or not step.machine.keeps_dtype
        return self.rule(self._shape(grid), step.machine.backend, allows_winograd=allows_winograd)

    def _shape(self, grid: Grid) -> ConvShape:
        is_strided = self.conv_stride != (1, 1, 1)
        return ConvShape(self._conv_grid(grid), self.in_channels, self.conv_channels, is_strided)

    def _scratch(self, step: Step, grid: Grid) -> int:
        machine = step.machine
        is_half = machine.itemsize != FLOAT32_BYTES
        is_scaled = is_half and not machine.keeps_dtype and self.activation is Activation.NONE
        formulation, on_cpu = self._formulation(step, grid), machine.backend is Backend.CPU
        return scratch_bytes(self._shape(grid), formulation, machine.itemsize, on_cpu=on_cpu, is_scaled=is_scaled)
