"""The convolution as a module, with its weight laid out for the device."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from ...backend.device import backend
from . import formulations
from .formulations import Padding
from .precision import operand_dtype
from .rules import TAPS, ConvRule, ConvShape, Formulation, KernelLayout, choose, layout_for, load_layout


class Conv3d(nn.Module):
    """A 3x3x3 convolution over (B, T, H, W, C), computed in the formulation that a rule chooses.

    Args:
        out_channels: output channels of the stored weight.
        stride: along time, height and width.
        order: the index of the stored output channel for each output channel; fewer than stored leave some out. None
            for all, as stored.
        is_normalized: whether its inputs come from a norm, so that their size has a bound.
        rule: chooses the formulation.

    Checkpoint keys: `weight` (O, 3, 3, 3, I), `bias` (O,). `prepare` lays them out for the device, once.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        stride: tuple[int, int, int] = (1, 1, 1),
        order: Sequence[int] | None = None,
        is_normalized: bool = False,
        rule: ConvRule = choose,
    ) -> None:
        super().__init__()
        scale = (in_channels * TAPS**3) ** -0.5  # as in mlx.nn.Conv3d
        self.weight = mx.random.uniform(-scale, scale, (out_channels, TAPS, TAPS, TAPS, in_channels))
        self.bias = mx.zeros((out_channels,))
        self._stride = stride
        self._order = None if order is None else tuple(order)
        self._is_ordered = order is None
        self._is_normalized = is_normalized
        self._rule = rule
        self._half_range = math.inf
        self._layout = KernelLayout.STORED

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype of the network, and of its output."""
        return self.bias.dtype

    def prepare(self, *, keeps_dtype: bool = False) -> None:
        """Lay out the weight for the default device, evaluated. It exists twice meanwhile.

        Args:
            keeps_dtype: whether operands stay in the network's dtype although another is more accurate on the device.
        """
        weight, bias = self._ordered()
        norm_bound = math.sqrt(weight.shape[-1]) if self._is_normalized else None
        if not keeps_dtype and self._layout is KernelLayout.STORED:
            dtype, self._half_range = operand_dtype(weight, backend(), norm_bound)
            weight = weight.astype(dtype)
        layout = load_layout(self._rule, backend(), is_strided=self._is_strided)
        self.weight = mx.contiguous(formulations.arrange(weight, self._layout, layout))
        self.bias = mx.contiguous(bias)
        self._layout, self._is_ordered = layout, True
        mx.eval(self.weight, self.bias)

    def operands(self, norm_bound: Callable[[], float]) -> mx.Dtype:
        """The dtype in which it takes its input.

        Args:
            norm_bound: gives the length that no position's vector exceeds; called only if the dtype depends on it.
        """
        if self.weight.dtype == self.dtype or norm_bound() > self._half_range:
            return self.dtype
        return self.weight.dtype

    def __call__(self, frames: mx.array, padding: Padding, skip: mx.array | None = None) -> mx.array:
        """Convolve.

        Args:
            frames: (B, T, H, W, I), padded in time, in the dtype of `operands`.
            padding: positions of zero padding to add at both ends of each axis, none in time.
            skip: added to the result, of its shape.

        Returns:
            (B, T', H', W', O) in `dtype`.
        """
        weight, bias = self._ordered()
        shape = self._shape(frames, padding, len(bias))
        formulation = self._rule(shape, backend(), allows_winograd=frames.dtype != mx.bfloat16)
        weight = formulations.arrange(weight, self._layout, layout_for(formulation))
        if formulation in formulations.PRODUCTS:
            frames, weight, bias = (array.astype(mx.float32) for array in (frames, weight, bias))
            result = formulations.PRODUCTS[formulation](frames, weight, bias, padding)
            return (result if skip is None else result + skip).astype(self.dtype)
        weight = weight.astype(frames.dtype)
        if formulation is Formulation.CONV3D:
            result = mx.conv3d(frames, weight, stride=self._stride, padding=padding)
        else:
            result = formulations.UNBIASED[formulation](frames, weight, padding)
        return add_bias(result, bias, skip)

    @property
    def _is_strided(self) -> bool:
        return self._stride != (1, 1, 1)

    def _shape(self, frames: mx.array, padding: Padding, outputs: int) -> ConvShape:
        extents = zip(frames.shape[1:4], padding, self._stride, strict=True)
        time, height, width = ((extent + 2 * added - TAPS) // stride + 1 for extent, added, stride in extents)
        return ConvShape((time, height, width), frames.shape[-1], outputs, self._is_strided)

    def _ordered(self) -> tuple[mx.array, mx.array]:
        """The weight and the bias with output channels in order."""
        if self._is_ordered or self._order is None:
            return self.weight, self.bias
        axis = formulations.output_axis(self._layout)
        index = mx.array(self._order)
        return mx.take(self.weight, index, axis=axis), mx.take(self.bias, index)


def prepare(network: nn.Module, *, keeps_dtype: bool) -> None:
    """Lay out the weights of all convolutions of a network, one by one (see `Conv3d.prepare`)."""
    for module in network.modules():
        if isinstance(module, Conv3d):
            module.prepare(keeps_dtype=keeps_dtype)


def add_bias(result: mx.array, bias: mx.array, skip: mx.array | None) -> mx.array:
    """Add bias and skip to a convolution's result in float32, in one kernel; in the dtype of the bias."""
    return _add(result, bias) if skip is None else _add_skip(result, bias, skip)


@partial(mx.compile, shapeless=True)
def _add(result: mx.array, bias: mx.array) -> mx.array:
    return (result.astype(mx.float32) + bias.astype(mx.float32)).astype(bias.dtype)


@partial(mx.compile, shapeless=True)
def _add_skip(result: mx.array, bias: mx.array, skip: mx.array) -> mx.array:
    return (result.astype(mx.float32) + bias.astype(mx.float32) + skip.astype(mx.float32)).astype(bias.dtype)
