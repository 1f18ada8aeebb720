"""Memory over the time of a decode."""

import threading
import time
from types import TracebackType

import mlx.core as mx

_INTERVAL = 0.02
_MOST = 2000

#: Seconds since the beginning, bytes in use, and the most that has been in use so far.
Sample = tuple[float, int, int]


class MemorySamples:
    """Looks at MLX's memory from a thread of its own, every 20 ms, and whenever it is told to. A context manager.

    Whatever the length of the run, no more than about 2000 samples are kept: once there are, every other one is
    dropped and from then on half as many are taken.
    """

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._interval = _INTERVAL
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="memory-samples", daemon=True)

    def take(self) -> None:
        """Take a sample now."""
        with self._lock:
            self.samples.append((time.perf_counter() - self._start, mx.get_active_memory(), mx.get_peak_memory()))
            if len(self.samples) > _MOST:
                del self.samples[1::2]
                self._interval *= 2

    def __enter__(self) -> "MemorySamples":
        self._start = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(self._interval):
            self.take()
