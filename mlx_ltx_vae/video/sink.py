"""The base class of outputs: checks, a writer thread, and output that is either complete or absent."""

import queue
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from ..errors import WriterError
from ..part_file import writing_to
from ..shapes import Size, format_size

SinkT = TypeVar("SinkT", bound="Sink")
_FRAME_DTYPES: dict[int, np.dtype] = {8: np.dtype(np.uint8), 10: np.dtype(np.uint16)}
_END = None
_MAX_QUEUED = 8  # the frames of one latent frame, which arrive in quick succession, followed by a pause


class _FrameCountingQueue(queue.Queue[np.ndarray | None]):
    """Bounded by frames, not by arrays."""

    def _qsize(self) -> int:
        return sum(1 if frames is _END else max(1, len(frames)) for frames in self.queue)


class FrameQueue:
    """Calls `consume(frames)` on a thread of its own, in order.

    `put` waits while `max_frames` frames or more are queued, so that frames do not pile up. After `consume` has failed,
    the thread still empties the queue, so that `put` never waits forever; the next `put` or `finish` raises the error.
    """

    def __init__(self, consume: Callable[[np.ndarray], None], *, max_frames: int = _MAX_QUEUED) -> None:
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
                    traceback.clear_frames(error.__traceback__)  # otherwise it keeps the array alive
                    self._error = error
            del frames  # otherwise the last array stays alive while the thread waits for the next


def check_frames(name: str, size: Size, bit_depth: int) -> None:
    """Raise a `WriterError` for frames that no sink takes."""
    if min(size) < 1:
        raise WriterError(f"{name}: frames of {format_size(*size)} pixels cannot be written.")
    if bit_depth not in _FRAME_DTYPES:
        raise WriterError(f"{name}: a bit depth of {bit_depth} is not supported; use 8 or 10.")


class Sink(ABC):
    """Writes frames in order to one output. A context manager.

    Frames are `(n, height, width, 3)`, RGB, full range: uint8 for a bit depth of 8, uint16 (using all 16 bits)
    for 10. A thread writes them; `write` returns at once, or waits if that thread is behind.

    Leaving the with-block closes the sink: the output appears under its name. An exception in the block, Ctrl-C
    included, aborts it: nothing is left behind.

    Raises:
        WriterError: for an invalid size or bit depth.
    """

    def __init__(self, name: str, size: Size, bit_depth: int) -> None:
        check_frames(name, size, bit_depth)
        self.name = name
        self.size = (size[0], size[1])
        self.bit_depth = bit_depth
        #: Frames accepted so far. Once `close` has returned, all of them are in the output.
        self.frames_written = 0
        self._dtype = _FRAME_DTYPES[bit_depth]
        self._queue = FrameQueue(self._consume_or_raise)
        self._closed = False

    def write(self, frames: np.ndarray) -> None:
        """Append frames `(n, height, width, 3)`. The array is not copied; do not change it afterwards.

        Raises:
            WriterError: for another shape or dtype, for a closed sink, and for an error in writing earlier frames.
        """
        if self._closed:
            raise WriterError(f"{self.name}: is closed and takes no more frames.")
        self._check(frames)
        if len(frames):
            self._queue.put(np.ascontiguousarray(frames))
            self.frames_written += len(frames)

    def close(self) -> None:
        """Wait until all frames are written and rename the output to its target. A second call does nothing.

        Raises:
            WriterError: if writing failed or there were no frames; nothing is left behind then.
        """
        if self._closed:
            return
        try:
            self._queue.finish()
            if self.frames_written == 0:
                raise WriterError(f"{self.name}: no frames were written.")
            with writing_to(self.name):
                self._finish()
        except BaseException:  # also Ctrl-C while the last frames are encoded
            self.abort()
            raise
        self._closed = True

    def abort(self) -> None:
        """Stop at once and leave nothing behind. Does nothing if the sink is closed."""
        if self._closed:
            return
        self._closed = True
        self._interrupt()
        self._queue.cancel()
        self._discard()

    def __enter__(self: SinkT) -> SinkT:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    @abstractmethod
    def _consume(self, frames: np.ndarray) -> None:
        """Write frames. Runs on the thread; the array is C-contiguous and has been checked."""

    @abstractmethod
    def _finish(self) -> None:
        """Complete the output and rename it to its target. The thread has ended."""

    @abstractmethod
    def _discard(self) -> None:
        """Remove the partial output. The thread has ended; `_finish` may have run in part."""

    def _interrupt(self) -> None:
        """Make a hanging `_consume` fail. The thread is running."""
        return

    def _consume_or_raise(self, frames: np.ndarray) -> None:
        try:
            with writing_to(self.name):
                self._consume(frames)
        except WriterError:
            raise
        except Exception as error:
            raise WriterError(f"{self.name}: cannot be written ({error}).") from error

    def _check(self, frames: np.ndarray) -> None:
        width, height = self.size
        expected = f"takes {self._dtype} frames (n, {height}, {width}, 3)"
        if not isinstance(frames, np.ndarray):
            raise WriterError(f"{self.name}: {expected} as numpy arrays, not a {type(frames).__name__}.")
        if frames.dtype != self._dtype or frames.ndim != 4 or frames.shape[1:] != (height, width, 3):
            raise WriterError(f"{self.name}: {expected}, not {frames.dtype} {frames.shape}.")
