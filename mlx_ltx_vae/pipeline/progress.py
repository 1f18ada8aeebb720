"""The progress bar, or lines of a log: frames done, frames per second, and the time that is left."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from ..errors import printable
from ..units import format_count

if TYPE_CHECKING:
    from .frames import FrameChunk


_NARROW = 60  # columns, below which there is no room for a bar
_MIN_NAME = 6
SECONDS_PER_LINE = 60  # of a log


class Bar(tqdm):
    """Progress bar with a lock of threads.

    tqdm's default lock contains a semaphore of multiprocessing, for which Python starts a second process where it does
    not fork. An app keeps the lock of its own bars.
    """

    _lock = threading.RLock()
    monitor_interval = 0  # no thread, which would draw the app's bars under this lock


class FrameBar(Bar):
    """Bar that counts frames, under the name of a file.

    Its rate, and what it says is left, count from the first frames on: those come late, since the network needs later
    latents for them. Before that it shows a phase.
    """

    _label = _name = _phase = ""
    _first: tuple[int, float] | None = None  # the frames that came first, and when

    def __init__(
        self, *, total: int | None, disable: bool = False, write: Callable[[str], object] | None = None, **options: Any
    ) -> None:
        """Make a bar, which may be disabled; `write` is then given a line about every minute."""
        super().__init__(total=total, disable=disable, **options)
        self.total, self._write = total, write
        self._num_written, self._written = 0, time.monotonic()

    def start(self, name: str, phase: str, *, label: str = "") -> None:
        """Show the name of a file after a label, and what is done until its first frame comes."""
        self._label, self._name, self._phase = label, printable(name), phase
        self.refresh()

    def enter(self, phase: str) -> None:
        """Show another phase."""
        self._phase = phase
        self.refresh()

    def update(self, n: float | None = 1) -> bool | None:
        if self._first is None and not self.disable and n:
            self._first = int(n), self._time()
        if self.disable and self._write is not None:
            self._num_written += int(n or 0)
            if time.monotonic() - self._written >= SECONDS_PER_LINE:
                self._written = time.monotonic()
                count = f"{self._num_written} of {self.total} frames" if self.total else ""
                self._write(f"{self._label}{self._name}: {count or format_count(self._num_written, 'frame')} done")
        return super().update(n)

    @property
    def format_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = super().format_dict
        if "ncols" not in values:  # nothing is shown
            return values
        columns = values["ncols"] or 80
        values["prefix"] = self._label + _shorten(self._name, max(_MIN_NAME, columns // 4 - len(self._label)))
        if self._first is None:
            return values | {"bar_format": "{desc}: " + self._phase}
        first, since = self._first
        elapsed = self._time() - since
        rate = (self.n - first) / elapsed if elapsed > 0 else 0
        speed = "?" if not rate else f"{rate:.2g}" if rate < 10 else f"{rate:.0f}"
        if self.total is None:
            layout = "{desc} {n} frames {speed}/s"
        elif columns < _NARROW:
            layout = "{desc} {n}/{total} {speed}/s {remaining} left"
        else:
            layout = "{desc} {bar} {n}/{total} frames, {speed} frames/s, {remaining} left"
        return values | {"rate": rate, "speed": speed, "bar_format": layout}


#: Whether to show a progress bar, or one that is shown, or a function that is called with the frames that are done and
#: all of them.
Progress = bool | FrameBar | Callable[[int, int], object]


def show_progress(
    chunks: "Iterable[FrameChunk]", progress: Progress, total: int | None, *, name: str = "video"
) -> "Iterator[FrameChunk]":
    """Return the chunks as an iterator that shows the frames so far. `total` is `None` if it is not known."""
    if progress is False:
        return iter(chunks)
    bar, done = progress if isinstance(progress, FrameBar) else None, 0
    if progress is True:
        bar = FrameBar(total=total, dynamic_ncols=True, miniters=1)
        bar.start(name, "decoding")

    def advance(chunk: "FrameChunk") -> "FrameChunk":
        nonlocal done
        done += chunk.frames.shape[1]
        if bar is not None:
            bar.update(chunk.frames.shape[1])
            if progress is True and done == total:
                bar.close()
        elif callable(progress):
            progress(done, done if total is None else total)
        return chunk

    return map(advance, chunks)


def _shorten(name: str, limit: int) -> str:
    """Shorten the name to at most `limit` characters, without some in the middle."""
    if len(name) <= limit:
        return name
    end = (limit - 1) // 2
    return f"{name[: limit - 1 - end]}…{name[len(name) - end :]}"
