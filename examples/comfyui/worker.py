"""The one thread that uses MLX.

MLX's streams belong to threads. A thread that has used MLX must call `mx.clear_streams()` before the process ends,
which would abort otherwise, and cannot use MLX after that. ComfyUI runs nodes on a thread that never ends, so MLX has
one of its own here. It ends when Python exits: the running job is cancelled, and the streams are cleared.
"""

import atexit
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_ltx_vae import AudioStream, DecodeCancelled, DecodeStream

EXIT_SECONDS = 30


@dataclass(frozen=True)
class Report:
    """How far a job is: `done` of `total`, and a picture (H, W, 3) uint8."""

    done: int
    total: int
    picture: np.ndarray | None = None


def format_bytes(count: int) -> str:
    """Return a number of bytes as text, such as 2.42 GB or 814.2 MB."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


class Job:
    """A call of `work(job, *arguments)` on the MLX thread. All methods but `run` may be called from any thread."""

    def __init__(self, work: Callable[..., Any], *arguments: Any) -> None:
        self.reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self.lines: list[str] = []  # that were shown
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._work, self._arguments = work, arguments
        self._ended, self._cancelled, self._news = threading.Event(), threading.Event(), threading.Event()
        self._is_abandoned = False
        self._stream: DecodeStream | AudioStream | None = None
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self.check()
            self._result = self._work(self, *self._arguments)
        except BaseException as error:  # for the thread that waits
            traceback.clear_frames(error.__traceback__)  # they would keep the decode's memory
            self._error = error
        finally:
            self._arguments = ()
            if not self._is_abandoned:
                self._ended.set()
                self._news.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether the job has ended, at the latest after a time, or when it calls."""
        if seconds is None or self._ended.is_set():
            return self._ended.wait()
        self._news.wait(seconds)
        self._news.clear()
        return self._ended.is_set()

    def result(self) -> Any:
        """Return the result of `work`. Raises the error that ended it."""
        if self._error is not None:
            raise self._error
        return self._result

    def cancel(self) -> None:
        """End the job soon. Does nothing if it has ended."""
        self._cancelled.set()
        self._answers.put(None)  # for a `call` that waits
        if self._stream is not None:
            self._stream.cancel()

    def abandon(self) -> None:
        """Cancel the job when Python exits, and let the thread that waits for it wait for good.

        It is a daemon of ComfyUI. If it went on, to report an error with a text of each tensor, Python would end it in
        the middle of torch's C++, which aborts the process.
        """
        self._is_abandoned = True
        self.cancel()

    def check(self) -> None:
        """Raise `DecodeCancelled` if the job was cancelled. Called by `work`."""
        if self._cancelled.is_set():
            raise DecodeCancelled("the job was cancelled.")

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on the thread that waits for the job. Called by `work`."""
        self._calls.put(partial(function, *arguments))
        self._news.set()
        answer = self._answers.get()
        self.check()
        return answer

    def say(self, line: str) -> None:
        """Show a line in the node, below those before. Called by `work`."""
        self._said.put(line)

    def new_lines(self) -> list[str]:
        """Return the lines since the last call. Called by the thread that waits for the job."""
        new = [self._said.get() for _ in range(self._said.qsize())]
        self.lines += new
        return new

    def answer(self) -> None:
        """Make the calls that `work` waits for. Called by the thread that waits for the job."""
        while not self._calls.empty():
            self._answers.put(self._calls.get()())

    def chunks(self, stream: DecodeStream | AudioStream) -> Iterator[Any]:
        """Yield the chunks of a stream, which `cancel` ends in the middle of one. Called by `work`."""
        self._stream = stream
        with stream:
            self.check()
            yield from stream


class MLXThread:
    """Runs jobs one after another, on a thread that ends when Python exits."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of the next two
        self._unfinished: set[Job] = set()
        self._is_closed = False
        # A daemon: Python joins other threads before it calls what is registered with atexit.
        self._thread = threading.Thread(target=self._run, name="mlx", daemon=True)
        self._thread.start()
        atexit.register(self._close_at_exit)

    def submit(self, job: Job) -> None:
        """Run a job after those before it. After `close` it is abandoned like the jobs that were running then."""
        with self._lock:
            if self._is_closed:
                job.abandon()
                return
            self._unfinished.add(job)
            self._jobs.put(job)

    def close(self) -> None:
        """Abandon all jobs and wait for the end of the thread, unless the device hangs."""
        with self._lock:
            self._is_closed = True
            for job in self._unfinished:
                job.abandon()
        self._jobs.put(None)
        self._thread.join(EXIT_SECONDS)

    def _close_at_exit(self) -> None:
        """`close`, which Ctrl-C, pressed again, does not end: without the end of the thread MLX aborts the process."""
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.close()
        finally:
            signal.signal(signal.SIGINT, handler or signal.SIG_DFL)  # None: set by another language

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            with self._lock:
                self._unfinished.discard(job)
            del job  # with its result
        mx.clear_streams()
