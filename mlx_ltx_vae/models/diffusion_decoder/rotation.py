"""The rotary embedding: pairs of channels of queries and keys, rotated by their positions along the three axes."""

from collections.abc import Callable
from functools import lru_cache

import mlx.core as mx
import numpy as np

from ...backend.device import is_cpu
from ...shapes import Grid

_BASE = 10000.0

#: What the two `_parts` of pairs are multiplied by, float32 along one axis of (B, T, H, W, heads, D / 2, 2).
Turns = tuple[mx.array, mx.array]


def rotate(x: mx.array, first: Grid, turns: Callable[..., Turns], times: tuple[float, ...] = ()) -> mx.array:
    """Rotate the pairs of neighboring channels (B, T, H, W, heads, D); `first` is the position of the first.

    `turns` is `make_turns`, or remembers what that has returned. The last frames have the positions `times`.
    """
    axes = [
        turns(axis, first[axis], x.shape[axis + 1], x.shape[-1], () if axis else times) for axis in range(len(first))
    ]
    one, other = zip(*axes, strict=True)
    return _turn(*_parts(x.reshape(*x.shape[:-1], -1, 2)), *one, *other).reshape(x.shape)


@mx.compile
def _turn(one: mx.array, other: mx.array, *tables: mx.array) -> mx.array:
    """A sum of two products, in one kernel. A pair rotates along one axis; the tables of the others are 0 there."""
    a1, a2, a3, b1, b2, b3 = tables
    wide = one.astype(mx.float32) * (a1 + a2 + a3) + other.astype(mx.float32) * (b1 + b2 + b3)
    return wide.astype(one.dtype)


def _parts(pairs: mx.array) -> tuple[mx.array, mx.array]:
    """For each channel of (..., 2), the two channels of its pair: the first and the second, or itself and the other."""
    if not is_cpu():  # a kernel of a GPU reads views as they are (those with negative strides only in newer versions)
        return pairs[..., :1], pairs[..., 1:]
    # A CPU reads such views one element at a time, and exchanges the halves of integers at once.
    wide = mx.contiguous(pairs.astype(mx.float32))
    return pairs, _exchange_halves(wide.view(mx.uint64)).view(mx.float32)


@mx.compile
def _exchange_halves(x: mx.array) -> mx.array:
    return (x << 32) | (x >> 32)


def make_turns(axis: int, first: int, length: int, depth: int, others: tuple[float, ...] = ()) -> Turns:
    """Those of `length` positions of one axis, from `first` on, for heads of `depth` channels; the last are `others`.

    The angles are computed in float64: of a long clip, those of float32 would be coarse.
    """
    shares = _shares(depth)
    frequencies = _BASE ** -(np.arange(0, shares[axis], 2) / max(1, shares[axis]))
    positions = np.append(np.arange(first, first + length - len(others)), others)
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
    """The channels of a head that rotate with time, height and width: a quarter, and half of the rest each."""
    time = depth // 4 // 2 * 2
    rest = (depth - time) // 2
    if rest % 2:
        time, rest = time - 2, rest + 1
    return time, rest, rest
