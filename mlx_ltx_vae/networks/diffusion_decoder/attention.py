"""Neighborhood attention in plain MLX, of blocks of queries with their joint windows; and the rotary embedding.

MLX's CPU backend for x86 computes exponentials one at a time, which takes most of an attention's time. Here exp(x) is a
Taylor series at x / 2^n, squared n times, which the compiler vectorizes.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, reduce
from typing import Any

import mlx.core as mx
import numpy as np

from ...backend.device import backend, is_cpu
from ...shapes import Grid
from ..layers import expm1_series
from .neighborhood import CALLS_UNDER_WAY, Block, Nested, Segment, Share, Times, WindowStarts, layout

_MAX_TABLES = 32  # of each kind in a stream

#: No score may be larger in magnitude: sums of thousands of exponentials then stay within float32.
LARGEST_SCORE = 60.0

_FEW_SQUARINGS, _SQUARINGS = 4, 6  # two kinds only, since a compiler makes each kernel when it is first used
_DOUBLINGS = 2  # of exp - 1, up to arguments of 1: with the 1, each squaring would double the error


def exponentials(scores: mx.array, bound: float) -> mx.array:
    """Return exp(scores), for scores of magnitude at most `bound`, which is at most `LARGEST_SCORE`."""
    squarings = _FEW_SQUARINGS if bound <= 2**_FEW_SQUARINGS else _SQUARINGS
    return _squared(squarings)(_series(squarings + _DOUBLINGS)(scores))


# Two kernels, because MLX fuses at most 11 operations in depth.
@lru_cache
def _series(halvings: int) -> Callable[[mx.array], mx.array]:
    return mx.compile(lambda x: expm1_series(x, halvings))


@lru_cache
def _squared(squarings: int) -> Callable[[mx.array], mx.array]:
    def compute(power: mx.array) -> mx.array:
        for _ in range(_DOUBLINGS):
            power = power * (2 + power)
        result = 1 + power
        for _ in range(squarings):
            result = result * result
        return result

    return mx.compile(compute)


class Queue:
    """Queue that starts the evaluation of results, and waits for all but the latest, so that workspace is bounded."""

    def __init__(self) -> None:
        self._under_way: deque[mx.array] = deque()

    def add(self, result: mx.array) -> mx.array:
        mx.async_eval(result)
        self._under_way.append(result)
        if len(self._under_way) == CALLS_UNDER_WAY[backend()]:
            mx.eval(self._under_way.popleft())
        return result


class Tables:
    """Index arrays, masks and rotations of a stream, on the device, for all of its layers and steps.

    Most steps differ only in their start, so that the host has nothing to compute for them.
    """

    def __init__(self) -> None:
        self.rows = lru_cache(_MAX_TABLES)(_rows)
        self.mask = lru_cache(_MAX_TABLES)(_mask)
        self.turns = lru_cache(_MAX_TABLES)(make_turns)


def attend(
    queries: mx.array,
    keys_values: tuple[mx.array, mx.array],
    starts: WindowStarts,
    kernel: Grid,
    bound: float,
    tables: Tables,
    times: Times = (),
) -> mx.array:
    """Return the attention of queries (B, T, H, W, heads, D) to their windows of keys, as (B, T, H, W, heads * D).

    Keys and values are (B, T', H', W', heads * D) each, and no score exceeds `bound`. The last frames of both are the
    keyframe planes, which have the `times`. Results are evaluated here, some blocks at a time: a graph of all blocks
    would hold the copies of all windows at once.
    """
    batch, *_, heads, depth = queries.shape
    by_products = is_cpu() and bound <= LARGEST_SCORE
    # Convert them once, and not for each block.
    sources = [array.astype(mx.float32) if by_products else array for array in keys_values]
    strides = [math.prod(sources[0].shape[after + 1 : -1]) * heads for after in range(4)]
    flat = [source.reshape(-1, depth) for source in sources]
    time, height, width = keys_values[0].shape[1:4]
    axis, blocks = layout(backend(), starts, (time, height, width), kernel, times, heads * depth, heads)
    queue = Queue()

    def compute(share: Share) -> mx.array:
        block = share.block
        first_row = sum(segment.key_start * stride for segment, stride in zip(block, strides[1:], strict=True))
        sizes = tuple((segment.blocks, segment.size, segment.window) for segment in block)
        rows = tables.rows(sizes, axis, batch, heads, tuple(strides), bool(times))
        if times:
            rows = _at_frames(rows, block, axis, batch, strides[1])
        # Rows are taken, since MLX's CPU backend copies a strided view one element at a time.
        copies = [mx.take(array[first_row:] if first_row else array, rows, axis=0) for array in flat]
        # A CPU computes few scores at a time, so its masks are large in comparison and are not kept.
        make_mask = _mask if by_products else tables.mask
        mask = make_mask(
            tuple((segment.window, segment.offsets, segment.visible) for segment in block),
            kernel,
            axis,
            as_float=by_products,
        )
        attention = partial(_by_products, bound=bound, mask=mask) if by_products else partial(_fused, mask=mask)

        def call(part: Segment) -> mx.array:
            windows = (_windows(copy, block, part, axis) for copy in copies)
            part_block = _replace(block, axis, part)
            return queue.add(_merge(attention(_split(queries, part_block, axis), *windows), part_block, axis, batch))

        return _join([call(part) for part in share.calls], axis + 1)

    return _join_all(blocks, lambda shares: _join_all(shares, compute))


def _join_all(nested: Nested, make: Callable[[Any], mx.array]) -> mx.array:
    """Return the results (B, T, H, W, C) of `make` for all items, joined along the three axes."""
    return _join([_join([_join([make(item) for item in row], 3) for row in plane], 2) for plane in nested], 1)


def _join(parts: Sequence[mx.array], axis: int) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(list(parts), axis=axis)


def _replace(block: Block, axis: int, part: Segment) -> Block:
    time, rows, columns = (part if index == axis else segment for index, segment in enumerate(block))
    return time, rows, columns


@lru_cache
def _order(axis: int) -> tuple[int, ...]:
    """Return the order of the axes (B, nt, t, nh, h, nw, w, heads, D) for `_split`."""
    axis1, axis2 = _other_axes(axis)
    return (2 * axis + 1, 0, 2 * axis1 + 1, 2 * axis2 + 1, 7, 2, 4, 6, 8)


@lru_cache
def _inverse(axis: int) -> tuple[int, ...]:
    return tuple(_order(axis).index(i) for i in range(9))


def _other_axes(axis: int) -> tuple[int, int]:
    axis1, axis2 = (i for i in range(3) if i != axis)
    return axis1, axis2


def _split(queries: mx.array, block: Block, axis: int) -> mx.array:
    """Return the queries of each block, (blocks in a row, B * rows * heads, queries, D)."""
    batch, *_, heads, depth = queries.shape
    time, rows, columns = (slice(segment.start, segment.end) for segment in block)
    sizes = [extent for segment in block for extent in (segment.blocks, segment.size)]
    blocks = queries[:, time, rows, columns].reshape(batch, *sizes, heads, depth).transpose(_order(axis))
    return blocks.reshape(block[axis].blocks, -1, math.prod(segment.size for segment in block), depth)


def _merge(results: mx.array, block: Block, axis: int, batch: int) -> mx.array:
    """Return the results of all blocks, which have the layout of `_split`, as (B, T, H, W, heads * D)."""
    depth, (axis1, axis2) = results.shape[-1], _other_axes(axis)
    counts, sizes = [segment.blocks for segment in block], [segment.size for segment in block]
    parts = results.reshape(counts[axis], batch, counts[axis1], counts[axis2], -1, *sizes, depth)
    return parts.transpose(_inverse(axis)).reshape(batch, *(segment.blocks * segment.size for segment in block), -1)


def _rows(
    sizes: tuple[Grid, Grid, Grid],
    axis: int,
    batch: int,
    heads: int,
    strides: tuple[int, int, int, int],
    has_planes: bool,
) -> mx.array:
    """Return the index of each row of the copies of keys or values.

    Rows are ordered (B, blocks of the other axes, heads, positions along `axis`, positions along the other axes).

    Args:
        sizes: for each axis the number of blocks, and the queries and keys of a block.
        strides: strides of the batch, time, height and width, in rows.
        has_planes: `_at_frames` adds the frames.
    """
    if has_planes:
        strides = strides[0], 0, *strides[2:]
    other_axes = _other_axes(axis)
    blocks = [(sizes[i][0], sizes[i][1] * strides[i + 1]) for i in other_axes]
    windows = [(sizes[i][2], strides[i + 1]) for i in other_axes]
    count, size, window = sizes[axis]
    along = (window + (count - 1) * size, strides[axis + 1])
    rows: np.ndarray = np.zeros((), np.int32)
    for extent, stride in ((batch, strides[0]), *blocks, (heads, 1), along, *windows):
        rows = rows[..., None] + np.arange(extent, dtype=np.int32) * stride
    return mx.array(rows.reshape(-1))


def _at_frames(rows: mx.array, block: Block, axis: int, batch: int, stride: int) -> mx.array:
    """Move rows of the first frame, as returned by `_rows`, to the frames of each block."""
    frames, (_, axis2) = np.array(block[0].frames, np.int32), _other_axes(axis)
    blocks, window = frames.shape
    rows = rows.reshape(batch, blocks, -1, window, block[axis2].window)
    return (rows + mx.array(stride * frames).reshape(1, blocks, 1, window, 1)).reshape(-1)


def _windows(copies: mx.array, block: Block, part: Segment, axis: int) -> mx.array:
    """Return the keys or values of the joint window of each block, (blocks in a row, B * rows * heads, keys, D).

    They are a view of the copies, for a `part` of the blocks along the axis.
    """
    depth, segment = copies.shape[-1], block[axis]
    row = depth * math.prod(block[i].window for i in _other_axes(axis))
    length = segment.keys * row
    shape = (part.blocks, copies.size // length, part.window * row // depth, depth)
    strides = (part.size * row, length, depth, 1)
    return mx.as_strided(copies, shape, strides, (part.key_start - segment.key_start) * row)


def _fused(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | None) -> mx.array:
    """Compute the attention with MLX's own kernels."""
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=queries.shape[-1] ** -0.5, mask=mask)


def _by_products(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | None, bound: float) -> mx.array:
    """Compute the attention as matrix products, in float32, for the CPU, which has no fused attention.

    The scores are bounded, so the largest score need not be subtracted.
    """
    dtype = queries.dtype
    queries = queries.astype(mx.float32)
    weights = exponentials((queries * queries.shape[-1] ** -0.5) @ keys.swapaxes(-1, -2), bound)
    if mask is not None:
        weights = weights * mask
    total = weights @ mx.ones((keys.shape[-2], 1))  # a product, since MLX adds along the last axis one by one
    return ((weights @ values) / total).astype(dtype)


def _mask(axes: tuple[tuple[Any, ...], ...], kernel: Grid, axis: int, *, as_float: bool) -> mx.array | None:
    """Return the mask (queries, keys) of a block, whose keys are ordered along `axis` first, then the other axes.

    It tells whether a query sees a key, and is `None` if all queries see all keys. `axes` are the window, the offsets
    and the visible keys of each segment.
    """
    order = (axis, *_other_axes(axis))
    parts = []
    for index, ((window, offsets, visible), width) in enumerate(zip(axes, kernel, strict=True)):
        positions = np.arange(window) - np.array(offsets)[:, None]
        table = np.array(visible) if visible else (positions >= 0) & (positions < width)
        shape = [1] * 6
        shape[index], shape[3 + order.index(index)] = table.shape
        parts.append(table.reshape(shape))
    joint = reduce(np.logical_and, parts)
    if joint.all():
        return None
    queries = math.prod(joint.shape[:3])
    return mx.array(joint.reshape(queries, -1).astype(np.float32 if as_float else np.bool_))


_BASE = 10000.0

#: Factors of the two `_parts` of pairs, in float32 along one axis of (B, T, H, W, heads, D / 2, 2).
Turns = tuple[mx.array, mx.array]


def rotate(x: mx.array, start: Grid, turns: Callable[..., Turns], times: tuple[float, ...] = ()) -> mx.array:
    """Rotate the pairs of neighboring channels of tokens (B, T, H, W, heads, D), whose positions begin at `start`.

    `turns` is `make_turns`, or caches its results. The last frames have the positions `times`.
    """
    axes = [
        turns(axis, start[axis], x.shape[axis + 1], x.shape[-1], () if axis else times) for axis in range(len(start))
    ]
    one, other = zip(*axes, strict=True)
    return _turn(*_parts(x.reshape(*x.shape[:-1], -1, 2)), *one, *other).reshape(x.shape)


@mx.compile
def _turn(one: mx.array, other: mx.array, *tables: mx.array) -> mx.array:
    """Sum two products in one kernel. A pair rotates along one axis, and the tables of the other axes are 0 there."""
    a1, a2, a3, b1, b2, b3 = tables
    wide = one.astype(mx.float32) * (a1 + a2 + a3) + other.astype(mx.float32) * (b1 + b2 + b3)
    return wide.astype(one.dtype)


def _parts(pairs: mx.array) -> tuple[mx.array, mx.array]:
    """Return for each channel of (..., 2) the two channels of its pair: first and second, or itself and the other."""
    if not is_cpu():  # kernels of GPUs read views without a copy (views with negative strides only in new versions)
        return pairs[..., :1], pairs[..., 1:]
    # A CPU reads such views one element at a time, and exchanges the halves of integers at once.
    wide = mx.contiguous(pairs.astype(mx.float32))
    return pairs, _exchange_halves(wide.view(mx.uint64)).view(mx.float32)


@mx.compile
def _exchange_halves(x: mx.array) -> mx.array:
    return (x << 32) | (x >> 32)


def make_turns(axis: int, start: int, length: int, depth: int, times: tuple[float, ...] = ()) -> Turns:
    """Return the rotations of `length` positions of one axis, from `start` on, for heads of `depth` channels.

    The last positions are `times`. The angles are computed in float64: in float32 they would be coarse for a long clip.
    """
    shares = _shares(depth)
    frequencies = _BASE ** -(np.arange(0, shares[axis], 2) / max(1, shares[axis]))
    positions = np.append(np.arange(start, start + length - len(times)), times)
    angles = positions[:, None] * frequencies
    cosines, sines = np.cos(angles), np.sin(angles)
    rows = ((cosines, cosines), (-sines, sines)) if is_cpu() else ((cosines, sines), (-sines, cosines))
    tables = np.zeros((2, length, depth // 2, 2), np.float32)
    tables[:, :, sum(shares[:axis]) // 2 : sum(shares[: axis + 1]) // 2] = [np.stack(row, axis=-1) for row in rows]
    shape = [1, 1, 1, 1, 1, depth // 2, 2]
    shape[axis + 1] = length
    return mx.array(tables[0].reshape(shape)), mx.array(tables[1].reshape(shape))


@lru_cache
def _shares(depth: int) -> Grid:
    """Return the channels of a head that rotate with time, height and width: about 1/4, 3/8 and 3/8 of them."""
    time = depth // 4 // 2 * 2
    side = (depth - time) // 2
    if side % 2:
        time, side = time - 2, side + 1
    return time, side, side
