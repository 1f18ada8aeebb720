"""Sinks of frames: checks, a writer thread, and output that is complete or absent."""

import os
import queue
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any, TypeVar

import numpy as np

from ..codec_table import Codec
from ..errors import WriterError, option, quote
from ..files import writing_to
from ..frame_format import FrameFormat
from ..options import OutputOptions
from ..shapes import Size, format_size
from ..units import Rate, format_count

SinkT = TypeVar("SinkT", bound="Sink")
_MAX_QUEUED = 8  # the frames of one latent frame, which arrive in quick succession, followed by a pause


@dataclass(frozen=True)
class SinkRequest:
    """Arguments of `open_sink`: what a sink is opened for. The `name` is a path, or "-"."""

    name: str
    size: Size
    fps: Rate
    options: OutputOptions
    num_frames: int | None  # None if it is not known
    codec: Codec | None = None  # of a video
    encoding: Sequence[str] = ()  # ffmpeg's arguments of a video or an animation that was checked


def check_not_live(name: str, options: OutputOptions) -> None:
    """Raise a `WriterError` if a file of this name would be read while it grows."""
    if options.fragmented:
        rule = option(
            "only a file object gets a fragmented video; pass an open file",
            "--live goes with -o -; redirect standard output to a file",
        )
        raise WriterError(f"{name}: {rule}.")


def is_folder(name: str) -> bool:
    """Return whether the name of an output is a folder's."""
    return name.endswith(("/", os.sep)) or os.path.isdir(name)


class FrameQueue:
    """Calls `consume(frames)` on a thread of its own, in order, whose error the next `put` or `finish` raises.

    `put` waits while `max_frames` or more are queued. The thread keeps this alive until `arrays` gets None, and
    calls `at_end` last.
    """

    def __init__(
        self,
        consume: Callable[[np.ndarray], None],
        *,
        max_frames: int = _MAX_QUEUED,
        at_end: Callable[[], object] = lambda: None,
    ) -> None:
        # Unlike `Queue`, it may be filled while the thread is in `get`, as happens where a sink is collected.
        self.arrays: queue.SimpleQueue[np.ndarray | None] = queue.SimpleQueue()
        self._max_frames, self._at_end = max_frames, at_end
        self.num_waiting = 0  # frames in `arrays`
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._is_cancelled = self._has_ended = False
        # A daemon thread, so that a sink that is never closed does not keep the interpreter from exiting.
        self._thread = threading.Thread(target=self._run, args=(consume,), name="frame-writer", daemon=True)

    def start(self) -> None:
        """Start the thread, if it has not been started."""
        if self._thread.ident is None:
            self._thread.start()

    def put(self, frames: np.ndarray) -> None:
        """Queue an array, which must not be changed afterwards. Raises an earlier error of `consume`."""
        self.start()
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or self.num_waiting < self._max_frames)
            self._raise_error()
            self.num_waiting += len(frames)
            self.arrays.put(frames)

    def end(self) -> None:
        """End the thread after what is queued, without waiting for it."""
        self.arrays.put(None)

    def finish(self) -> None:
        self._join()
        self._raise_error()

    def cancel(self) -> None:
        """Drop the queued frames and end the thread. The caller must first unblock a `consume` that hangs."""
        self._is_cancelled = True
        self._join()

    def _join(self) -> None:
        if self._thread.ident is None:
            self._at_end()
        else:
            self.end()
            self._thread.join()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self, consume: Callable[[np.ndarray], None]) -> None:
        while self._error is None and (frames := self.arrays.get()) is not None and not self._is_cancelled:
            with self._changed:
                self.num_waiting -= len(frames)
                self._changed.notify()
            try:
                consume(frames)
            except Exception as error:  # raised on the thread that calls `put`
                traceback.clear_frames(error.__traceback__)  # otherwise it keeps the array alive
                self._error = error
            del frames  # otherwise the last array stays alive while the thread waits for the next
        del consume  # an error refers to this frame
        with self._changed:
            self._has_ended = True
            self.arrays = queue.SimpleQueue()  # drops what is left
            self._changed.notify_all()
        self._at_end()


def check_count(name: str, num_written: int, num_frames: int | None) -> None:
    """Raise a `WriterError` if an output got another number of frames than it was opened for."""
    if num_frames not in (None, num_written):
        raise WriterError(f"{name}: got {format_count(num_written, 'frame')}, not {num_frames} (num_frames).")


def check_size(name: str, size: Size) -> None:
    """Raise a `WriterError` for frames that no sink takes."""
    if not isinstance(size, Sequence) or len(size) != 2 or not all(isinstance(side, Integral) for side in size):
        raise WriterError(f"{name}: the size of frames is (width, height), not {quote(size)}.")
    if min(size) < 1:
        raise WriterError(f"{name}: frames of {format_size(*size)} pixels cannot be written.")


class Sink:
    """Writes frames in order to one output, on a thread; `write` waits for a slow one. A context manager.

    Frames are `(n, height, width, 3)`, RGB, full range, in the dtype of their format. Leaving the with-block closes the
    sink: the output appears under its name. An exception in the block, Ctrl-C included, aborts it and
    leaves no file, as does a sink that is dropped unclosed.
    """

    def __init__(
        self,
        name: str,
        size: Size,
        frames: FrameFormat,
        write: Callable[[Any], object],
        complete: Callable[[int], str | os.PathLike | None] = lambda num_frames: None,
        discard: Callable[[], object] = lambda: None,
    ) -> None:
        """Make a sink of functions. If they referred to it, it would not be collected when it is dropped.

        Args:
            name: of the output, in errors.
            write: takes C-contiguous frames, on the thread.
            complete: moves the output to its target, when the thread has ended. It gets the number of frames, and
                returns another name if the output has got that.
            discard: removes the partial output. `complete` may have run in part.
        """
        self.frames = frames
        self.name = name
        self.size = (size[0], size[1])
        #: Frames accepted so far. Once `close` has returned, all of them are in the output.
        self.frames_written = 0
        self._complete, self._remove = complete, discard
        self._closed = False
        self._owner = os.getpid()
        self._queue = FrameQueue(partial(_consume, name, write))
        weakref.finalize(self, self._queue.arrays.put, None)  # not of the queue, whose error may refer to this sink

    def __repr__(self) -> str:
        written = f"{format_count(self.frames_written, 'frame')} of {format_size(*self.size)} written"
        return f"{type(self).__name__}({self.name!r}, {written})"

    def write(self, frames: np.ndarray) -> None:
        """Append frames `(n, height, width, 3)`, which must not be changed afterwards. May raise an earlier error."""
        if self._closed:
            raise WriterError(f"{self.name}: is closed and takes no more frames.")
        self._check_owner()
        width, height = self.size
        dtype = self.frames.dtype
        expected = f"takes {dtype} frames (n, {height}, {width}, 3)"
        if not isinstance(frames, np.ndarray):
            raise WriterError(f"{self.name}: {expected} as numpy arrays, not a {type(frames).__name__}.")
        if frames.dtype != dtype or frames.ndim != 4 or frames.shape[1:] != (height, width, 3):
            raise WriterError(f"{self.name}: {expected}, not {frames.dtype} {frames.shape}.")
        if len(frames):
            self._queue.put(np.ascontiguousarray(frames))
            self.frames_written += len(frames)

    @property
    def num_waiting(self) -> int:
        """Number of frames that were accepted and are not in the output yet."""
        return self._queue.num_waiting

    def close(self) -> None:
        """Wait until all frames, at least one, are written, and rename the output to its target; else leave nothing."""
        if self._closed:
            return
        self._check_owner()
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
        """Stop at once and leave no file. Does nothing if the sink is closed, or in a forked process."""
        if self._closed or self._owner != os.getpid():
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

    def _check_owner(self) -> None:
        if self._owner != os.getpid():
            raise WriterError(f"{self.name}: is written by the process that opened it; open another file in this one.")

    def _finish(self) -> None:
        """Complete the output and move it to its target. The thread has ended."""
        moved = self._complete(self.frames_written)
        if moved is not None:
            self.name = os.fspath(moved)

    def _discard(self) -> None:
        """Remove the partial output. `_finish` may have run in part."""
        self._remove()

    def _interrupt(self) -> None:
        """Make a write that hangs fail. The thread is running."""


def _consume(name: str, write: Callable[[Any], object], frames: np.ndarray) -> None:
    with writing_to(name, Exception):
        write(frames)
