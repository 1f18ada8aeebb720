"""The iterator that a decode returns to its caller."""

import threading
from collections.abc import Generator, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from ..backend.device import explained_device_errors
from ..errors import DecodeCancelled
from .postprocess import FrameChunk

if TYPE_CHECKING:
    from ..distributed.row_bands import RowBands


class Cancellation:
    """A flag that any thread sets, and that a run checks between its steps."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def request(self) -> None:
        self._event.set()

    def check(self) -> None:
        if self._event.is_set():
            raise DecodeCancelled("the decode was cancelled.")


class DecodeStream(Iterator[FrameChunk]):
    """The chunks of one decode, in order. Usable as a context manager, which closes it.

    One thread at a time takes chunks; `cancel` may be called from any thread at any time.

    Args:
        bands: what exchanges data with other ranks. Empty without other ranks, and before the first latents arrive.
    """

    def __init__(
        self,
        chunks: Generator[FrameChunk, None, None],
        cancellation: Cancellation,
        bands: "Sequence[RowBands]" = (),
    ) -> None:
        self._chunks = chunks
        self._cancellation = cancellation
        self._bands = bands
        self._running = threading.Lock()

    @property
    def sent_bytes(self) -> int:
        """Bytes that this process has sent to other ranks so far."""
        return sum(bands.sent_bytes for bands in self._bands)

    def __next__(self) -> FrameChunk:
        with self._running:
            self._cancellation.check()
            with explained_device_errors():
                return next(self._chunks)

    def close(self) -> None:
        """End the decode and free its memory; later calls of `next` raise StopIteration.

        If a chunk is being computed, in another thread, this is `cancel`.
        """
        if self._running.acquire(blocking=False):
            try:
                self._chunks.close()
            finally:
                self._running.release()
        else:
            self._cancellation.request()

    def cancel(self) -> None:
        """End the decode from any thread, without waiting.

        The thread that takes chunks gets `DecodeCancelled`, at the end of the running step or at its next call, so that
        a video that it writes does not count as whole. Memory is freed then, or now if no chunk is being computed.
        """
        self._cancellation.request()
        self.close()

    def __enter__(self) -> "DecodeStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
