"""A batch of videos, each decoded by one rank alone. Only finished frames are exchanged."""

from collections.abc import Iterator

import mlx.core as mx
import numpy as np

from .time_limit import restart_time_limit


class BatchGather:
    """Brings the frames that each rank decodes to all ranks, chunk by chunk.

    The ranks decode videos of the same shape with the same plan, so their chunks have the same lengths. Nothing is
    exchanged while a network runs.

    Attributes:
        sent_bytes: bytes that this rank has sent.
    """

    def __init__(self, group: mx.distributed.Group) -> None:
        self._group = group
        self.sent_bytes = 0

    def gather(self, frames: Iterator[np.ndarray] | None) -> Iterator[list[np.ndarray]]:
        """Yield the next chunk of every rank, in order of the ranks.

        Args:
            frames: this rank's chunks (n, H, W, 3), uint8 or uint16; None if it has no video in this round.
        """
        while True:
            restart_time_limit()
            chunk = None if frames is None else next(frames, None)
            shape = self._agree(chunk)
            if not shape[0]:
                return
            height, width, channels, itemsize = shape[1:]
            if chunk is None:
                chunk = np.zeros((shape[0], height, width, channels), np.uint8 if itemsize == 1 else np.uint16)
            self.sent_bytes += chunk.nbytes * (self._group.size() - 1)
            gathered = np.array(mx.distributed.all_gather(mx.array(chunk)[None], group=self._group))
            yield list(gathered)

    def _agree(self, chunk: np.ndarray | None) -> list[int]:
        """The shape and the bytes per value of the next chunk, which idle ranks do not know; zeros at the end."""
        own = [0] * 5 if chunk is None else [*chunk.shape, chunk.itemsize]
        self.sent_bytes += 4 * len(own) * (self._group.size() - 1)
        return [int(value) for value in np.array(mx.distributed.all_max(mx.array(own, mx.int32), group=self._group))]
