"""The chunks of one decode or encode, which any thread may cancel."""

import inspect
import sys
import threading
import traceback
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Generic, TypeVar

import mlx.core as mx

from ..backend.device import explained_device_errors, give_back_cache
from ..distributed import RowBands
from ..errors import DecodeCancelled

Chunk = TypeVar("Chunk")
StreamT = TypeVar("StreamT", bound="ChunkStream")

_PACKAGE = __name__.partition(".")[0]


class ChunkStream(Iterator[Chunk], AbstractContextManager["ChunkStream[Chunk]"], Generic[Chunk]):
    """The chunks of one run, in order. Usable as a context manager, which closes it.

    One thread at a time takes chunks; `cancel` may be called from any thread at any time. `next` is a `ValueError`
    while a chunk is being computed, as that of a generator: the latents may come from an iterator that uses the stream.
    `bands`, which exchange data with other ranks, are empty without these, and before the first chunk is computed.
    """

    def __init__(
        self, chunks: Generator[Chunk, None, None], cancelled: threading.Event, bands: Sequence[RowBands] = ()
    ) -> None:
        self._chunks, self._cancelled, self._bands = chunks, cancelled, bands
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
                with arrays_released(), explained_device_errors():
                    return next(self._chunks)
            finally:
                self._is_computing = False

    def close(self) -> None:
        """End the run and free its memory; later calls of `next` raise StopIteration.

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
        """End the run from any thread, without waiting.

        The thread that takes chunks gets `DecodeCancelled`, at the end of the running step or at its next call, so that
        a file that it writes does not count as whole. Memory is freed then, or now if no chunk is being computed.
        """
        self._cancelled.set()
        self.close()

    @property
    def sent_bytes(self) -> int:
        """Bytes that this process has sent to other ranks so far."""
        return sum(bands.sent_bytes for bands in self._bands)

    def __repr__(self) -> str:
        states = {inspect.GEN_CREATED: "not started", inspect.GEN_CLOSED: "ended"}
        state = states.get(inspect.getgeneratorstate(self._chunks), "started")
        return f"{type(self).__name__}({'cancelled' if self._cancelled.is_set() else state})"

    def __enter__(self: StreamT) -> StreamT:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        give_back_cache()  # with the last chunks


@contextmanager
def arrays_released() -> Iterator[None]:
    """Let an exception of the block keep no arrays alive: a notebook keeps the last one, with its traceback."""
    handled = sys.exc_info()[1]
    try:
        yield
    except BaseException as error:
        each: BaseException | None = error
        while each is not None and each is not handled:
            for frame, _ in traceback.walk_tb(each.__traceback__):
                # Those of callers and of their callbacks stay as they are, for a debugger.
                if frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
                    with suppress(RuntimeError):  # it still runs
                        frame.clear()
            each = each.__context__
        raise


def check_cancelled(cancelled: threading.Event) -> None:
    """Called between the steps of a run. Any thread may set the flag."""
    if cancelled.is_set():
        raise DecodeCancelled("the run was cancelled.")


def join_parts(parts: Iterable[mx.array], axis: int, length: int | None) -> mx.array:
    """All parts along an axis, evaluated. Takes them to their end, where a stream checks what it has yielded.

    If their `length` together is known, each takes its place as it comes, and none is held twice.
    """
    whole = mx.concatenate(list(parts), axis=axis) if length is None else _fill(parts, axis, length)
    with explained_device_errors():
        mx.eval(whole)
    return whole


@explained_device_errors()
def _fill(parts: Iterable[mx.array], axis: int, length: int) -> mx.array:
    whole, start = mx.array(()), 0
    for part in parts:
        end = start + part.shape[axis]
        if end - start == length:
            whole = part
        elif not start:
            whole = mx.zeros([length if at == axis else size for at, size in enumerate(part.shape)], part.dtype)
        if whole is not part:
            whole[(slice(None),) * axis + (slice(start, end),)] = part
        start = end
        del part
        mx.eval(whole)
    return whole
