"""What enters a network, piece by piece along the axis of a stream: whole, or the boxes of some tiles as a batch."""

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
        """Items of the batch."""

    def pieces(self, axis: Axis, chunk: int) -> Iterator[mx.array]:
        """All of it, (B, T, H, W, C) each, in order along `axis`, `chunk` positions at a time."""

    def tile_pieces(self, batches: Sequence[Sequence[Box]], chunk: int) -> list[Iterator[mx.array]]:
        """Per batch of boxes of one shape, its pieces in order along time, with all items of the first box in front.

        The iterators are advanced in turns.
        """


class LatentSource:
    """Latents that enter a decoder.

    Args:
        latents: (B, T, H, W, C), prepared for its first stage.
    """

    def __init__(self, latents: mx.array) -> None:
        self._latents = latents
        self.batch: int = latents.shape[0]

    def pieces(self, axis: Axis, chunk: int) -> Iterator[mx.array]:
        """`chunk` latent positions each."""
        length = self._latents.shape[axis]
        for start in range(0, length, chunk):
            yield take(self._latents, axis, start, min(start + chunk, length))

    def tile_pieces(self, batches: Sequence[Sequence[Box]], chunk: int) -> list[Iterator[mx.array]]:
        """`chunk` latent frames each."""
        crops = (mx.concatenate([crop(self._latents, box) for box in boxes]) for boxes in batches)
        return [LatentSource(latents).pieces(Axis.TIME, chunk) for latents in crops]


def crop(frames: mx.array, box: Box) -> mx.array:
    """A box of (B, T, H, W, C)."""
    time, rows, columns = box
    return frames[:, time.as_slice, rows.as_slice, columns.as_slice]
