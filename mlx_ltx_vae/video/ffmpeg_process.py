"""A running ffmpeg: imageio-ffmpeg's, or the one in IMAGEIO_FFMPEG_EXE. The only module that starts a program.

The `write_frames` of imageio-ffmpeg raises nothing for an unknown codec, and does not tell why ffmpeg fails.
"""

import errno
import io
import os
import re
import select
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from typing import IO

from imageio_ffmpeg import get_ffmpeg_exe

from ..errors import LTXVAEError, excerpt
from ..process import Cleanup, kill_program, uninterrupted

MAX_SILENCE = 60  # seconds without a sign of life, before it counts as dead
TICK = 1.0  # seconds between two looks for one
PIPE_BYTES = 1 << 16  # what a pipe holds
_PIPES = 4  # of a program: its standard streams, and one for an error of its start
_PROGRAM_VARIABLE = "IMAGEIO_FFMPEG_EXE"  # read by imageio-ffmpeg
_REMEDIES = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EAGAIN: "end other programs, or raise the limit of processes (ulimit -u)",
}
_GLOBAL_OPTIONS = ("-hide_banner", "-nostdin", "-y", "-nostats")

_MAX_LINE = 1 << 13  # bytes of a line of ffmpeg's log; it may name two files
_MAX_DUMP = 10_000  # lines of the log before the input, and of that from the first output on
_ADDRESS = re.compile(r"^(\[[^\]]*\] )+")  # "[vost#0:0/libx264 @ 0x55cb] [enc:libx264 @ 0x55cc] "
# After the cause, ffmpeg logs its consequences, one line for each of its threads.
_CONSEQUENCE = re.compile(
    r"Task finished|Terminating thread|Error sending frames|Nothing was written|Could not open encoder"
    r"|Decoding error|Error (processing|submitting) packet"
    r"|Error while opening encoder|Error selecting an encoder|Error opening (in|out)put files?\b|Conversion failed"
    r"|Failed to configure input pad|Error reinitializing filters|To ignore this|Failed to set value|Error parsing op"
)


class FfmpegProcess:
    """A running ffmpeg. Its log is kept, as the reason of a failure. Raises `error` if it cannot start.

    It writes its progress, twice a second and at the end, to a pipe of its own if it `writes_output`, and otherwise to
    its standard output. It also gets the `inherited` open files. With `marks` a `DumpReader` reads its log.
    """

    def __init__(
        self,
        name: str,
        error: type[LTXVAEError],
        arguments: Sequence[str],
        inherited: Sequence[int] = (),
        *,
        takes_input: bool = False,
        writes_output: bool = False,
        marks: Sequence[str] = (),
    ) -> None:
        self.name, self._error = name, error
        self._owner = os.getpid()
        level = "repeat+level+info" if marks else "repeat+error"
        stdin = subprocess.PIPE if takes_input else subprocess.DEVNULL
        with ExitStack() as stack:
            progress, end = stack.enter_context(pipe_from_ffmpeg(error)) if writes_output else (None, 1)
            inherited = [*inherited, end] if writes_output else inherited
            options = [*_GLOBAL_OPTIONS, "-loglevel", level, "-progress", f"pipe:{end}"]
            self.process, self._end = _start([*options, *arguments], error, self, stdin, inherited)
        assert self.process.stdout is not None and self.process.stderr is not None
        self._stdout = self.process.stdout
        self._progress = TailReader(progress or self._stdout)
        # Read all the time: an ffmpeg whose log pipe is full stops.
        self._log = DumpReader(self.process.stderr, marks) if marks else TailReader(self.process.stderr)

    def kill(self) -> None:
        """End ffmpeg at once; a transfer on another thread fails. Call `release` when no transfer is running."""
        if self._owner == os.getpid():
            self.process.kill()
            self.process.wait()

    def release(self) -> None:
        self._end.cancel()
        self._log.join()
        self._progress.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def close(self) -> None:
        self.kill()
        self.release()

    def wait_for_end(self) -> tuple[int, list[str]]:
        """Wait until ffmpeg has ended: its return code, and the lines of its log."""
        self._wait_until(lambda: self._log.has_ended(TICK))  # at once; `Popen.wait` looks now and then
        self._wait_until(self._has_ended)
        return self.process.returncode, self._log.join()

    def _wait_until(self, is_done: Callable[[], object]) -> None:
        """Call `is_done`, which waits for a tick at most, until it is true.

        An ffmpeg that gives no sign of life meanwhile is ended: one that is stopped, or that got SIGTERM and waits for
        more sound, which only comes with more frames.
        """
        if not lives_until(is_done, self._signs):
            self.kill()
            raise self._error(f"{self.name}: ffmpeg failed: it has not responded for {MAX_SILENCE} seconds.")

    def _wait_for_transfer(self, descriptor: int, event: int) -> None:
        pipe = select.poll()
        pipe.register(descriptor, event)
        self._wait_until(lambda: pipe.poll(1000 * TICK))

    def _signs(self) -> object:
        """A value that changes while ffmpeg works."""
        return self._progress.count, self._log.count

    def _has_ended(self) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(TICK)
        return self.process.returncode is not None


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
        """Return whether ffmpeg ends within this many seconds."""
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


class DumpReader(TailReader):
    """A `TailReader` for a log of the level "info": it keeps the lines that only ffmpeg can have written.

    Between the marked lines in which it names the input and the first output, that log has all text in the file: tags
    and their names, chapters, languages, with line breaks where they have some. These lines are left out. The `marks`
    are random, so nobody who wrote a file knows them.
    """

    _num_kept = None

    def __init__(self, pipe: IO[bytes], marks: Sequence[str]) -> None:
        self._marks, self._is_open, self._room = marks, True, _MAX_DUMP
        super().__init__(pipe)

    def _take(self, line: str) -> None:
        self.count += 1
        if any(mark in line for mark in self._marks):
            if line.startswith(("[info] Input #", "[info] Output #")):
                self._is_open, self._room = line.startswith("[info] Output #"), _MAX_DUMP
        elif not self._is_open:
            return
        if self._room:
            self._lines.append(line.rstrip("\n"))
            self._room -= 1


def find_reason(lines: Sequence[str], return_code: int) -> str:
    """The last line that names a cause, without the addresses in front of it."""
    if return_code == -signal.SIGXFSZ:
        return "the file would be larger than the limit of this process (ulimit -f)"
    texts = [_ADDRESS.sub("", line).rstrip(".") for line in lines if line]
    causes = [text for text in texts if not _CONSEQUENCE.match(text)]
    if texts:
        return excerpt(causes[-1] if causes else texts[0], 1000)
    if return_code < 0:
        return f"it was ended by signal {-return_code}"
    return f"it returned {return_code} and logged nothing"


def _start(
    arguments: Sequence[str], error: type[LTXVAEError], owner: object, stdin: int, inherited: Sequence[int]
) -> tuple[subprocess.Popen[bytes], Cleanup]:
    """Start ffmpeg. It is ended with its owner, and at the latest with this process."""
    with uninterrupted(), _ffmpeg_program(error) as program:
        process = subprocess.Popen(
            [program, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=os.environ | {"SVT_LOG": "1"},  # SVT-AV1 ignores ffmpeg's log level; 1 is errors only
            start_new_session=True,  # Ctrl-C on a terminal reaches this process only, which then ends ffmpeg
            pass_fds=inherited,
        )
        return process, Cleanup(owner, kill_program, process)


@contextmanager
def pipe_from_ffmpeg(error: type[LTXVAEError]) -> Iterator[tuple[io.FileIO, int]]:
    """A pipe to read, and the number of its other end, which an ffmpeg gets that is started in the with-block."""
    read_end, write_end = make_pipe(error)
    pipe = io.FileIO(read_end)
    try:
        yield pipe, write_end
    except BaseException:
        pipe.close()
        raise
    finally:
        os.close(write_end)  # ffmpeg has its own, whose end is the end of the pipe


def make_pipe(error: type[LTXVAEError]) -> tuple[int, int]:
    """The read and write ends of a pipe. ffmpeg gets one of them."""
    with _ffmpeg_program(error):
        return os.pipe()


@contextmanager
def _ffmpeg_program(error: type[LTXVAEError]) -> Iterator[str]:
    """The path of ffmpeg. Raises `error` if it is not found, or cannot be started in the with-block."""
    is_chosen = _PROGRAM_VARIABLE in os.environ
    remedy = f"correct or unset {_PROGRAM_VARIABLE}" if is_chosen else "reinstall imageio-ffmpeg"
    try:
        program = _find_ffmpeg()
        if is_chosen and not _is_ffmpeg(program):
            raise RuntimeError(f"{program}: is another program")
        yield program
    except OSError as problem:
        is_limit = problem.filename is None or problem.errno in _REMEDIES  # and has nothing to do with the program
        if is_limit:
            remedy = _REMEDIES.get(problem.errno or 0, "end other programs")
        reason = ": ".join(filter(None, [None if is_limit else problem.filename, problem.strerror]))
        raise error(f"ffmpeg cannot be started ({reason}); {remedy}.") from problem
    except RuntimeError as problem:
        raise error(f"ffmpeg cannot be started ({problem}); {remedy}.") from problem


def _find_ffmpeg() -> str:
    """Its path. Raises an `OSError` if there are not enough files left to open, as any program needs that is started.

    imageio-ffmpeg starts it the first time, and otherwise remembers that there is none.
    """
    with ExitStack() as stack:
        for descriptor in (each for _ in range(_PIPES) for each in os.pipe()):
            stack.callback(os.close, descriptor)
    return get_ffmpeg_exe()


@lru_cache
def _is_ffmpeg(program: str) -> bool:
    command, limit = [program, "-version"], MAX_SILENCE
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return False
    return done.stdout.startswith(b"ffmpeg ")


def lives_until(is_done: Callable[[], object], signs: Callable[[], object]) -> bool:
    """Call `is_done`, which waits for a tick at most, until it is true; false if the signs have stayed as they are.

    Ticks are counted rather than seconds: this process may have been stopped itself.
    """
    now, silence = None, 0
    while not is_done():
        before, now = now, signs()
        silence = silence + 1 if now == before else 0
        if silence * TICK >= MAX_SILENCE:
            return False
    return True
