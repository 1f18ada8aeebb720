"""Neighborhood attention in plain MLX: blocks of queries against their joint windows, in copies that blocks share.

MLX's CPU backend for x86 computes exponentials one at a time, which takes most of an attention's time. Here exp(x) is a
Taylor series at x / 2^n, squared n times, which the compiler vectorizes.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, reduce

import mlx.core as mx
import numpy as np

from ...backend.device import backend, is_cpu
from ...shapes import Grid
from ..layers.activation import expm1_series
from .neighborhood import BLOCKS, CALLS_UNDER_WAY, Block, Segment, calls, segments, shared_axis, shares

#: No score may be larger in magnitude: sums of thousands of exponentials then stay within float32.
LARGEST_SCORE = 60.0

_FEW_SQUARINGS, _SQUARINGS = 4, 6  # two kinds only, since a compiler makes each kernel when it is first used
_DOUBLINGS = 2  # of exp - 1, up to arguments of 1: with the 1, each squaring would double the error


def exponentials(scores: mx.array, bound: float) -> mx.array:
    """exp(scores), for scores of magnitude at most `bound`, which is at most `LARGEST_SCORE`."""
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
    """Starts the evaluation of results, and waits for all but the last few, so that their workspace is bounded."""

    def __init__(self) -> None:
        self._under_way: deque[mx.array] = deque()

    def add(self, result: mx.array) -> mx.array:
        mx.async_eval(result)
        self._under_way.append(result)
        if len(self._under_way) == CALLS_UNDER_WAY[backend()]:
            mx.eval(self._under_way.popleft())
        return result


#: Where the window of each query begins, along each axis.
WindowStarts = tuple[Sequence[int], Sequence[int], Sequence[int]]


def attend(queries: mx.array, keys_values: mx.array, starts: WindowStarts, kernel: Grid, bound: float) -> mx.array:
    """Attention of each query (B, T, H, W, heads, D) to its own window of the keys: (B, T, H, W, heads * D).

    `keys_values` are (B, T', H', W', 2, heads, D); no score exceeds `bound`. Results are evaluated here, some blocks at
    a time: a graph of all would hold the copies of all windows at once.
    """
    heads, depth = queries.shape[4:]
    by_products = is_cpu() and bound <= LARGEST_SCORE
    if by_products:
        keys_values = keys_values.astype(mx.float32)  # once, and not once for each block that sees them
    axis, queue = shared_axis(queries.shape[1:4]), Queue()

    def compute(block: Block) -> mx.array:
        return _for_all(shares(backend(), heads * depth, block, axis), compute_share)

    def compute_share(share: Block) -> mx.array:
        copies = _copies(keys_values, share, axis)
        mask = _mask(tuple((each.window, each.offsets) for each in share), kernel, axis)
        if by_products:
            method = partial(_by_products, bound=bound, mask=None if mask is None else mask.astype(mx.float32))
        else:
            method = partial(_fused, mask=mask)

        def call(part: Block) -> mx.array:
            first = part[axis].key_start - share[axis].key_start
            windows = _windows(copies, part, axis, first)
            return queue.add(_merge(method(_split(queries, part, axis), *windows), part, axis))

        return _for_all(calls(backend(), heads, share), call)

    axes = [segments(each, width, BLOCKS[backend()]) for each, width in zip(starts, kernel, strict=True)]
    return _for_all(axes, compute)


def _for_all(axes: Sequence[Sequence[Segment]], make: Callable[[Block], mx.array]) -> mx.array:
    """What `make` returns for all combinations of segments, (B, T, H, W, C) each, joined."""
    planes = []
    for time in axes[0]:
        rows = [_join([make((time, row, column)) for column in axes[2]], 3) for row in axes[1]]
        planes.append(_join(rows, 2))
    return _join(planes, 1)


def _join(parts: list[mx.array], axis: int) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=axis)


def _order(axis: int) -> tuple[int, ...]:
    """The order in which the blocks of (B, nt, t, nh, h, nw, w, heads, D) lie one behind the other along `axis`."""
    first, second = _others(axis)
    return (0, 2 * first + 1, 2 * second + 1, 2 * axis + 1, 7, 2, 4, 6, 8)


def _others(axis: int) -> tuple[int, int]:
    first, second = (other for other in range(3) if other != axis)
    return first, second


def _split(queries: mx.array, block: Block, axis: int) -> mx.array:
    """The queries of each block, (B, blocks, heads, queries, D)."""
    batch, *_, heads, depth = queries.shape
    time, rows, columns = (slice(each.start, each.end) for each in block)
    sizes = [extent for each in block for extent in (each.blocks, each.size)]
    own = queries[:, time, rows, columns].reshape(batch, *sizes, heads, depth).transpose(_order(axis))
    return own.reshape(batch, block[axis].blocks, heads, -1, depth)


def _merge(results: mx.array, block: Block, axis: int) -> mx.array:
    """The results of all blocks, (B, blocks, heads, queries, D), as (B, T, H, W, heads * D)."""
    batch, count, heads, _, depth = results.shape
    order = _order(axis)
    t, h, w = (each.size for each in block)
    placed = results.reshape(batch, 1, 1, count, heads, t, h, w, depth).transpose([order.index(at) for at in range(9)])
    return placed.reshape(batch, *(each.blocks * each.size for each in block), heads * depth)


def _copies(keys_values: mx.array, block: Block, axis: int) -> mx.array:
    """A copy of the keys and values of some blocks, (2, B, heads, along `axis`, others, D)."""
    batch, *grid, _, heads, depth = keys_values.shape
    order = (axis, *_others(axis))
    shape = (2, batch, heads, *(block[each].keys for each in order))
    strides = [math.prod(keys_values.shape[after + 1 : -1]) for after in range(keys_values.ndim - 1)]
    rows = _rows(shape, (strides[4], strides[0], strides[5], *(strides[each + 1] for each in order)))
    first = sum(each.key_start * stride for each, stride in zip(block, strides[1:4], strict=True))
    # Rows are taken, since MLX's CPU backend copies a strided view one element at a time.
    return keys_values.reshape(-1, depth)[mx.array(rows + first)]


@lru_cache(maxsize=64)
def _rows(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """The index of each row of a strided view, (..., rows of the last two axes)."""
    rows: np.ndarray = np.zeros((), np.int32)
    for extent, stride in zip(shape, strides, strict=True):
        rows = rows[..., None] + np.arange(extent, dtype=np.int32) * stride
    return rows.reshape(*shape[:-2], -1)


def _windows(copies: mx.array, block: Block, axis: int, first: int) -> tuple[mx.array, mx.array]:
    """Keys and values of the joint window of each block, (B, blocks, heads, keys, D) each.

    They are views of copies, from index `first` of their axis.
    """
    _, batch, heads, length, beside, depth = copies.shape
    along, row = block[axis], beside * depth
    of_head, of_item = length * row, heads * length * row
    shape = (batch, along.blocks, heads, along.window * beside, depth)
    strides = (of_item, along.size * row, of_head, depth, 1)
    keys, values = (mx.as_strided(copies, shape, strides, first * row + index * batch * of_item) for index in (0, 1))
    return keys, values


def _fused(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | None) -> mx.array:
    """The attention by MLX's own kernels, of (B, blocks, heads, ...)."""
    merged = (each.flatten(0, 1) for each in (queries, keys, values))
    seen = mx.fast.scaled_dot_product_attention(*merged, scale=queries.shape[-1] ** -0.5, mask=mask)
    return seen.reshape(queries.shape)


def _by_products(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | None, bound: float) -> mx.array:
    """The attention as matrix products, in float32, for the CPU, which has no fused attention.

    The scores are bounded, so that no largest one has to be found and subtracted.
    """
    dtype = queries.dtype
    queries = queries.astype(mx.float32)
    weights = exponentials((queries * queries.shape[-1] ** -0.5) @ keys.swapaxes(-1, -2), bound)
    if mask is not None:
        weights = weights * mask
    total = weights @ mx.ones((keys.shape[-2], 1))  # a product, since MLX adds along the last axis one by one
    return ((weights @ values) / total).astype(dtype)


def _mask(axes: tuple[tuple[int, tuple[int, ...]], ...], kernel: Grid, axis: int) -> mx.array | None:
    """(queries, keys) of a block, whose keys lie along `axis` first: whether a key is in a query's own window.

    None if all are.
    """
    order = (axis, *_others(axis))
    parts = []
    for index, ((window, offsets), width) in enumerate(zip(axes, kernel, strict=True)):
        positions = np.arange(window) - np.array(offsets)[:, None]
        shape = [1] * 6
        shape[index], shape[3 + order.index(index)] = positions.shape
        seen = (positions >= 0) & (positions < width)
        if not seen.all():
            parts.append(mx.array(seen.reshape(shape)))
    if not parts:
        return None
    sizes = [len(offsets) for _, offsets in axes] + [axes[each][0] for each in order]
    whole = mx.broadcast_to(reduce(mx.logical_and, parts), sizes)
    return whole.reshape(math.prod(sizes[:3]), math.prod(sizes[3:]))
