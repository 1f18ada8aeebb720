"""The 3x3x3 convolution as matrix products in float32, for the CPU.

Products over shifted views: in padded frames with rows of V = W + 2 positions, the input of tap (h, w) for the output
at position p = row * V + column is the position p + h * V + w. All outputs of a tap are therefore one contiguous slice
of the flattened frame and one matrix product; the last two outputs of each row belong to no window and are left out.
With three neighboring columns joined along channels, V is W, and there are three products for each three columns.
"""

import mlx.core as mx

from .rules import TAPS, blocks

Padding = tuple[int, int, int]


def pad(frames: mx.array, padding: Padding) -> mx.array:
    """Frames (B, T, H, W, C) with this many zeros at both ends of each axis."""
    if not any(padding):
        return frames
    return mx.pad(frames, [(0, 0), *((extent, extent) for extent in padding), (0, 0)])


def by_products(
    frames: mx.array, weight: mx.array, bias: mx.array, padding: Padding, *, joins_columns: bool = False
) -> mx.array:
    """The convolution of frames (B, T + 2, H, W, I) with a weight (3, 3, 3, I, O), added up in blocks of rows."""
    padded = pad(frames, padding)
    batch, length, height, width, _ = padded.shape
    time, height, width = length - TAPS + 1, height - TAPS + 1, width - TAPS + 1
    if joins_columns:
        padded = mx.concatenate([padded[:, :, :, tap : tap + width] for tap in range(TAPS)], axis=-1)
    row, channels = padded.shape[3:]
    columns = row - width + 1  # that are not joined
    views = padded.flatten(2, 3)
    taps = weight.reshape(1, TAPS * TAPS * columns, channels, -1)
    outputs = taps.shape[-1]
    parts = []
    for start, end in blocks(height, row * outputs * taps.itemsize, frames.shape[-1]):
        length = (end - start) * row - (row - width)
        result = bias
        for tap in range(taps.shape[1]):
            depth, shift = divmod(tap, TAPS * columns)
            first = (start + shift // columns) * row + shift % columns
            # A slice of one: an index would copy the weight.
            result = mx.addmm(result, views[:, depth : depth + time, first : first + length], taps[:, tap : tap + 1])
        strides = (time * length * outputs, length * outputs, row * outputs, outputs, 1)
        parts.append(mx.as_strided(result, (batch, time, end - start, width, outputs), strides))
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=2)
