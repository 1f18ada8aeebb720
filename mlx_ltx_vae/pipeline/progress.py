"""The progress of decodes and encodes: work and frames that are done, and the time that is left."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from ..errors import printable
from ..units import format_count
from .execution import ExecutionState

if TYPE_CHECKING:
    from .frames import FrameChunk


_NARROW = 60  # columns, below which there is no room for a bar
_MIN_NAME = 6
SECONDS_PER_LINE, SECONDS_PER_OBJECT = 60, 1  # of a log, and of JSON
_SECONDS_PER_DRAWING, _SECONDS_BETWEEN_DRAWINGS = 0.5, 0.1


class Bar(tqdm):
    """Progress bar with a lock of threads.

    tqdm's default lock contains a semaphore of multiprocessing, for which Python starts a second process where it does
    not fork. An app keeps the lock of its own bars.
    """

    _lock = threading.RLock()
    monitor_interval = 0  # no thread, which would draw the app's bars under this lock


class FrameBar(Bar):
    """Progress of a command under the name of a file: a bar in a terminal, or else a text now and then.

    It counts the work of a decode, which goes on from the first step, while frames come late: the network needs later
    latents for them, and by rows and columns they are all complete at the end.
    """

    # tqdm reads them before they are set.
    _label = _name = _phase = ""
    _base = _item_frames = _num_frames = 0  # of finished files; of this file; those of this file that are done
    _state: ExecutionState | None = None
    _ends_with_frames = False  # whether the last frame is the end of the work
    _waiting: Callable[[], int] | None = None
    _start_time: float | None = None  # of the first step
    _thread: threading.Thread | None = None

    def __init__(
        self,
        *,
        total: int | None,
        disable: bool = False,
        write: Callable[[str], object] | None = None,
        as_json: bool = False,
        on_frames: Callable[[int, int], object] | None = None,
    ) -> None:
        """Make a bar for `total` frames of all files, or `None` if that is not known.

        Args:
            disable: whether there is no bar. `write` is then given a line now and then.
            as_json: whether the lines are JSON objects, also one at each change of the phase.
            on_frames: is called with the frames that are done and the total.
        """
        self._write, self._as_json, self._on_frames = write, as_json, on_frames
        self._interval: float = SECONDS_PER_OBJECT if as_json else SECONDS_PER_LINE
        self._made_time, self._ended, self._counts_lock = time.monotonic(), threading.Event(), threading.Lock()
        super().__init__(total=total, disable=disable, dynamic_ncols=True)
        self.total = total
        if not disable or write is not None:
            self._interval = self._interval if disable else _SECONDS_PER_DRAWING
            self._thread = threading.Thread(target=self._repeat, name="progress", daemon=True)
            self._thread.start()

    def start(self, name: str, phase: str, *, label: str = "", num_frames: int | None = None) -> None:
        """Show the name of a file of so many frames after a label, and what is done until its first step."""
        with self._counts_lock:  # the thread must not count the frames of the last file twice
            self._base, self._item_frames, self._num_frames = self._base + self._item_frames, num_frames or 0, 0
            self._label, self._name, self._state, self._ends_with_frames = label, printable(name), None, False
        self.enter(phase)

    def enter(self, phase: str, waiting: Callable[[], int] | None = None) -> None:
        """Show another phase. `waiting` returns the number of frames that wait in it."""
        self._phase, self._waiting = phase, waiting
        if self._as_json and self._write is not None:
            self._write(json.dumps(self.values()))
        self.refresh()

    def follow(self, chunks: "Iterable[FrameChunk]", state: ExecutionState | None = None) -> "Iterator[FrameChunk]":
        """Return the chunks of a decode as an iterator that counts their frames. `state` is that of the decode."""
        self._ends_with_frames = True
        self.watch(state)

        def count(chunk: "FrameChunk") -> "FrameChunk":
            self.update(chunk.frames.shape[1])
            return chunk

        return map(count, chunks)

    def watch(self, state: ExecutionState | None) -> None:
        """Show the work of the steps from now on; `None` means that the frames are all that is known."""
        self._state, self._start_time = state, self._start_time or time.monotonic()

    def update(self, n: float | None = 1) -> None:
        """Count frames that are done."""
        self._start_time = self._start_time or time.monotonic()
        self._num_frames += int(n or 0)
        if self._on_frames is not None:
            self._on_frames(self._num_frames, self.total or self._num_frames)
        elif not self.disable and time.time() - self.last_print_t >= _SECONDS_BETWEEN_DRAWINGS:
            self.refresh()

    def close(self) -> None:
        """End the bar with the last frames."""
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None
        if not self.disable:
            self.refresh()
        super().close()

    def values(self) -> dict[str, Any]:
        """Return the values of a JSON object. Seconds count from the start of the command."""
        fraction = self._fraction
        return {
            "phase": self._phase,
            "name": self._name,
            "fraction": None if fraction is None else round(fraction, 4),
            "frames": self._base + self._num_frames,
            "num_frames": self.total,
            "seconds": round(time.monotonic() - self._made_time, 3),
            "seconds_left": None if (left := self._seconds_left) is None else round(left, 1),
        }

    @property
    def _fraction(self) -> float | None:
        """Fraction of the work of all files that is done, or `None` if the number of frames is not known."""
        if not self.total:
            return None
        work = None if self._state is None else self._state.fraction
        is_complete = self._ends_with_frames and self._num_frames >= self._item_frames
        item = self._num_frames if work is None or is_complete else work * self._item_frames
        return min(1.0, (self._base + item) / self.total)

    @property
    def _seconds_left(self) -> float | None:
        fraction = self._fraction
        if self._start_time is None or not fraction:
            return None
        return (time.monotonic() - self._start_time) * (1 - fraction) / fraction

    def _repeat(self) -> None:
        """Show the progress again and again, also while a step runs."""
        while not self._ended.wait(self._interval):
            if not self.disable:
                self.refresh()
            elif self._write is not None and self._phase:
                with self._counts_lock:
                    line = json.dumps(self.values()) if self._as_json else f"{self._label}{self._name}: {self._text}"
                self._write(line)

    @property
    def _text(self) -> str:
        """Text of a line."""
        fraction, count = self._fraction, self._base + self._num_frames
        frames = format_count(count, "frame") if self.total is None else f"{count} of {self.total} frames"
        parts = [self._phase, *([] if fraction is None else [f"{100 * fraction:.0f} %"]), frames]
        return ", ".join([*parts, *self._times])

    @property
    def _times(self) -> list[str]:
        if self._start_time is None:
            return []
        if self._waiting is not None:
            return [f"{format_count(self._waiting(), 'frame')} to write"]
        left = self._seconds_left
        spent = f"{self.format_interval(time.monotonic() - self._start_time)} elapsed"
        return [spent, *([] if left is None else [f"{self.format_interval(left)} left"])]

    @property
    def format_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = super().format_dict
        if "ncols" not in values:  # nothing is shown
            return values
        columns = values["ncols"] or 80
        values["prefix"] = self._label + _shorten(self._name, max(_MIN_NAME, columns // 4 - len(self._label)))
        if self._start_time is None:
            return values | {"bar_format": "{desc}: " + self._phase}
        count, fraction = self._base + self._num_frames, self._fraction
        if fraction is None:
            return values | {"bar_format": f"{{desc}} {format_count(count, 'frame')}, {', '.join(self._times)}"}
        times = self._times[-1:] if columns < _NARROW else self._times
        frames = f"{count}/{self.total}{'' if columns < _NARROW else ' frames'}"
        layout = ", ".join([f"{100 * fraction:.0f}% {frames}", *times])
        bar = "{desc} " if columns < _NARROW else "{desc} {bar} "
        return values | {"n": fraction * (self.total or 1), "bar_format": bar + layout}


#: Whether to show a progress bar, or one that is shown, or a function that is called with the frames that are done and
#: all of them.
Progress = bool | FrameBar | Callable[[int, int], object]


@contextmanager
def open_bar(progress: Progress, total: int | None, *, name: str = "video") -> Iterator[FrameBar]:
    """Yield the bar of a decode of one video. `total` is its number of frames, or `None` if it is not known."""
    if isinstance(progress, FrameBar):
        yield progress
        return
    function = progress if callable(progress) else None
    with FrameBar(total=total, disable=progress is not True, on_frames=function) as bar:
        bar.start(name, "decoding", num_frames=total)
        yield bar


def _shorten(name: str, limit: int) -> str:
    """Shorten the name to at most `limit` characters, without some in the middle."""
    if len(name) <= limit:
        return name
    end = (limit - 1) // 2
    return f"{name[: limit - 1 - end]}…{name[len(name) - end :]}"
