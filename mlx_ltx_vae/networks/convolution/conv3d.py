"""The 3x3x3 convolution as a module that is prepared for the device, and its formulations in plain MLX operations.

A formulation takes frames (B, T + 2, H, W, C) that are padded in time, zero padding in space, and a weight in the
layout of `rules.LAYOUTS`, and returns (B, T, H', W', O).

Precision on Apple GPUs: MLX's Winograd kernels for Metal round their transforms to the operands' dtype. In an
emulation of that rounding, bfloat16 loses 2.7 to 6 % of a convolution's result, float16 0.35 to 0.8 %, and a bfloat16
convolution without Winograd 0.2 to 0.3 %. The operands of a bfloat16 network are therefore float16: same size, more
digits, and less range.

After a norm the range is known, because the norm bounds the length of every position's vector. Other inputs are
multiplied by a power of two, which the device computes from their largest magnitude, and the result is divided by it in
float32. The factor belongs to an output frame and depends on the frames that it sees, so that a stream by time has the
same factors however it is cut. Along rows and columns a piece has a part of each frame, and may have another factor. A
power of two changes exponents only: the result has the same bits for any factor, unless values become smaller than
float16's normal numbers. In the emulation that begins with factors less than 2^-4 of the one chosen here. Factors are
powers of 16, so that parts of a picture usually have the same one.

Products over shifted views, for the CPU: in padded frames with rows of V = W + 2 positions, the input of tap (h, w) for
the output at position p = row * V + column is the position p + h * V + w. All outputs of a tap are therefore one
contiguous slice of the flattened frame and one matrix product; the last two outputs of each row belong to no window and
are left out. With three neighboring columns joined along channels, V is W, and there are three products for each three
columns.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, reduce
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn

from ...backend.device import backend, is_cpu
from ...backend.machine import Backend
from ...backend.mlx_utils import in_words, is_tracing, to_float
from .rules import (
    LAYOUTS,
    PRODUCTS,
    TAPS,
    ConvRule,
    ConvShape,
    Formulation,
    KernelLayout,
    blocks,
    choose,
    is_padded_first,
)

#: Positions of zeros at both ends of each axis.
Padding = tuple[int, int, int]
#: Computes each value by itself, and zero from zero.
Pointwise = Callable[[mx.array], mx.array]
# Output channels that a CPU copies at a time if they become the last axis. In float32 they fill a cache line, and their
# weights are few enough to stay in the cache until every part of a line has been read.
_BLOCK = 16

_HALF_MAX = 65504.0
_NORM_MARGIN = 4  # factor by which a timestep's modulation may lengthen an input after a norm

# A float32 number is 2^(e - 127) times its mantissa, of 23 bits.
_MANTISSA_BITS, _EXPONENT_BIAS, _EXPONENT_MASK = 23, 127, 0xFF
_FACTOR_STEP = 4  # factors are powers of 2^4
_LARGEST_SHIFT = 120  # so that a factor and its inverse are normal numbers

# Transforms of Winograd F(6x6, 3x3), for each of the eight points of one axis, six of them in pairs: the sum of the
# absolute coefficients of the input transform, and the three absolute coefficients of the filter transform.
_INPUT_GAINS = (12.5, 12.5, 12.5, 7.5, 7.5, 15.0, 15.0, 12.5)
_FILTER_SIZES = (
    (1.0, 0.0, 0.0),
    *[(2 / 9, 2 / 9, 2 / 9)] * 2,
    *[(1 / 90, 1 / 45, 2 / 45)] * 2,
    *[(32 / 45, 16 / 45, 8 / 45)] * 2,
    (0.0, 0.0, 1.0),
)


class PreparedModule(nn.Module, ABC):
    """Module that lays out its weights once."""

    @abstractmethod
    def prepare(self, *, keeps_dtype: bool = False) -> None:
        """Lay out and evaluate the weights for the default device, in a more accurate dtype unless `keeps_dtype`.

        The module's weights may be views, which it copies. The modules that it contains are prepared already.
        """


def prepared_modules(network: nn.Module) -> dict[str, PreparedModule]:
    """Return the prepared modules of a network, by their paths."""
    return {path: module for path, module in network.named_modules() if isinstance(module, PreparedModule)}


def prepare(network: nn.Module, *, keeps_dtype: bool) -> None:
    """Lay out the weights of all modules of a network, one by one."""
    for module in reversed(prepared_modules(network).values()):  # modules follow the modules that contain them
        module.prepare(keeps_dtype=keeps_dtype)


def arrange(weight: mx.array, source: KernelLayout, target: KernelLayout) -> mx.array:
    """Return a weight in another layout, as a view."""
    if source is target:
        return weight
    return weight.transpose(*(source.value.index(axis) for axis in target.value))


def lay_out(
    weight: mx.array, source: KernelLayout, target: KernelLayout, order: Sequence[int] | None = None
) -> mx.array:
    """Return a weight in another layout and order of output channels: a lazy copy, or the weight itself.

    `weight` may be a view whose axes have any order in memory.
    """
    if source is target and order is None:
        return weight
    view, axis = arrange(weight, source, target), target.value.index("O")
    outputs = range(view.shape[axis]) if order is None else order
    longest = _BLOCK if is_cpu() and axis == view.ndim - 1 else len(outputs)
    before = (slice(None),) * axis
    parts = [view[before + (run,)] for run in runs(outputs, longest)]
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=axis)


def runs(indices: Sequence[int], longest: int) -> list[slice]:
    """Return indices of at least 0 as slices of at most `longest` with a step, which MLX takes without a copy."""
    slices = []
    start = 0
    while start < len(indices):
        step = max(1, indices[start + 1] - indices[start]) if start + 1 < len(indices) else 1
        stop = start + 1
        while stop < min(len(indices), start + longest) and indices[stop] - indices[stop - 1] == step:
            stop += 1
        slices.append(slice(indices[start], indices[stop - 1] + 1, step))
        start = stop
    return slices


class HalfScale(NamedTuple):
    """Scale of a convolution for float16.

    Attributes:
        factor: factor of the weight, (1,) float32, a power of two.
        inverse: inverse of `factor`, by which a result is multiplied.
        longest: length of the longest input vector with which no convolution overflows.
    """

    factor: mx.array
    inverse: mx.array
    longest: float


def half_scale(weight: mx.array) -> HalfScale:
    """Return the scale that makes a weight (O, 3, 3, 3, I) as large as inputs after a norm allow.

    Winograd's transforms make some weights 8100 times smaller, below float16's normal range if nothing is done.
    """
    lengths = _tap_lengths(weight)
    direct = to_float(lengths.sum(axis=(1, 2, 3)).max())
    gains = mx.array([[gain * size for size in sizes] for gain, sizes in zip(_INPUT_GAINS, _FILTER_SIZES, strict=True)])
    products = to_float((gains @ lengths.sum(axis=1) @ gains.T).max())
    largest = max(direct, products)  # largest result for inputs of length 1
    longest = _HALF_MAX / max(_INPUT_GAINS) ** 2  # longest input that can be transformed
    shift = 0
    if 0 < largest < math.inf:
        shift = math.floor(math.log2(_HALF_MAX / (largest * _NORM_MARGIN * math.sqrt(weight.shape[-1]))))
        longest = min(longest, _HALF_MAX / math.ldexp(largest, shift))
    return HalfScale(mx.array([2.0**shift]), mx.array([2.0**-shift]), longest)


def _tap_lengths(weight: mx.array) -> mx.array:
    """Return the length (O, D, H, W) of each tap's vector, tap by tap, since float32 takes twice the memory."""
    lengths = []
    for tap in range(TAPS**3):
        depth, row, column = tap // TAPS**2, tap // TAPS % TAPS, tap % TAPS
        lengths.append(mx.sqrt(mx.square(weight[:, depth, row, column].astype(mx.float32)).sum(axis=-1)))
        mx.eval(lengths)
    return mx.stack(lengths, axis=1).reshape(-1, TAPS, TAPS, TAPS)


def scale_factors(frames: mx.array, scale: HalfScale) -> tuple[mx.array, mx.array]:
    """Return each output frame's factor, with which no vector that it sees is too long, and the inverse of all scaling.

    From `frames` (B, T + 2, H, W, C), both are (B, T, 1, 1, 1) float32 and powers of two. Nothing is read back from the
    device.
    """
    axes = (2, 3, 4)
    largest = mx.maximum(frames.max(axis=axes, keepdims=True), -frames.min(axis=axes, keepdims=True))
    time = frames.shape[1] - TAPS + 1
    largest = reduce(mx.maximum, (largest[:, tap : tap + time] for tap in range(TAPS)))
    exponents = (largest.astype(mx.float32).view(mx.int32) >> _MANTISSA_BITS) & _EXPONENT_MASK
    # largest < 2^(exponents - bias + 1), and a vector is at most sqrt(C) times as long as its largest element.
    limit = math.floor(math.log2(scale.longest / math.sqrt(frames.shape[-1]))) - 1 + _EXPONENT_BIAS
    shift = (limit - exponents) & -_FACTOR_STEP  # rounded down to a multiple
    shift = mx.clip(shift, -_LARGEST_SHIFT, _LARGEST_SHIFT)
    factor, inverse = (((_EXPONENT_BIAS + power) << _MANTISSA_BITS).view(mx.float32) for power in (shift, -shift))
    return factor, inverse * scale.inverse


@partial(mx.compile, shapeless=True)
def scale_to_half(array: mx.array, factor: mx.array) -> mx.array:
    """Return `array * factor` in float16, rounded once."""
    return (array.astype(mx.float32) * factor).astype(mx.float16)


class Conv3d(PreparedModule):
    """3x3x3 convolution over (B, T, H, W, C), computed in the formulation that a rule chooses.

    Args:
        order: the stored output channel for each output channel; some may be left out. `None` means all, as stored.

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
        self._order = self._stored_order = None if order is None else tuple(order)
        self._rule = rule
        self._scale: HalfScale | None = None  # `None` if the weight is in `dtype`
        self._layout = KernelLayout.STORED

    @property
    def dtype(self) -> mx.Dtype:
        return self.bias.dtype

    def prepare(self, *, keeps_dtype: bool = False) -> None:
        # All formulations that the rule may return here have this layout.
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

    def stored(self, name: str) -> mx.array:
        """Return `weight` or `bias` as it was before `prepare`, as a view or a lazy copy, if all channels are used.

        A weight that has become float16 may differ where it was below float16's range.
        """
        array = self[name]
        if name == "weight":
            array = arrange(array, self._layout, KernelLayout.STORED)
            if self._scale is not None:
                array = (array.astype(mx.float32) * self._scale.inverse).astype(self.dtype)
        if self._order is None and self._stored_order is not None:
            array = array[mx.argsort(mx.array(self._stored_order))]
        return array

    def operands(self, norm_bound: Callable[[], float]) -> mx.Dtype:
        """Return the dtype in which it takes its input from a norm. An input without a bound arrives in `dtype`.

        `norm_bound` returns the greatest length of an input vector. It is called only if the dtype depends on it.
        """
        return self.dtype if self._scale is None or norm_bound() > self._scale.longest else mx.float16

    def takes_activation(self, operands: mx.Dtype) -> bool:
        """Return whether a call takes an activation that returns this dtype. A traced run has no compiled kernels."""
        layout = LAYOUTS[self._rule(ConvShape((1, 1, 1), 1, 1, self._is_strided), backend())]
        is_scaled = self._scale is not None and operands != mx.float16
        return layout is KernelLayout.JOINED and not is_scaled and not is_tracing()

    def __call__(
        self, frames: mx.array, padding: Padding, skip: mx.array | None = None, activation: Pointwise | None = None
    ) -> mx.array:
        """Convolve frames (B, T, H, W, I), padded in time, in the dtype of `operands` or `dtype`, and add `skip`.

        `padding` is the number of zeros to add at both ends of each axis, 0 in time. An `activation` is computed first,
        by the kernel that joins the frames: see `takes_activation`. Returns (B, T', H', W', O) in `dtype`.
        """
        bias, weight = self._ordered_bias(), self.weight
        allows_winograd = weight.dtype != mx.bfloat16
        formulation = _choose(
            self._rule, frames.shape, padding, self._stride, bias.shape[0], backend(), allows_winograd=allows_winograd
        )
        weight = lay_out(weight, self._layout, LAYOUTS[formulation], self._order)
        if formulation in PRODUCTS:
            frames, weight, bias = (array.astype(mx.float32) for array in (frames, weight, bias))
            weight = weight if self._scale is None else weight * self._scale.inverse
            result = by_products(frames, weight, bias, padding, joins_columns=formulation is Formulation.COLUMNS)
            return (result if skip is None else result + skip).astype(self.dtype)
        inverse = None if self._scale is None else self._scale.inverse
        if formulation is Formulation.CONV3D:
            result = mx.conv3d(frames, weight.astype(frames.dtype), stride=self._stride, padding=padding)
            return add_bias(result, bias, skip, inverse)
        if self._scale is not None and frames.dtype != mx.float16 and activation is None:  # the input has no bound
            factors, inverse = scale_factors(frames, self._scale)
            activation = partial(scale_to_half, factor=factors)
        compute = by_joined_frames if formulation is Formulation.JOINED else by_rows
        return add_bias(compute(frames, weight, padding, activation), bias, skip, inverse)

    def _ordered_bias(self) -> mx.array:
        return self.bias if self._order is None else mx.take(self.bias, mx.array(self._order))


@lru_cache(maxsize=1024)
def _choose(
    rule: ConvRule,
    input_shape: tuple[int, ...],
    padding: Padding,
    stride: tuple[int, int, int],
    out_channels: int,
    target: Backend,
    *,
    allows_winograd: bool,
) -> Formulation:
    """Return the formulation for an input (B, T, H, W, I). The steps of a stream have few shapes."""
    extents = zip(input_shape[1:4], padding, stride, strict=True)
    time, height, width = ((extent + 2 * added - TAPS) // step + 1 for extent, added, step in extents)
    shape = ConvShape((time, height, width), input_shape[-1], out_channels, stride != (1, 1, 1))
    return rule(shape, target, allows_winograd=allows_winograd)


@partial(mx.compile, shapeless=True)
def add_bias(
    result: mx.array, bias: mx.array, skip: mx.array | None = None, factors: mx.array | None = None
) -> mx.array:
    """Multiply a convolution's result by `factors` (B, T, 1, 1, 1) and add bias and skip, in float32, in one kernel.

    Returns the dtype of the bias.
    """
    total = result.astype(mx.float32)
    total = (total if factors is None else total * factors) + bias.astype(mx.float32)
    return (total if skip is None else total + skip.astype(mx.float32)).astype(bias.dtype)


def by_joined_frames(
    frames: mx.array, weight: mx.array, padding: Padding, activation: Pointwise | None = None
) -> mx.array:
    """Convolve in 2D over three neighboring frames joined along channels, for a GPU, without bias."""
    extents = zip(frames.shape[1:4], padding, strict=True)
    time, height, width = (extent + 2 * zeros - TAPS + 1 for extent, zeros in extents)
    if is_padded_first((time, height, width)):
        frames, padding = pad(frames, padding), (0, 0, 0)
    joined = join_frames(frames, activation)
    result = mx.conv2d(joined.flatten(0, 1), weight.reshape(*weight.shape[:3], -1), padding=padding[1:])
    return result.reshape(*joined.shape[:2], *result.shape[1:])


def by_rows(frames: mx.array, weight: mx.array, padding: Padding, activation: Pointwise | None = None) -> mx.array:
    """Convolve by three matrix products over overlapping rows of three joined frames, for a GPU, without bias.

    On a CPU, the rows are copied.
    """
    joined = join_frames(pad(frames, padding), activation)  # padded first, a third of the size
    batch, time, height, width, channels = joined.shape
    positions = height * width
    rows, length, depth = height - 2, (height - 2) * width - 2, TAPS * channels
    kernel = weight.reshape(-1, TAPS, depth)
    outputs = kernel.shape[0]
    views = joined.flatten(2, 3)
    overlapping = (time * positions * channels, positions * channels, channels, 1)

    def product(row: int, total: mx.array | None) -> mx.array:
        view = mx.as_strided(views, (batch, time, length, depth), overlapping, row * width * channels)
        tap = kernel[:, row].T[None, None]
        return view @ tap if total is None else mx.addmm(total, view, tap)

    result = product(2, product(1, product(0, None)))
    strides = (time * length * outputs, length * outputs, width * outputs, outputs, 1)
    return mx.as_strided(result, (batch, time, rows, width - 2, outputs), strides)


def join_frames(frames: mx.array, activation: Pointwise | None = None) -> mx.array:
    """Join frames: (B, T + 2, H, W, C) -> (B, T, H, W, 3C).

    The `activation` gets a view (B, T, H * W, 3, C) of them, so that no kernel only copies.
    """
    batch, length, height, width, channels = frames.shape
    time = length - TAPS + 1
    if activation is None:
        return in_words(lambda x: mx.concatenate([x[:, tap : tap + time] for tap in range(TAPS)], axis=-1), frames)
    size = height * width * channels
    strides = (length * size, size, channels, size, 1)
    taps = mx.as_strided(frames, (batch, time, height * width, TAPS, channels), strides)
    return activation(taps).reshape(batch, time, height, width, TAPS * channels)


def pad(frames: mx.array, padding: Sequence[int]) -> mx.array:
    """Pad frames (B, T, H, W, C) or (N, H, W, C) with this many zeros at both ends of each axis."""
    if not any(padding):
        return frames
    widths = [(0, 0), *((extent, extent) for extent in padding), (0, 0)]
    return in_words(lambda x: mx.pad(x, widths), frames)


def by_products(
    frames: mx.array, weight: mx.array, bias: mx.array, padding: Padding, *, joins_columns: bool = False
) -> mx.array:
    """Convolve frames (B, T + 2, H, W, I) with a weight (3, 3, 3, I, O) by matrix products in blocks of rows."""
    padded = pad(frames, padding)
    batch, length, height, width, _ = padded.shape
    time, height, width = length - TAPS + 1, height - TAPS + 1, width - TAPS + 1
    if joins_columns:
        padded = mx.concatenate([padded[:, :, :, tap : tap + width] for tap in range(TAPS)], axis=-1)
    row, channels = padded.shape[3:]
    columns = row - width + 1  # taps along rows that are not joined
    views = padded.flatten(2, 3)
    taps = weight.reshape(1, TAPS * TAPS * columns, channels, -1)
    outputs = taps.shape[-1]
    parts = []
    for start, end in blocks(height, row * outputs * taps.itemsize, frames.shape[-1]):
        length = (end - start) * row - (row - width)
        result = bias
        for tap in range(taps.shape[1]):
            depth, shift = divmod(tap, TAPS * columns)
            offset = (start + shift // columns) * row + shift % columns
            # The tap is a slice of length 1, since an index would copy the weight.
            result = mx.addmm(result, views[:, depth : depth + time, offset : offset + length], taps[:, tap : tap + 1])
        strides = (time * length * outputs, length * outputs, row * outputs, outputs, 1)
        parts.append(mx.as_strided(result, (batch, time, end - start, width, outputs), strides))
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=2)
