"""A thread that consumes frames from a bounded queue, so that writing overlaps with computing the next frames."""

import queue
import threading
from collections.abc import Callable

import numpy as np

_END = None
_MAX_FRAMES = 8  # the frames of one latent frame, which arrive in quick succession, followed by a pause


class _FrameCountingQueue(queue.Queue[np.ndarray | None]):
    """Bounded by frames, not by arrays."""

    def _qsize(self) -> int:
        return sum(1 if frames is _END else max(1, len(frames)) for frames in self.queue)


class FrameQueue:
    """Calls `consume(frames)` on a thread of its own, in order.

    `put` waits while `max_frames` frames or more are queued, so that frames do not pile up. After `consume` has failed,
    the thread still empties the queue, so that `put` never waits forever; the next `put` or `finish` raises the error.
    """

    def __init__(self, consume: Callable[[np.ndarray], None], *, max_frames: int = _MAX_FRAMES) -> None:
        self._consume = consume
        self._queue = _FrameCountingQueue(maxsize=max_frames)
        self._error: Exception | None = None
        self._cancelled = False
        self._thread: threading.Thread | None = None

    def put(self, frames: np.ndarray) -> None:
        """Queue an array, which must not be changed afterwards. Raises an earlier error of `consume`."""
        self._raise_error()
        if self._thread is None:
            # A daemon thread, so that a sink that is never closed does not keep the interpreter from exiting.
            self._thread = threading.Thread(target=self._run, name="frame-writer", daemon=True)
            self._thread.start()
        self._queue.put(frames)

    def finish(self) -> None:
        """Wait until everything is consumed. Raises an error of `consume`."""
        self._join()
        self._raise_error()

    def cancel(self) -> None:
        """Drop the queued frames and end the thread. The caller must first unblock a `consume` that hangs."""
        self._cancelled = True
        self._join()

    def _join(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._queue.put(_END)
            self._thread.join()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (frames := self._queue.get()) is not _END:
            if self._error is None and not self._cancelled:
                try:
                    self._consume(frames)
                except Exception as error:  # raised on the thread that calls put()
                    self._error = error
            del frames  # otherwise the last array stays alive while the thread waits for the next
