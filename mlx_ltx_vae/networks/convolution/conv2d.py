"""The 3x3 convolution of single frames, with zero padding, computed in float32.

Half precision is no faster on a CPU, and on Metal MLX's Winograd kernels would round their transforms to it (see
`conv3d`).

On a CPU, a convolution is nine matrix products, one per tap, over shifted views of the padded frames, as in
`conv3d.by_products`. That is about as fast as `mx.conv2d` with many channels, 1.3 times as fast with 64, and 50 times
with groups, for which MLX's CPU backend has a plain loop.
"""

import math
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ...backend.device import is_cpu
from ...backend.mlx_utils import contiguous
from .conv3d import PreparedModule, pad
from .rules import TAPS

# Taps of the two rows of outputs that an input row repeated twice gives, and likewise for columns. The upper output row
# sees the input row before and this row, the lower one this row and the next.
_PHASES = np.array([[[1, 0, 0], [0, 1, 1]], [[1, 1, 0], [0, 0, 1]]], np.float32)
_PHASE_TAPS = np.einsum("rai,cbj->rcabij", _PHASES, _PHASES).reshape(16, TAPS**2)


class Conv2d(PreparedModule):
    """3x3 convolution over each frame of (B, T, H, W, C).

    Args:
        shape: the weight's, (O, 3, 3, I / groups).
        is_upsampled: each position of its input counts as 2x2 equal positions. They are not computed: an output sees at
            most 2x2 different positions, so there is a 2x2 kernel for each of the four outputs of a position, with 4/9
            of the work.

        order: the stored output channel for each output channel, if it has a bias. `None` means the stored order.

    Checkpoint keys: `weight`, and `bias` (O,) if it has one. `prepare` lays the weight out for the device, once.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        has_bias: bool = True,
        groups: int = 1,
        stride: int = 1,
        is_upsampled: bool = False,
        order: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        scale = math.prod(shape[1:]) ** -0.5
        self.weight = mx.random.uniform(-scale, scale, shape)
        if has_bias:
            self.bias = mx.zeros(shape[:1])
        self._groups = groups
        self._stride = stride
        self._is_upsampled = is_upsampled
        self._order = None if order is None else mx.array(list(order))
        self._is_arranged = False

    @property
    def dtype(self) -> mx.Dtype:
        return self.weight.dtype

    def prepare(self, *, keeps_dtype: bool = False) -> None:
        # The weight keeps its dtype, since operands are converted to float32 in any case.
        if self._order is not None:
            self.weight, self.bias, self._order = self.weight[self._order], self.bias[self._order], None
        if self._uses_products and not self._is_arranged:
            self.weight, self._is_arranged = arrange(self.weight, self._groups), True
        self.weight = mx.contiguous(self.weight)
        mx.eval(self.parameters())

    def __call__(self, frames: mx.array, padding: tuple[int, int], *, upsamples: bool = True) -> mx.array:
        """Convolve frames (B, T, H, W, I) after `padding` with zeros at both ends of rows and columns, in float32.

        Without `upsamples`, positions of an upsampled input count once.
        """
        batch, time, *_ = frames.shape
        frames = frames.astype(mx.float32).flatten(0, 1)
        bias, weight = self.bias.astype(mx.float32) if "bias" in self else None, self.weight
        if self._order is not None:
            bias, weight = None if bias is None else bias[self._order], weight[self._order]
        if self._uses_products:
            taps = weight if self._is_arranged else arrange(weight, self._groups)
            taps, frames = taps.astype(mx.float32), pad(frames, padding)
            result = by_phases(frames, taps) if self._is_upsampled and upsamples else by_taps(frames, taps)
        else:
            assert not self._is_arranged, "the default device has changed"
            weight = weight.astype(mx.float32)
            if self._is_upsampled and upsamples:
                result = by_phases(pad(frames, padding), arrange(weight, 1))
            else:
                result = mx.conv2d(frames, weight, self._stride, padding, groups=self._groups)
        result = result if bias is None else result + bias
        return mx.unflatten(result, 0, (batch, time))

    @property
    def _uses_products(self) -> bool:
        return is_cpu() and self._stride == 1


def arrange(weight: mx.array, groups: int) -> mx.array:
    """Return a weight (O, 3, 3, I) as (9, G, I, O / G): for each tap, a matrix per group."""
    taps = weight.flatten(1, 2)
    return mx.unflatten(taps, 0, (groups, -1)).transpose(2, 0, 3, 1)


def by_taps(padded: mx.array, taps: mx.array, bias: mx.array | None = None) -> mx.array:
    """Add up nine matrix products over shifted views: (N, H + 2, W + 2, I) -> (N, H, W, O), as a view."""
    count, height, width, _ = padded.shape
    _, groups, in_channels, out_channels = taps.shape
    views = padded.reshape(count, height * width, groups, in_channels).transpose(0, 2, 1, 3)
    if groups > 1:
        views = contiguous(views)  # each group's channels together
    length = (height - 2) * width - 2
    result = None if bias is None else mx.unflatten(bias, 0, (groups, 1, -1))
    for tap in range(TAPS**2):
        row, column = divmod(tap, TAPS)
        offset = row * width + column
        view, matrix = views[:, :, offset : offset + length], taps[tap : tap + 1]
        result = view @ matrix if result is None else mx.addmm(result, view, matrix)
    assert result is not None
    size = length * out_channels
    strides = (groups * size, width * out_channels, out_channels, size, 1)
    return mx.as_strided(result, (count, height - 2, width - 2, groups, out_channels), strides).flatten(-2)


def by_phases(padded: mx.array, taps: mx.array, bias: mx.array | None = None) -> mx.array:
    """Convolve positions that are repeated 2x2 times: (N, H + 2, W + 2, I) -> (N, 2H, 2W, O).

    Each of the four outputs of a position is one matrix product over the 2x2 positions that it sees.
    """
    count, height, width, in_channels = padded.shape
    out_channels = taps.shape[-1]
    rows, columns = height - 2, width - 2
    kernels = (mx.array(_PHASE_TAPS) @ taps.reshape(TAPS**2, -1)).reshape(4, 4 * in_channels, out_channels)
    squares = mx.concatenate(
        [padded[:, row : row + rows + 1, column : column + columns + 1] for row in (0, 1) for column in (0, 1)], axis=-1
    ).flatten(1, 2)
    length = rows * (columns + 1) - 1
    strides = (length * out_channels, (columns + 1) * out_channels, out_channels, 1)
    phases = []
    for phase in range(4):
        row, column = divmod(phase, 2)
        offset = row * (columns + 1) + column
        # The kernel is a slice of length 1, since MLX would copy the view for a product with a 2D matrix.
        view, kernel = squares[:, offset : offset + length], kernels[phase : phase + 1]
        product = view @ kernel if bias is None else mx.addmm(bias, view, kernel)
        phases.append(mx.as_strided(product, (count, rows, columns, out_channels), strides))
    upper, lower = (mx.stack(phases[start : start + 2], axis=3) for start in (0, 2))
    return mx.stack([upper, lower], axis=2).reshape(count, 2 * rows, 2 * columns, out_channels)
