"""Provides a network's input in pieces along the axis of a stream: the whole input, or a batch of tiles."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import mlx.core as mx

from ..streaming.axis import Axis
from ..streaming.window import take
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


class LatentSource:
    """Latents as the input of a decoder.

    Args:
        latents: (B, T, H, W, C), prepared for the decoder's first stage.
    """

    def __init__(self, latents: mx.array) -> None:
        self._latents = latents
        self.batch: int = latents.shape[0]

    def pieces(self, axis: Axis, chunk: int) -> Iterator[mx.array]:
        """See `Source`. Pieces have `chunk` latent positions."""
        length = self._latents.shape[axis]
        for start in range(0, length, chunk):
            yield take(self._latents, axis, start, min(start + chunk, length))

    def tile_pieces(self, batches: Sequence[Sequence[Box]], chunk: int) -> list[Iterator[mx.array]]:
        """See `Source`. Pieces have `chunk` latent frames."""
        crops = (mx.concatenate([crop(self._latents, box) for box in boxes]) for boxes in batches)
        return [LatentSource(latents).pieces(Axis.TIME, chunk) for latents in crops]


def crop(frames: mx.array, box: Box) -> mx.array:
    """Crop (B, T, H, W, C) to a box."""
    time, rows, columns = box
    return frames[:, time.as_slice, rows.as_slice, columns.as_slice]
