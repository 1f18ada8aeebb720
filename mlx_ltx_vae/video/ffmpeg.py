"""The ffmpeg program: the one of imageio-ffmpeg, or of IMAGEIO_FFMPEG_EXE. `ffmpeg_reader` reads what it writes.

The `write_frames` of imageio-ffmpeg raises nothing for an unknown codec, and does not tell why ffmpeg fails.
"""

import errno
import io
import os
import select
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fractions import Fraction
from functools import lru_cache

import numpy as np
from imageio_ffmpeg import get_ffmpeg_exe

from ..errors import LTXVAEError, ReaderError, WriterError
from ..files import file_state
from ..process import Cleanup, close_in_children, kill_program, uninterrupted
from .ffmpeg_log import find_reason
from .pipes import Forwarder, HeadReader, TailReader

MAX_SILENCE = 60  # seconds without a sign of life, before it counts as dead
TICK = 1.0  # seconds between two looks for one
_PATIENCE = 1.0  # seconds that a cancelled output may take: it can hang in a pipe that nobody reads
_PIPES = 4  # of a program: its standard streams, and one for an error of its start
_PROGRAM_VARIABLE = "IMAGEIO_FFMPEG_EXE"  # read by imageio-ffmpeg
_REMEDIES = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EAGAIN: "end other programs, or raise the limit of processes (ulimit -u)",
}
_GLOBAL_OPTIONS = ("-hide_banner", "-nostdin", "-y", "-nostats")
# Formats that are lists, scripts and descriptions of other files and addresses, which ffmpeg would open.
_REFERRING = {
    "hls", "dash", "webm_dash_manifest", "concat", "imf", "sdp", "sap", "rtp", "rtsp", "avisynth", "vapoursynth",
    "vobsub", "dvdvideo", "svg_pipe",
}  # fmt: skip


class FfmpegProcess:
    """A running ffmpeg. The end of its log is kept, as the reason of a failure. Raises `error` if it cannot start.

    Subclasses let it write its progress into a pipe, twice a second and at the end (`-progress`).
    """

    _progress: TailReader

    def __init__(
        self,
        name: str,
        error: type[LTXVAEError],
        arguments: Sequence[str],
        inherited: Sequence[int],
        *,
        takes_input: bool = False,
    ) -> None:
        self.name, self._error = name, error
        self._owner = os.getpid()
        arguments = [*_GLOBAL_OPTIONS, "-loglevel", "repeat+error", *arguments]
        stdin = subprocess.PIPE if takes_input else subprocess.DEVNULL
        self.process, self._end = _start(arguments, error, self, stdin, inherited)
        assert self.process.stdout is not None and self.process.stderr is not None
        self._stdout = self.process.stdout
        # Read all the time: an ffmpeg whose log pipe is full stops.
        self._log = TailReader(self.process.stderr)

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

    def _wait_until(self, is_done: Callable[[], object]) -> None:
        """Call `is_done`, which waits for a tick at most, until it is true.

        An ffmpeg that gives no sign of life meanwhile is ended: one that is stopped, or that got SIGTERM and waits for
        more sound, which only comes with more frames.
        """
        if not lives_until(is_done, self._signs):
            self.kill()
            raise self._error(f"{self.name}: {silent()}")

    def _wait_for_transfer(self, descriptor: int, event: int) -> None:
        pipe = select.poll()
        pipe.register(descriptor, event)
        self._wait_until(lambda: pipe.poll(1000 * TICK))

    def _signs(self) -> object:
        """What changes while ffmpeg works."""
        return self._progress.count, self._log.count

    def _wait_for_end(self) -> int:
        """Wait until ffmpeg has ended. Returns its return code."""
        self._wait_until(lambda: self._log.has_ended(TICK))  # at once; `Popen.wait` looks now and then
        self._wait_until(self._has_ended)
        return self.process.returncode

    def _has_ended(self) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(TICK)
        return self.process.returncode is not None

    def _reason(self) -> str:
        return find_reason(self._log.join(), self.process.returncode)


class FfmpegEncoder(FfmpegProcess):
    """A running ffmpeg that reads raw frames from its standard input (`-i pipe:0` among its arguments).

    Its output is a URL, or a function that a thread calls with the bytes, and that raises a `WriterError` to end it.
    It also gets the `inherited` open files.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], output: str | Callable[[bytes], None], inherited: Sequence[int] = ()
    ) -> None:
        arguments, self._forwarder, self._path = ["-progress", "pipe:1", *arguments], None, None
        if isinstance(output, str):
            self._path = output.removeprefix("file:")
            super().__init__(name, WriterError, [*arguments, output], inherited, takes_input=True)
        else:
            with pipe_from_ffmpeg(WriterError) as (pipe, write_end):
                arguments, inherited = [*arguments, f"pipe:{write_end}"], [*inherited, write_end]
                super().__init__(name, WriterError, arguments, inherited, takes_input=True)
            self._forwarder = Forwarder(pipe, output)
        assert self.process.stdin is not None
        self._stdin = self.process.stdin
        close_in_children(self._stdin)  # where it would keep ffmpeg waiting for more
        os.set_blocking(self._stdin.fileno(), False)
        self._progress = TailReader(self._stdout)

    def write(self, frames: np.ndarray) -> None:
        """Send frames, waiting while ffmpeg is busy. Raises `WriterError` if ffmpeg or its output has failed."""
        descriptor, data = self._stdin.fileno(), frames.data.cast("B")
        try:
            while data:
                self._raise_output_error()
                self._wait_for_transfer(descriptor, select.POLLOUT)
                with suppress(BlockingIOError):  # the room may be too small for now
                    data = data[os.write(descriptor, data) :]
        except OSError:
            self._wait_for_end()
            raise self._failure() from None

    def _signs(self) -> object:
        if self._forwarder is not None and self._forwarder.is_consuming:
            return object()  # ffmpeg waits for the reader of its output, which may pause
        with suppress(OSError):
            # At the end, ffmpeg may rewrite the file for minutes without a report.
            return super()._signs(), None if self._path is None else file_state(self._path)
        return super()._signs()

    def finish(self) -> int:
        """End the input, wait for ffmpeg and its output, and return the number of frames it reports as written."""
        self._stdin.close()
        if self._wait_for_end() != 0:
            raise self._failure()
        if self._forwarder is not None:
            self._forwarder.join()
        self._raise_output_error()
        counts = [line.removeprefix("frame=") for line in self._progress.join() if line.startswith("frame=")]
        self.release()
        return int(counts[-1]) if counts else 0

    def end(self) -> None:
        """As `kill`, where nobody waits for the end of a transfer."""
        self._drop_output()
        self._end()

    def kill(self) -> None:
        self._drop_output()
        super().kill()

    def release(self) -> None:
        if self._forwarder is not None:
            self._forwarder.join(_PATIENCE)
        super().release()

    def _drop_output(self) -> None:
        if self._forwarder is not None:
            self._forwarder.is_cancelled = True

    def _raise_output_error(self) -> None:
        if self._forwarder is not None and self._forwarder.error is not None:
            raise self._forwarder.error

    def _failure(self) -> WriterError:
        self._raise_output_error()  # the cause, if ffmpeg has failed because nobody reads what it writes
        return WriterError(f"{self.name}: ffmpeg failed: {self._reason()}.")


@lru_cache
def listing(*options: str, error: type[LTXVAEError]) -> list[list[str]]:
    """The words of each line that ffmpeg prints for options such as `-encoders`."""
    output = _run(["-hide_banner", *options], error).stdout
    return [line.split() for line in output.decode(errors="replace").splitlines()]


def read_log(name: str, kind: str, arguments: Sequence[str], error: type[LTXVAEError]) -> str:
    """ffmpeg's log of reading an input without writing anything. Raises `error` if it fails."""
    quiet = [*_GLOBAL_OPTIONS, "-loglevel", "repeat+level+info", "-progress", "pipe:1"]
    process, end = _start([*quiet, *arguments, "-f", "null", "-"], error, None, subprocess.DEVNULL, ())
    try:
        assert process.stdout is not None and process.stderr is not None
        progress, lines = TailReader(process.stdout), HeadReader(process.stderr)
        if not lives_until(lambda: lines.has_ended(TICK), lambda: (progress.count, lines.count)):
            process.kill()
            raise error(silent())
        log = "\n".join(lines.join())
        progress.join()
        process.wait()
    finally:
        end()
    if process.returncode != 0:
        if "matches no streams" in log:
            raise error(f"{name}: contains no {kind} stream.")
        if "Format not on whitelist" in log:
            raise error(
                f"{name}: is a playlist or the like, which names other files; they are never followed, so name the "
                f"{kind} itself."
            )
        errors = [line for line in log.splitlines() if "[error]" in line or "[fatal]" in line]
        raise error(f"{name}: contains no {kind} that ffmpeg can read: {find_reason(errors, process.returncode)}.")
    return log


def read_times(arguments: Sequence[str]) -> tuple[list[Fraction], Fraction | None]:
    """The times of a stream's packets in seconds, in the order in which they are shown, and when the last one ends.

    The file is read, and nothing decoded: headers state the duration of the longest stream, or estimate it.
    """
    listed = [*_GLOBAL_OPTIONS, "-loglevel", "error", *arguments, "-c", "copy", "-f", "framecrc", "pipe:1"]
    lines = _run(listed, ReaderError).stdout.decode().splitlines()
    unit = Fraction(next((line.split(":")[1].strip() for line in lines if line.startswith("#tb ")), "1"))
    rows = [line.split(",") for line in lines if not line.startswith("#")]  # stream, dts, pts, duration, bytes, sum
    times = sorted((int(row[2]), int(row[3])) for row in rows)
    end = max((time + length for time, length in times), default=None)
    return [time * unit for time, _ in times], None if end is None else end * unit


def input_arguments(path: str | os.PathLike) -> list[str]:
    """The arguments for ffmpeg to read a file, and no other file, address or device that the file may name."""
    rows = listing("-demuxers", error=ReaderError)  # "D", "d" for a device, names separated by commas, a description
    names = [row[1] for row in rows if row[:1] == ["D"] and len(row) > 2 and row[1] != "d"]
    formats = ",".join(name for name in names if name not in _REFERRING)
    # As a URL, the path may have colons, dashes and percent signs.
    return ["-protocol_whitelist", "file,pipe", "-format_whitelist", formats, "-i", f"file:{path}"]


def _run(arguments: Sequence[str], error: type[LTXVAEError]) -> subprocess.CompletedProcess[bytes]:
    process, end = _start(arguments, error, None, subprocess.DEVNULL, ())
    results: list[tuple[bytes, bytes]] = []
    num_bytes = 0

    def is_done() -> bool:
        nonlocal num_bytes
        try:
            results.append(process.communicate(timeout=TICK))
        except subprocess.TimeoutExpired as expired:
            num_bytes = len(expired.stdout or b"") + len(expired.stderr or b"")
        return bool(results)

    try:
        with process:
            if not lives_until(is_done, lambda: num_bytes):
                process.kill()
                raise error(silent())
    finally:
        end()
    return subprocess.CompletedProcess(process.args, process.returncode, *results[0])


def _start(
    arguments: Sequence[str], error: type[LTXVAEError], owner: object | None, stdin: int, inherited: Sequence[int]
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
    """The ends of a pipe to read from and to write to, of which ffmpeg gets one."""
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


def silent() -> str:
    """What an error says of an ffmpeg that has given no sign of life."""
    return f"ffmpeg failed: it has not responded for {MAX_SILENCE} seconds."
