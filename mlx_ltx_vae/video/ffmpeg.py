"""The ffmpeg program as a pipe for frames, in and out: the only file of media that starts another program.

The binary is the one that imageio-ffmpeg brings along. Its own `write_frames` is not used: it raises nothing for
an unknown codec, gives no return code and no reason when ffmpeg dies.
"""

import os
import re
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from imageio_ffmpeg import get_ffmpeg_exe

from ..errors import LTXVAEError, ReaderError, WriterError

_GLOBAL_OPTIONS = ("-hide_banner", "-nostdin", "-y", "-nostats")
_KEPT_LINES = 50
_ADDRESS = re.compile(r"^(\[[^\]]*\] )+")  # "[vost#0:0/libx264 @ 0x55cb] [enc:libx264 @ 0x55cc] "
# After the cause ffmpeg tells what followed from it, a line for each of its threads.
_CONSEQUENCE = re.compile(
    r"Task finished|Terminating thread|Error sending frames|Nothing was written|Could not open encoder"
    r"|Error while opening encoder|Error selecting an encoder|Error opening (in|out)put files?\b|Conversion failed"
    r"|Failed to configure input pad|Error reinitializing filters"
)


class _Ffmpeg:
    """A running ffmpeg, whose log is kept for the reason of a failure.

    Args:
        name: what to call the file in errors.
        error: what its failures are raised as.
        arguments: inputs, outputs and their options.
        stdin: what its standard input is to be, as `subprocess` has it.

    Raises:
        `error`: if ffmpeg cannot be found or started.
    """

    def __init__(self, name: str, error: type[LTXVAEError], arguments: Sequence[str], stdin: int) -> None:
        self.name = name
        try:
            self._process = subprocess.Popen(
                [_find_ffmpeg(error), *_GLOBAL_OPTIONS, "-loglevel", "error", *arguments],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=os.environ | {"SVT_LOG": "1"},  # SVT-AV1 prints past ffmpeg's log level: errors only
                start_new_session=True,  # Ctrl-C on a terminal reaches us, and we end ffmpeg
            )
        except OSError as problem:
            raise _start_error(problem, error) from problem
        # Always read: an ffmpeg that waits for somebody to read its log would never end.
        self._log = _TailReader(self._process.stderr)

    @property
    def process_id(self) -> int:
        """The process id of ffmpeg."""
        return self._process.pid

    def kill(self) -> None:
        """End ffmpeg at once; a transfer under way fails. Call `release` when none can be under way."""
        self._process.kill()
        self._process.wait()

    def release(self) -> None:
        """Close the pipes of an ffmpeg that has ended."""
        self._log.lines()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _reason(self) -> str:
        """Why it ended as it did."""
        return _reason(self._log.lines(), self._process.returncode)


class FfmpegPipe(_Ffmpeg):
    """A running ffmpeg that reads raw video from its standard input.

    Args:
        name: what to call the output in errors.
        arguments: inputs (`-i pipe:0` among them), output and their options.

    Raises:
        WriterError: if ffmpeg cannot be found or started.
    """

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        # The progress, which counts frames, comes to standard output every half second, and once more at the end.
        super().__init__(name, WriterError, ["-progress", "pipe:1", *arguments], subprocess.PIPE)
        self._progress = _TailReader(self._process.stdout)

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

    def release(self) -> None:
        """Close the pipes of an ffmpeg that has ended."""
        self._progress.lines()
        super().release()

    def _failure(self) -> WriterError:
        return WriterError(f"{self.name}: ffmpeg failed: {self._reason()}.")


class FfmpegFrames(_Ffmpeg):
    """A running ffmpeg that writes raw video to its standard output.

    Args:
        name: what to call the input in errors.
        arguments: inputs, output (`pipe:1`) and their options.

    Raises:
        ReaderError: if ffmpeg cannot be found or started.
    """

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        # -xerror ends at the first error instead of carrying on. (-err_detect explode would find no more, and hangs.)
        super().__init__(name, ReaderError, ["-xerror", *arguments], subprocess.DEVNULL)

    def read_into(self, buffer: memoryview) -> int:
        """Fill a buffer of bytes and return how many there were: fewer than it takes only where the video ends."""
        filled = 0
        while filled < len(buffer) and (count := self._process.stdout.readinto(buffer[filled:])):
            filled += count
        return filled

    def finish(self) -> None:
        """Wait for ffmpeg, whose output has ended.

        Raises:
            ReaderError: if anything went wrong. Of a file that was cut short ffmpeg only complains, and returns 0.
        """
        if self._process.wait() != 0 or any(self._log.lines()):
            raise ReaderError(f"{self.name}: is damaged or was cut short; ffmpeg says: {self._reason()}.")


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


@dataclass(frozen=True)
class PixelFormat:
    """What ffmpeg says of one of its pixel formats.

    Attributes:
        has_alpha: whether it may say how opaque a pixel is.
        bits: of a component, at most.
    """

    has_alpha: bool
    bits: int


def has_encoder(name: str) -> bool:
    """Whether this ffmpeg can encode with `name`; builds differ."""
    return name in _encoders()


@lru_cache(maxsize=1)
def _encoders() -> frozenset[str]:
    return frozenset(row[1] for row in _list("-encoders", WriterError) if len(row) > 1)


@lru_cache(maxsize=1)
def pixel_formats() -> dict[str, PixelFormat]:
    """Those that this ffmpeg knows, by name."""
    formats = {}
    for row in _list("-pix_fmts", ReaderError):
        if len(row) == 5 and row[2].isdecimal():  # flags, name, components, bits per pixel, bits of each component
            flags, name, components, _, depths = row
            # Gray or colour, each with alpha; or a palette, whose entries have it.
            has_alpha = components in ("2", "4") or "P" in flags
            formats[name] = PixelFormat(has_alpha, max(map(int, depths.split("-"))))
    return formats


def describe(name: str, input_arguments: Sequence[str]) -> str:
    """What ffmpeg logs of an input and of its first frame (by its filter `showinfo`).

    Raises:
        ReaderError: if it cannot read that far.
    """
    first_frame = ["-map", "0:V:0", "-vf", "showinfo=checksum=0", "-frames:v", "1", "-f", "null", "-"]
    done = _run([*_GLOBAL_OPTIONS, "-loglevel", "level+info", *input_arguments, *first_frame], ReaderError)
    log = done.stderr.decode(errors="replace")
    if done.returncode != 0:
        if "matches no streams" in log:
            raise ReaderError(f"{name}: holds no video.")
        errors = [line for line in log.splitlines() if "[error]" in line or "[fatal]" in line]
        raise ReaderError(f"{name}: is no video that ffmpeg can read: {_reason(errors, done.returncode)}.")
    return log


def file_url(path: Path) -> str:
    """A path that ffmpeg takes as a file, whatever colons, dashes and percent signs are in it."""
    return f"file:{path}"


def _list(what: str, error: type[LTXVAEError]) -> Iterator[list[str]]:
    """A listing of ffmpeg's, such as of its encoders, as the words of each line."""
    listing = _run(["-hide_banner", what], error).stdout
    return (line.split() for line in listing.decode(errors="replace").splitlines())


def _run(arguments: Sequence[str], error: type[LTXVAEError]) -> subprocess.CompletedProcess:
    """ffmpeg to its end."""
    command = [_find_ffmpeg(error), *arguments]
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as problem:
        raise _start_error(problem, error) from problem


def _find_ffmpeg(error: type[LTXVAEError]) -> str:
    try:
        return get_ffmpeg_exe()
    except RuntimeError as problem:
        raise error(f"ffmpeg was not found ({problem}); reinstall imageio-ffmpeg.") from problem


def _start_error(problem: OSError, error: type[LTXVAEError]) -> LTXVAEError:
    return error(f"ffmpeg cannot be started ({problem.filename}: {problem.strerror}); reinstall imageio-ffmpeg.")


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
