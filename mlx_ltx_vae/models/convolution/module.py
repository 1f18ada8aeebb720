"""The convolution as a module, with its weight laid out for the device."""

from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx

from ...backend.device import backend
from ...backend.machine import Backend
from .formulations import Padding, by_columns, by_joined_frames, by_rows, by_taps
from .precision import HalfScale, half_scale, scale_factors, scale_to_half
from .prepared import PreparedModule, arrange, lay_out
from .rules import LAYOUTS, TAPS, ConvRule, ConvShape, Formulation, KernelLayout, choose


class Conv3d(PreparedModule):
    """A 3x3x3 convolution over (B, T, H, W, C), computed in the formulation that a rule chooses.

    Args:
        order: the stored output channel for each output channel; some may be left out. None for all, as stored.

    Checkpoint keys: `weight` (O, 3, 3, 3, I), `bias` (O,). `prepare` lays them out for the device, once.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        stride: tuple[int, int, int] = (1, 1, 1),
        order: Sequence[int] | None = None,
        rule: ConvRule = choose,
    ) -> None:
        super().__init__()
        scale = (in_channels * TAPS**3) ** -0.5  # as in mlx.nn.Conv3d
        self.weight = mx.random.uniform(-scale, scale, (out_channels, TAPS, TAPS, TAPS, in_channels))
        self.bias = mx.zeros((out_channels,))
        self._stride = stride
        self._is_strided = stride != (1, 1, 1)
        self._order = None if order is None else tuple(order)
        self._rule = rule
        self._scale: HalfScale | None = None  # None for a weight in `dtype`
        self._layout = KernelLayout.STORED

    @property
    def dtype(self) -> mx.Dtype:
        return self.bias.dtype

    def prepare(self, *, keeps_dtype: bool = False) -> None:
        """Lay out the weight for the default device, evaluated, also in a more accurate dtype unless `keeps_dtype`."""
        # The one of all formulations that the rule may return here.
        layout = LAYOUTS[self._rule(ConvShape((1, 1, 1), 1, 1, self._is_strided), backend())]
        is_stored = self._layout is KernelLayout.STORED and self.weight.dtype == mx.bfloat16
        self.weight = mx.contiguous(lay_out(self.weight, self._layout, layout, self._order))
        self.bias = mx.contiguous(self._ordered_bias())
        self._layout, self._order = layout, None
        mx.eval(self.weight, self.bias)
        if is_stored and backend() is Backend.METAL and not (keeps_dtype or self._is_strided):
            self._scale = half_scale(arrange(self.weight, layout, KernelLayout.STORED))
            self.weight = scale_to_half(self.weight, self._scale.factor)
            mx.eval(self.weight)

    def operands(self, norm_bound: Callable[[], float]) -> mx.Dtype:
        """The dtype in which it takes its input from a norm; `norm_bound` is called only if that depends on its length.

        An input without a bound arrives in `dtype`.
        """
        return self.dtype if self._scale is None or norm_bound() > self._scale.longest else mx.float16

    def __call__(self, frames: mx.array, padding: Padding, skip: mx.array | None = None) -> mx.array:
        """Convolve frames (B, T, H, W, I), padded in time, in the dtype of `operands` or `dtype`, and add `skip`.

        `padding` is that to add with zeros at both ends of each axis, none in time. (B, T', H', W', O) in `dtype`.
        """
        bias = self._ordered_bias()
        extents = zip(frames.shape[1:4], padding, self._stride, strict=True)
        time, height, width = ((extent + 2 * added - TAPS) // stride + 1 for extent, added, stride in extents)
        shape = ConvShape((time, height, width), frames.shape[-1], len(bias), self._is_strided)
        formulation = self._rule(shape, backend(), allows_winograd=self.weight.dtype != mx.bfloat16)
        weight = lay_out(self.weight, self._layout, LAYOUTS[formulation], self._order)
        if formulation in (Formulation.TAPS, Formulation.COLUMNS):
            products = by_taps if formulation is Formulation.TAPS else by_columns
            frames, weight, bias = (array.astype(mx.float32) for array in (frames, weight, bias))
            weight = weight if self._scale is None else weight * self._scale.inverse
            result = products(frames, weight, bias, padding)
            return (result if skip is None else result + skip).astype(self.dtype)
        factors, inverse = None, None if self._scale is None else self._scale.inverse
        if formulation is Formulation.CONV3D:
            result = mx.conv3d(frames, weight.astype(frames.dtype), stride=self._stride, padding=padding)
            return add_bias(result, bias, skip, inverse)
        if self._scale is not None and frames.dtype != mx.float16:  # an input without a bound
            factors, inverse = scale_factors(frames, self._scale)
        convolve = by_joined_frames if formulation is Formulation.JOINED else by_rows
        return add_bias(convolve(frames, weight, padding, factors), bias, skip, inverse)

    def _ordered_bias(self) -> mx.array:
        return self.bias if self._order is None else mx.take(self.bias, mx.array(self._order))


@partial(mx.compile, shapeless=True)
def add_bias(
    result: mx.array, bias: mx.array, skip: mx.array | None = None, factors: mx.array | None = None
) -> mx.array:
    """Multiply a convolution's result by `factors` (B, T, 1, 1, 1) and add bias and skip, in float32, in one kernel.

    In the dtype of the bias.
    """
    total = result.astype(mx.float32)
    total = (total if factors is None else total * factors) + bias.astype(mx.float32)
    return (total if skip is None else total + skip.astype(mx.float32)).astype(bias.dtype)
