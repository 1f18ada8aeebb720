"""The chunks of one decode, which any thread may cancel."""

import threading
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from ..backend.device import explained_device_errors
from ..errors import DecodeCancelled

Chunk = TypeVar("Chunk")
StreamT = TypeVar("StreamT", bound="ChunkStream")


class ChunkStream(Iterator[Chunk], AbstractContextManager["ChunkStream[Chunk]"], Generic[Chunk]):
    """The chunks of one decode, in order. Usable as a context manager, which closes it.

    One thread at a time takes chunks; `cancel` may be called from any thread at any time. `next` is a `ValueError`
    while a chunk is being computed, as that of a generator: the latents may come from an iterator that uses the stream.
    """

    def __init__(self, chunks: Generator[Chunk, None, None], cancelled: threading.Event) -> None:
        self._chunks, self._cancelled = chunks, cancelled
        self._running = threading.Lock()
        self._is_computing = False

    def __next__(self) -> Chunk:
        check_cancelled(self._cancelled)
        if self._is_computing:
            raise ValueError("the stream is already computing a chunk; take the next one when that is done.")
        with self._running:
            check_cancelled(self._cancelled)
            self._is_computing = True
            try:
                with explained_device_errors():
                    return next(self._chunks)
            finally:
                self._is_computing = False

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
            self._cancelled.set()

    def cancel(self) -> None:
        """End the decode from any thread, without waiting.

        The thread that takes chunks gets `DecodeCancelled`, at the end of the running step or at its next call, so that
        a file that it writes does not count as whole. Memory is freed then, or now if no chunk is being computed.
        """
        self._cancelled.set()
        self.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def check_cancelled(cancelled: threading.Event) -> None:
    """Called between the steps of a run. Any thread may set the flag."""
    if cancelled.is_set():
        raise DecodeCancelled("the decode was cancelled.")
