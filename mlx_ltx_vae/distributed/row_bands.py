"""Bands of a picture, one per rank of a group, that exchange their edge rows."""

from collections.abc import Sequence

import mlx.core as mx

from ..backend.mlx_utils import take
from ..streaming.axis import Axis
from .agreement import restart_time_limit


class RowBands:
    """This rank's view of the bands, of `rows` latent rows each from top to bottom: the `Neighbors` of its stream.

    All ranks of the group must make the same calls in the same order. `sent_bytes` are those of this rank.
    """

    axis = Axis.HEIGHT

    def __init__(self, group: mx.distributed.Group, rows: Sequence[int]) -> None:
        self._group = group
        self.rank: int = group.rank()
        self.rows = tuple(rows)
        self.sent_bytes = 0

    def exchange(self, frames: mx.array, before: int, after: int) -> tuple[mx.array | None, mx.array | None]:
        # Ranks meet in pairs, first those of 0 and 1, 2 and 3 and so on, then the others. In a pair the upper band
        # sends first. No two ranks ever wait for each other, however large the rows are.
        restart_time_limit()
        above = below = None
        for parity in (0, 1):
            if self.rank % 2 == parity:
                if self.rank + 1 < len(self.rows):
                    height = frames.shape[Axis.HEIGHT]
                    self._send(take(frames, Axis.HEIGHT, height - before, height), self.rank + 1)
                    below = self._receive(frames, after, self.rank + 1)
            elif self.rank > 0:
                above = self._receive(frames, before, self.rank - 1)
                self._send(take(frames, Axis.HEIGHT, 0, after), self.rank - 1)
        return above, below

    def gather(self, frames: mx.array) -> mx.array:
        restart_time_limit()
        batch, time, height, width, channels = frames.shape
        scale = height // self.rows[self.rank]
        missing = (max(self.rows) - self.rows[self.rank]) * scale
        rows = frames.transpose(2, 0, 1, 3, 4)
        if missing:
            rows = mx.concatenate([rows, mx.zeros((missing, *rows.shape[1:]), rows.dtype)])
        self.sent_bytes += rows.nbytes * (len(self.rows) - 1)
        gathered = mx.distributed.all_gather(rows, group=self._group)
        gathered = gathered.reshape(len(self.rows), -1, batch, time, width, channels)
        parts = [gathered[rank, : count * scale] for rank, count in enumerate(self.rows)]
        joined = mx.concatenate(parts).transpose(1, 2, 0, 3, 4)
        mx.async_eval(joined)  # at once, also where nobody looks at it: the other ranks wait for this one
        return joined

    def all_true(self, flags: mx.array) -> mx.array:
        """Element by element, whether a flag is true on all ranks. Starts the exchange."""
        values = flags.astype(mx.int32)
        self.sent_bytes += values.nbytes * (len(self.rows) - 1)
        result = mx.distributed.all_min(values, group=self._group).astype(mx.bool_)
        mx.async_eval(result)
        return result

    def _send(self, rows: mx.array, rank: int) -> None:
        if rows.size:
            rows = mx.contiguous(rows)
            # Evaluated one by one: the order of evaluation within one graph is up to MLX.
            mx.async_eval(mx.distributed.send(rows, rank, group=self._group))
            self.sent_bytes += rows.nbytes

    def _receive(self, frames: mx.array, rows: int, rank: int) -> mx.array | None:
        if not rows:
            return None
        batch, time, _, width, channels = frames.shape
        received = mx.distributed.recv((batch, time, rows, width, channels), frames.dtype, rank, group=self._group)
        mx.async_eval(received)
        return received
