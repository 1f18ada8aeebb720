"""The ffmpeg program as a pipe for frames: the only place of this package that starts another program.

The binary is the one that imageio-ffmpeg brings along. Its own `write_frames` is not used: it raises nothing for
an unknown codec, gives no return code and no reason when ffmpeg dies.
"""

import os
import re
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import IO

from imageio_ffmpeg import get_ffmpeg_exe

from ..errors import WriterError

# The progress, which counts frames, comes to standard output every half second, and once more at the end.
_GLOBAL_OPTIONS = ("-hide_banner", "-nostdin", "-y", "-loglevel", "error", "-nostats", "-progress", "pipe:1")
_KEPT_LINES = 50
_ADDRESS = re.compile(r"^(\[[^\]]*\] )+")  # "[vost#0:0/libx264 @ 0x55cb] [enc:libx264 @ 0x55cc] "
# After the cause ffmpeg tells what followed from it, a line for each of its threads.
_CONSEQUENCE = re.compile(
    r"Task finished|Terminating thread|Error sending frames|Nothing was written|Could not open encoder"
    r"|Error while opening encoder|Error selecting an encoder|Error opening (in|out)put files?\b|Conversion failed"
)


class FfmpegPipe:
    """A running ffmpeg that reads raw video from its standard input.

    Args:
        name: what to call the output in errors.
        arguments: everything after the global options, inputs (`-i pipe:0` among them) and output included.

    Raises:
        WriterError: if ffmpeg cannot be found or started.
    """

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        try:
            self._process = subprocess.Popen(
                [_find_ffmpeg(), *_GLOBAL_OPTIONS, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=os.environ | {"SVT_LOG": "1"},  # SVT-AV1 prints past ffmpeg's log level: errors only
                start_new_session=True,  # Ctrl-C on a terminal reaches us, and we end ffmpeg
            )
        except OSError as error:
            raise _start_error(error) from error
        # Both pipes are always read: an ffmpeg that waits for somebody to read its log would never end.
        self._progress = _TailReader(self._process.stdout)
        self._log = _TailReader(self._process.stderr)

    @property
    def process_id(self) -> int:
        """The process id of ffmpeg."""
        return self._process.pid

    def write(self, data: memoryview) -> None:
        """Send bytes, waiting while ffmpeg is busy.

        Raises:
            WriterError: if ffmpeg has ended, with its reason.
        """
        descriptor = self._process.stdin.fileno()
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError:
            self._process.wait()
            raise self._failure() from None

    def finish(self) -> int:
        """End the input, wait for ffmpeg, and return how many frames it says it has written.

        Raises:
            WriterError: if ffmpeg reports a failure.
        """
        self._process.stdin.close()
        if self._process.wait() != 0:
            raise self._failure()
        counts = [line.removeprefix("frame=") for line in self._progress.lines() if line.startswith("frame=")]
        self.release()
        return int(counts[-1]) if counts else 0

    def kill(self) -> None:
        """End ffmpeg at once; a `write` under way fails. Call `release` when no `write` can be under way."""
        self._process.kill()
        self._process.wait()

    def release(self) -> None:
        """Close the pipes of an ffmpeg that has ended."""
        self._progress.lines()
        self._log.lines()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            pipe.close()

    def _failure(self) -> WriterError:
        return WriterError(f"{self.name}: ffmpeg failed: {_reason(self._log.lines(), self._process.returncode)}.")


class _TailReader:
    """Reads a pipe to its end on a thread and remembers the last lines."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._thread = threading.Thread(target=self._run, args=(pipe,), name="ffmpeg-reader", daemon=True)
        self._thread.start()

    def lines(self) -> list[str]:
        """The last lines, once the pipe has ended."""
        self._thread.join()
        return list(self._lines)

    def _run(self, pipe: IO[bytes]) -> None:
        for line in pipe:
            self._lines.append(line.decode(errors="replace").strip())


def has_encoder(name: str) -> bool:
    """Whether this ffmpeg can encode with `name`; builds differ."""
    return name in _encoders()


@lru_cache(maxsize=1)
def _encoders() -> frozenset[str]:
    command = [_find_ffmpeg(), "-hide_banner", "-encoders"]
    try:
        listing = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).stdout
    except OSError as error:
        raise _start_error(error) from error
    rows = (line.split() for line in listing.decode(errors="replace").splitlines())
    return frozenset(row[1] for row in rows if len(row) > 1)


def _find_ffmpeg() -> str:
    try:
        return get_ffmpeg_exe()
    except RuntimeError as error:
        raise WriterError(f"ffmpeg was not found ({error}); reinstall imageio-ffmpeg.") from error


def _start_error(error: OSError) -> WriterError:
    return WriterError(f"ffmpeg cannot be started ({error.filename}: {error.strerror}); reinstall imageio-ffmpeg.")


def _reason(lines: Sequence[str], return_code: int) -> str:
    """The last line that names a cause, without the addresses in front of it."""
    texts = [_ADDRESS.sub("", line).rstrip(".") for line in lines if line]
    causes = [text for text in texts if not _CONSEQUENCE.match(text)]
    if causes:
        return causes[-1]
    if texts:
        return texts[0]
    if return_code < 0:
        return f"it was ended by signal {-return_code}"
    return f"it returned {return_code} and said nothing"
