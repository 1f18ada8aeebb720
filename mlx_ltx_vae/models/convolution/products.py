"""The 3x3x3 convolution as matrix products in float32, for the CPU.

Products over shifted views: in padded frames with rows of V = W + 2 positions, the input of tap (h, w) for the output
at position p = row * V + column is the position p + h * V + w. All outputs of a tap are therefore one contiguous slice
of the flattened frame and one matrix product; the last two outputs of each row belong to no window and are left out.
With three neighboring columns joined along channels, V is W, and there are three products for each three columns.

Winograd's F(2, 3) in time takes four products for two neighboring frames in place of six. Which frames are a pair
depends on their numbers in the clip and not on how it is cut: a frame whose partner belongs to another step is computed
alone, with as many products as without pairs and the same bits as in one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from .rules import TAPS, blocks

Padding = tuple[int, int, int]

#: For each depth of the kernel, or product of a pair, the weights (1, 1, I, O) of the taps in space.
_Kernels = Sequence[Sequence[mx.array]]


def pad(frames: mx.array, padding: Padding) -> mx.array:
    """Frames (B, T, H, W, C) with so many zeros at both ends of each axis."""
    if not any(padding):
        return frames
    return mx.pad(frames, [(0, 0), *((extent, extent) for extent in padding), (0, 0)])


def by_products(
    frames: mx.array,
    weight: mx.array,
    bias: mx.array,
    padding: Padding,
    *,
    joins_columns: bool = False,
    parity: int | None = None,
) -> mx.array:
    """The convolution of frames (B, T + 2, H, W, I) with a weight (3, 3, 3, I, O), added up in blocks of rows.

    `parity` is that of the first result's number, where even numbers begin a pair. None to compute no pairs.
    """
    padded = pad(frames, padding)
    batch, length, height, width, _ = padded.shape
    height, width = height - TAPS + 1, width - TAPS + 1
    if joins_columns:
        padded = mx.concatenate([padded[:, :, :, tap : tap + width] for tap in range(TAPS)], axis=-1)
    row, channels = padded.shape[3:]
    offsets = [tap * row + column for tap in range(TAPS) for column in range(row - width + 1)]
    taps = weight.reshape(TAPS, len(offsets), channels, -1)
    # Slices of one: an index would copy the weight.
    kernels = [[taps[depth : depth + 1, tap : tap + 1] for tap in range(len(offsets))] for depth in range(TAPS)]
    if parity is not None:
        middle = [transform_taps(*each) for each in zip(*kernels, strict=True)]
        kernels = [kernels[0], [one for one, _ in middle], [two for _, two in middle], kernels[2]]
    views, outputs = padded.flatten(2, 3), taps.shape[-1]
    parts = []
    for start, end in blocks(height, row * outputs * weight.itemsize, frames.shape[-1]):
        rows = _Rows(views[:, :, start * row : (end + TAPS - 1) * row], offsets, (end - start) * row - (row - width))
        sums = [rows.add_frames(kernels, bias)] if parity is None else rows.add_pairs(kernels, bias, parity)
        parts.append([_frames(each, (end - start, row, width)) for each in sums])
    return _assemble(parts, parity or 0, length - TAPS + 1)


class _Rows(NamedTuple):
    """Some rows of padded frames as matrices, from which each tap in space takes `length` positions."""

    views: mx.array  # (B, T + 2, positions, I)
    offsets: Sequence[int]  # of the first position that each tap takes
    length: int

    def add(self, total: mx.array | None, views: mx.array, kernel: Sequence[mx.array]) -> mx.array:
        """Add the products of some frames with the taps in space of one kernel."""
        for offset, tap in zip(self.offsets, kernel, strict=True):
            view = views[:, :, offset : offset + self.length]
            total = view @ tap if total is None else mx.addmm(total, view, tap)
        assert total is not None
        return total

    def add_frames(self, kernels: _Kernels, bias: mx.array) -> mx.array:
        """(B, T, length, O), with a kernel for each depth."""
        total, time = bias, self.views.shape[1] - TAPS + 1
        for depth, kernel in enumerate(kernels):
            total = self.add(total, self.views[:, depth : depth + time], kernel)
        return total

    def add_pairs(self, kernels: _Kernels, bias: mx.array, parity: int) -> list[mx.array]:
        """The even results, and the odd ones, with the four kernels of a pair."""
        time = self.views.shape[1] - TAPS + 1
        pairs, evens, odds = (time + parity + 1) // 2, (time + 1 - parity) // 2, (time + parity) // 2

        def each_second(first: int, count: int) -> mx.array:
            return self.views[:, first : first + 2 * count - 1 : 2]

        # A pair sees four frames, of which the second and the third belong to both of its results.
        sums, differences = _cross(each_second(1 - parity, pairs), each_second(2 - parity, pairs))
        ahead, behind = self.add(bias, sums, kernels[1]), self.add(None, differences, kernels[2])
        totals, rests = _cross(behind, ahead)
        results = []
        if evens:
            first = each_second(parity, evens) - each_second(parity + 2, evens)
            results.append(self.add(totals[:, parity:], first, kernels[0]))
        if odds:
            last = each_second(3 - parity, odds) - each_second(1 - parity, odds)
            results.append(self.add(rests[:, :odds], last, kernels[3]))
        return results


# Not `shapeless`, as in `layers.activation`: such a kernel takes no input for contiguous.
@mx.compile
def transform_taps(before: mx.array, at: mx.array, behind: mx.array) -> Any:
    """The kernels of the middle two products of a pair, in float32. Those of the others are the outer taps."""
    before, at, behind = (each.astype(mx.float32) for each in (before, at, behind))
    return (before + at + behind) / 2, (before - at + behind) / 2


@mx.compile
def _cross(one: mx.array, two: mx.array) -> Any:
    return one + two, two - one


def _frames(sums: mx.array, shape: tuple[int, int, int]) -> mx.array:
    """(B, T, length, O) to (B, T, H, W, O), for (H, V, W), without the sums that belong to no window."""
    batch, time, length, outputs = sums.shape
    height, row, width = shape
    if row == width:
        return sums.reshape(batch, time, height, width, outputs)
    strides = (time * length * outputs, length * outputs, row * outputs, outputs, 1)
    return mx.as_strided(sums, (batch, time, height, width, outputs), strides)


def _assemble(parts: Sequence[Sequence[mx.array]], parity: int, time: int) -> mx.array:
    """The frames (B, T, H, W, O) of blocks of rows: of each all frames, or the even ones and the odd ones."""
    if len(parts[0]) == 1:
        return parts[0][0] if len(parts) == 1 else mx.concatenate([block[0] for block in parts], axis=2)
    rows = []
    for number in range(parity, parity + time):
        index = number // 2 - (parity if number % 2 == 0 else 0)
        rows += [block[number % 2][:, index : index + 1] for block in parts]
    joined = mx.concatenate([each.flatten(1, 2) for each in rows], axis=1)
    return joined.reshape(len(joined), time, -1, *joined.shape[2:])
