"""Threads that read what a program writes into pipes."""

import io
import re
import threading
from collections import deque
from collections.abc import Callable
from typing import IO

from ..errors import WriterError
from ..process import close_in_children

_PIPE_BYTES = 1 << 16  # what a pipe holds
_MAX_LINE = 1 << 13  # bytes of a line of ffmpeg's log; it may name two files
_MAX_LOG = 1 << 24  # characters of the log of an input, whose metadata may be longer
_CONTINUED = re.compile(r" +: |\[\w+\] +: ")  # another line of a value


class Forwarder(threading.Thread):
    """Passes on what arrives in a pipe until `is_cancelled`, and closes the pipe."""

    def __init__(self, pipe: io.FileIO, consume: Callable[[bytes], None]) -> None:
        super().__init__(name="ffmpeg-output", daemon=True)
        self.error: WriterError | None = None
        self.is_cancelled = self.is_consuming = False
        self._pipe = pipe
        close_in_children(pipe)  # where it would keep ffmpeg waiting for somebody to read
        self._consume = consume
        self.start()

    def run(self) -> None:
        with self._pipe:  # once it is closed, ffmpeg cannot write and ends
            try:
                while (data := self._pipe.read(_PIPE_BYTES)) and not self.is_cancelled:
                    self.is_consuming = True  # which takes as long as its reader pauses
                    self._consume(data)
                    self.is_consuming = False
            except WriterError as error:  # raised on the thread that writes frames
                self.error = error


class TailReader:
    """Reads a pipe to its end on a thread, and closes it. It keeps the last lines."""

    _num_kept: int | None = 50

    def __init__(self, pipe: IO[bytes]) -> None:
        self.count = 0  # of lines that are not empty
        self._pipe = pipe
        self._lines: deque[str] = deque(maxlen=self._num_kept)
        self._thread = threading.Thread(target=self._run, name="ffmpeg-reader", daemon=True)
        self._thread.start()

    def join(self) -> list[str]:
        """Wait for the end, and return the beginnings of the lines that are kept."""
        self._thread.join()
        return list(self._lines)

    def has_ended(self, timeout: float) -> bool:
        """Whether the end comes within so many seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        is_new = True
        with io.BufferedReader(self._pipe) as log:  # type: ignore[type-var]  # the pipe is not buffered
            while part := log.readline(_MAX_LINE):
                if is_new:
                    self._take(part.decode(errors="replace"))
                is_new = part.endswith(b"\n")

    def _take(self, line: str) -> None:
        self._lines.append(line.strip())
        self.count += bool(self._lines[-1])


class HeadReader(TailReader):
    """As `TailReader`, for the log of an input: it keeps the first lines, and of metadata the first of each value."""

    _num_kept = None
    _room = _MAX_LOG

    def _take(self, line: str) -> None:
        self.count += 1
        if self._room > 0 and not _CONTINUED.match(line):
            self._room -= len(line)
            self._lines.append(line.rstrip("\n"))
