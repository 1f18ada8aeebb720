"""The convolution along time without padding, as products with a weight (K, I, O)."""

import mlx.core as mx

from ...backend.device import is_cpu


def arrange(weight: mx.array) -> mx.array:
    """A stored weight (O, K, I) as `convolve` takes it, as a view."""
    return weight.transpose(1, 2, 0)


def convolve(x: mx.array, weight: mx.array, bias: mx.array | None, *, dilation: int = 1) -> mx.array:
    """(B, T, I) with (K, I, O) to (B, T - dilation * (K-1), O).

    On a CPU, one product per tap, added up. On a GPU, which would read and write the sum for each of them, one product
    of unfolded positions.
    """
    return (_add_taps if is_cpu() else _unfold)(x, weight, bias, dilation)


def _add_taps(x: mx.array, weight: mx.array, bias: mx.array | None, dilation: int) -> mx.array:
    taps = len(weight)
    results = x.shape[1] - dilation * (taps - 1)
    total = bias
    for tap in range(taps):
        # A slice of one: an index would copy the weight.
        view, matrix = x[:, tap * dilation : tap * dilation + results], weight[tap : tap + 1]
        total = view @ matrix if total is None else mx.addmm(total, view, matrix)
    assert total is not None
    return total


def _unfold(x: mx.array, weight: mx.array, bias: mx.array | None, dilation: int) -> mx.array:
    taps, in_channels, out_channels = weight.shape
    batch, length, _ = x.shape
    results = length - dilation * (taps - 1)
    strides = (length * in_channels, in_channels, dilation * in_channels, 1)
    unfolded = mx.as_strided(mx.contiguous(x), (batch, results, taps, in_channels), strides)
    unfolded = unfolded.reshape(batch, results, taps * in_channels)
    matrix = weight.reshape(-1, out_channels)
    return unfolded @ matrix if bias is None else mx.addmm(bias, unfolded, matrix)
