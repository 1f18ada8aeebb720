"""The convolution as a module, with its weight laid out for the device."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from ...backend.device import backend
from .formulations import Padding, arrange, by_columns, by_joined_frames, by_rows, by_taps
from .precision import operand_dtype
from .rules import LAYOUTS, TAPS, ConvRule, ConvShape, Formulation, KernelLayout, choose


class Conv3d(nn.Module):
    """A 3x3x3 convolution over (B, T, H, W, C), computed in the formulation that a rule chooses.

    Args:
        order: the stored output channel for each output channel; some may be left out. None for all, as stored.
        is_normalized: whether its inputs come from a norm, so that their size has a bound.

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
        self._is_strided = stride != (1, 1, 1)
        self._order = None if order is None else tuple(order)
        self._is_normalized = is_normalized
        self._rule = rule
        self._half_range = math.inf
        self._layout = KernelLayout.STORED

    @property
    def dtype(self) -> mx.Dtype:
        return self.bias.dtype

    def prepare(self, *, keeps_dtype: bool = False) -> None:
        """Lay out the weight for the default device, evaluated, also in a more accurate dtype unless `keeps_dtype`."""
        weight, bias = self._ordered()
        norm_bound = math.sqrt(weight.shape[-1]) if self._is_normalized else None
        if not keeps_dtype and self._layout is KernelLayout.STORED:
            dtype, self._half_range = operand_dtype(weight, backend(), norm_bound)
            weight = weight.astype(dtype)
        # The one of all formulations that the rule may return here.
        layout = LAYOUTS[self._rule(ConvShape((1, 1, 1), 1, 1, self._is_strided), backend())]
        self.weight = mx.contiguous(arrange(weight, self._layout, layout))
        self.bias = mx.contiguous(bias)
        self._layout, self._order = layout, None
        mx.eval(self.weight, self.bias)

    def operands(self, norm_bound: Callable[[], float]) -> mx.Dtype:
        """The dtype in which it takes its input; `norm_bound` is called only if that depends on its length."""
        if self.weight.dtype == self.dtype or norm_bound() > self._half_range:
            return self.dtype
        return self.weight.dtype

    def __call__(self, frames: mx.array, padding: Padding, skip: mx.array | None = None) -> mx.array:
        """Convolve frames (B, T, H, W, I), padded in time, in the dtype of `operands`, and add `skip`.

        `padding` is that to add with zeros at both ends of each axis, none in time. (B, T', H', W', O) in `dtype`.
        """
        weight, bias = self._ordered()
        extents = zip(frames.shape[1:4], padding, self._stride, strict=True)
        time, height, width = ((extent + 2 * added - TAPS) // stride + 1 for extent, added, stride in extents)
        shape = ConvShape((time, height, width), frames.shape[-1], len(bias), self._is_strided)
        formulation = self._rule(shape, backend(), allows_winograd=frames.dtype != mx.bfloat16)
        weight = arrange(weight, self._layout, LAYOUTS[formulation])
        if formulation in (Formulation.TAPS, Formulation.COLUMNS):
            products = by_taps if formulation is Formulation.TAPS else by_columns
            frames, weight, bias = (array.astype(mx.float32) for array in (frames, weight, bias))
            result = products(frames, weight, bias, padding)
            return (result if skip is None else result + skip).astype(self.dtype)
        weight = weight.astype(frames.dtype)
        if formulation is Formulation.CONV3D:
            result = mx.conv3d(frames, weight, stride=self._stride, padding=padding)
        elif formulation is Formulation.JOINED:
            result = by_joined_frames(frames, weight, padding)
        else:
            result = by_rows(frames, weight, padding)
        return add_bias(result, bias, skip)

    def _ordered(self) -> tuple[mx.array, mx.array]:
        if self._order is None:
            return self.weight, self.bias
        index = mx.array(self._order)
        return mx.take(self.weight, index, axis=self._layout.value.index("O")), mx.take(self.bias, index)


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
