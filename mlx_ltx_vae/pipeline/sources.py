"""Provides a network's input in pieces along the axis of a stream: the whole input, or a batch of tiles."""

from collections.abc import Iterator, Sequence
from itertools import tee
from typing import Protocol

import mlx.core as mx
import numpy as np

from ..streaming.axis import Axis
from ..tiling.intervals import Interval

#: Intervals of time, height and width.
Box = tuple[Interval, Interval, Interval]


class Source(Protocol):
    """The input of a run."""

    @property
    def batch(self) -> int:
        """The batch size."""

    def pieces(self, axis: Axis, chunk: int) -> Iterator[mx.array]:
        """Yield the whole input in order along `axis`, `chunk` positions at a time: (B, T, H, W, C) each."""

    def tile_pieces(self, batches: Sequence[Sequence[Box]], chunk: int) -> list[Iterator[mx.array]]:
        """For each batch of boxes of equal shape, an iterator of its pieces in order along time.

        All items of the first box come first in a piece. The iterators are advanced in turns.
        """


def crop_space(frames: mx.array | np.ndarray, boxes: Sequence[Box]) -> mx.array:
    """Crop (B, n, H, W, C) to the rows and columns of some boxes, as a batch with all items of the first box first."""
    return mx.concatenate([mx.array(frames[:, :, rows.as_slice, columns.as_slice]) for _, rows, columns in boxes])


def crop_pieces(pieces: Iterator[mx.array], batches: Sequence[Sequence[Box]]) -> list[Iterator[mx.array]]:
    """`Source.tile_pieces` from the pieces of the whole input, for boxes that span it in time."""

    def crop(copy: Iterator[mx.array], boxes: Sequence[Box]) -> Iterator[mx.array]:
        for piece in copy:
            yield crop_space(piece, boxes)

    copies = tee(pieces, len(batches))
    return [crop(copy, boxes) for copy, boxes in zip(copies, batches, strict=True)]
