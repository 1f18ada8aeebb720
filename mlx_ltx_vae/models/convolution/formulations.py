"""The formulations of a 3x3x3 convolution, in plain MLX operations.

Each takes frames (B, T + 2, H, W, C) that are padded in time, zero padding in space, and a weight in the layout of
`rules.LAYOUTS`, and returns (B, T, H', W', O).

Products over shifted views: in padded frames with rows of V = W + 2 positions, the input of tap (h, w) for the output
at position p = row * V + column is the position p + h * V + w. All outputs of a tap are therefore one contiguous slice
of the flattened frame and one matrix product; the last two outputs of each row belong to no window and are left out.
"""

import mlx.core as mx

from .precision import scale_to_half
from .rules import TAPS, blocks, is_padded_first

Padding = tuple[int, int, int]


def by_taps(frames: mx.array, weight: mx.array, bias: mx.array, padding: Padding) -> mx.array:
    """27 matrix products over shifted views, added up in blocks of rows. In float32, for the CPU."""
    padded = _pad(frames, padding)
    batch, length, height, width, channels = padded.shape
    time = length - TAPS + 1
    views = padded.flatten(2, 3)
    taps = weight.reshape(1, TAPS**3, channels, -1)
    outputs = taps.shape[-1]
    parts = []
    for start, end in blocks(height - 2, width * outputs * taps.itemsize, channels):
        rows, length = end - start, (end - start) * width - 2
        result = bias
        for tap in range(TAPS**3):
            depth, row, column = tap // TAPS**2, tap // TAPS % TAPS, tap % TAPS
            first = (start + row) * width + column
            view = views[:, depth : depth + time, first : first + length]
            # A slice of one: an index would copy the weight.
            result = mx.addmm(result, view, taps[:, tap : tap + 1])
        strides = (time * length * outputs, length * outputs, width * outputs, outputs, 1)
        parts.append(mx.as_strided(result, (batch, time, rows, width - 2, outputs), strides))
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=2)


def by_columns(frames: mx.array, weight: mx.array, bias: mx.array, padding: Padding) -> mx.array:
    """9 matrix products over views of three neighboring columns joined along channels. In float32, for the CPU."""
    padded = _pad(frames, padding)
    batch, length, height, width, channels = padded.shape
    time, rows, columns = length - TAPS + 1, height - 2, width - 2
    joined = mx.concatenate([padded[:, :, :, tap : tap + columns] for tap in range(TAPS)], axis=-1)
    joined = joined.reshape(batch, length, height * columns, TAPS * channels)
    taps = weight.reshape(1, TAPS**2, TAPS * channels, -1)
    result = bias
    for tap in range(TAPS**2):
        depth, row = divmod(tap, TAPS)
        view = joined[:, depth : depth + time, row * columns : (row + rows) * columns]
        result = mx.addmm(result, view, taps[:, tap : tap + 1])
    return result.reshape(batch, time, rows, columns, -1)


def by_joined_frames(frames: mx.array, weight: mx.array, padding: Padding, factors: mx.array | None = None) -> mx.array:
    """One 2D convolution over three neighboring frames joined along channels, for a GPU, without bias."""
    time, height, width = (
        extent + 2 * added - TAPS + 1 for extent, added in zip(frames.shape[1:4], padding, strict=True)
    )
    if is_padded_first((time, height, width)):
        frames, padding = _pad(frames, padding), (0, 0, 0)
    joined = join_frames(frames, factors)
    batch, time, *grid, channels = joined.shape
    kernel = weight.reshape(*weight.shape[:3], channels)
    result = mx.conv2d(joined.reshape(batch * time, *grid, channels), kernel, padding=padding[1:])
    return result.reshape(batch, time, *result.shape[1:])


def by_rows(frames: mx.array, weight: mx.array, padding: Padding, factors: mx.array | None = None) -> mx.array:
    """Three matrix products over overlapping rows of three joined frames (copied on a CPU), for a GPU, without bias."""
    padded = _pad(join_frames(frames, factors), padding)
    batch, time, height, width, channels = padded.shape
    positions = height * width
    rows, length, depth = height - 2, (height - 2) * width - 2, TAPS * channels
    kernel = weight.reshape(-1, TAPS, depth)
    outputs = kernel.shape[0]
    views = mx.contiguous(padded.flatten(2, 3))
    overlapping = (time * positions * channels, positions * channels, channels, 1)

    def product(row: int, total: mx.array | None) -> mx.array:
        view = mx.as_strided(views, (batch, time, length, depth), overlapping, row * width * channels)
        tap = kernel[:, row].T[None, None]
        return view @ tap if total is None else mx.addmm(total, view, tap)

    result = product(2, product(1, product(0, None)))
    strides = (time * length * outputs, length * outputs, width * outputs, outputs, 1)
    return mx.as_strided(result, (batch, time, rows, width - 2, outputs), strides)


def _pad(frames: mx.array, padding: Padding) -> mx.array:
    if not any(padding):
        return frames
    return mx.pad(frames, [(0, 0), *((extent, extent) for extent in padding), (0, 0)])


def join_frames(frames: mx.array, factors: mx.array | None = None) -> mx.array:
    """(B, T + 2, H, W, C) -> (B, T, H, W, 3C), in float16 if multiplied by `factors` (B, T, 1, 1, 1)."""
    time = frames.shape[1] - TAPS + 1
    taps = [frames[:, tap : tap + time] for tap in range(TAPS)]
    return mx.concatenate(taps if factors is None else [scale_to_half(tap, factors) for tap in taps], axis=-1)
