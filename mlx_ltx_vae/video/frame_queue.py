"""A thread behind a short queue, so that writing overlaps with computing the next frames."""

import queue
import threading
from collections.abc import Callable

import numpy as np

_END = None
_DEPTH = 8  # what one latent frame becomes: these come soon one after the other, and then none for a while


class _Waiting(queue.Queue):
    """A queue as long as there are frames in it."""

    def _qsize(self) -> int:
        return sum(1 if frames is _END else max(1, len(frames)) for frames in self.queue)


class FrameQueue:
    """Calls `consume(frames)` on its own thread, in order, with less than `depth` frames waiting, and one array more.

    A full queue makes `put` wait: that is what keeps frames from piling up. The thread takes everything out of
    the queue even after `consume` has failed, so that `put` never waits for ever; the failure is raised by the
    next `put` or by `finish`.
    """

    def __init__(self, consume: Callable[[np.ndarray], None], *, depth: int = _DEPTH) -> None:
        self._consume = consume
        self._queue: queue.Queue[np.ndarray | None] = _Waiting(maxsize=depth)
        self._error: Exception | None = None
        self._cancelled = False
        self._thread: threading.Thread | None = None

    def put(self, frames: np.ndarray) -> None:
        """Hand over an array, which must not be changed from now on. Raises what an earlier one met."""
        self._raise_error()
        if self._thread is None:
            # A daemon, so that a sink that nobody closes cannot keep the interpreter from ending.
            self._thread = threading.Thread(target=self._run, name="frame-writer", daemon=True)
            self._thread.start()
        self._queue.put(frames)

    def finish(self) -> None:
        """Wait until everything is consumed. Raises what `consume` met."""
        self._join()
        self._raise_error()

    def cancel(self) -> None:
        """Drop what waits and end the thread. A `consume` that hangs has to be unblocked by the caller first."""
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
                except Exception as error:  # whatever it is, it belongs to the thread that calls put()
                    self._error = error
            del frames  # or the last array would stay alive while the thread waits for the next
