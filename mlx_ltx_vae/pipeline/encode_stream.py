"""The iterator that an encode returns to its caller."""

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

import mlx.core as mx

if TYPE_CHECKING:
    from ..distributed.row_bands import RowBands


class EncodeStream(Iterator[mx.array]):
    """The latents of one encode, (B, C, n, H', W') each, in order along time.

    Args:
        bands: what exchanges data with other ranks. Empty without other ranks, and before the first frames arrive.
    """

    def __init__(self, latents: Generator[mx.array, None, None], bands: "Sequence[RowBands]" = ()) -> None:
        self._latents = latents
        self._bands = bands

    @property
    def sent_bytes(self) -> int:
        """Bytes that this process has sent to other ranks so far."""
        return sum(bands.sent_bytes for bands in self._bands)

    def __next__(self) -> mx.array:
        return next(self._latents)

    def close(self) -> None:
        """End the encode and free its memory; later calls of `next` raise StopIteration."""
        self._latents.close()
