"""The ffmpeg program as a source and a sink of raw frames: the one of imageio-ffmpeg, or of IMAGEIO_FFMPEG_EXE.

The `write_frames` of imageio-ffmpeg raises nothing for an unknown codec, and does not tell why ffmpeg fails.
"""

import errno
import os
import re
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from functools import lru_cache
from typing import IO

import numpy as np
from imageio_ffmpeg import get_ffmpeg_exe

from ..errors import LTXVAEError, ReaderError, WriterError, excerpt
from ..files.opening import explain_missing
from ..process.cleanup import Cleanup, kill_program, uninterrupted
from .pipes import Forwarder, TailReader

_PATIENCE = 1.0  # seconds that a cancelled output may take: it can hang in a pipe that nobody reads
_MAX_SILENCE = 60  # seconds in which ffmpeg takes nothing and reports nothing, before it counts as dead
_TIME = "{ni} {pts} {tb}"  # for each frame: its number in the file and its time, in units of the time base
_PROGRAM_VARIABLE = "IMAGEIO_FFMPEG_EXE"  # read by imageio-ffmpeg
_REMEDIES = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EAGAIN: "end other programs, or raise the limit of processes (ulimit -u)",
}
_MAX_LINE, _MAX_LOG = 1 << 13, 1 << 24  # bytes of the log of an input, whose metadata may be longer
_CONTINUED = re.compile(rb" +: ")  # another line of a value
_GLOBAL_OPTIONS = ("-hide_banner", "-nostdin", "-y", "-nostats")
_ADDRESS = re.compile(r"^(\[[^\]]*\] )+")  # "[vost#0:0/libx264 @ 0x55cb] [enc:libx264 @ 0x55cc] "
# Formats that are lists, scripts and descriptions of other files and addresses, which ffmpeg would open.
_REFERRING = {
    "hls", "dash", "webm_dash_manifest", "concat", "imf", "sdp", "sap", "rtp", "rtsp", "avisynth", "vapoursynth",
    "vobsub", "dvdvideo", "svg_pipe",
}  # fmt: skip
# After the cause, ffmpeg logs its consequences, one line for each of its threads.
_CONSEQUENCE = re.compile(
    r"Task finished|Terminating thread|Error sending frames|Nothing was written|Could not open encoder"
    r"|Decoding error|Error (processing|submitting) packet"
    r"|Error while opening encoder|Error selecting an encoder|Error opening (in|out)put files?\b|Conversion failed"
    r"|Failed to configure input pad|Error reinitializing filters|To ignore this|Failed to set value|Error parsing op"
)


class FfmpegProcess:
    """A running ffmpeg. The end of its log is kept, as the reason of a failure. Raises `error` if it cannot start."""

    def __init__(
        self, name: str, error: type[LTXVAEError], arguments: Sequence[str], stdin: int, inherited: Sequence[int]
    ) -> None:
        self.name = name
        arguments = [*_GLOBAL_OPTIONS, "-loglevel", "repeat+error", *arguments]
        self.process, self._end = _start(arguments, error, self, stdin, inherited)
        assert self.process.stdout is not None and self.process.stderr is not None
        self._stdout = self.process.stdout
        # Read all the time: an ffmpeg whose log pipe is full stops.
        self._log = TailReader(self.process.stderr)

    def kill(self) -> None:
        """End ffmpeg at once; a transfer on another thread fails. Call `release` when no transfer is running."""
        self.process.kill()
        self.process.wait()

    def release(self) -> None:
        self._end.cancel()
        self._log.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def _reason(self) -> str:
        return _reason(self._log.join(), self.process.returncode)


class FfmpegEncoder(FfmpegProcess):
    """A running ffmpeg that reads raw frames from its standard input (`-i pipe:0` among its arguments).

    Its output is a URL, or a function that a thread calls with the bytes, and that raises a `WriterError` to end it.
    It also gets the `inherited` open files.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], output: str | Callable[[bytes], None], inherited: Sequence[int] = ()
    ) -> None:
        # ffmpeg writes its progress, which counts frames, to standard output twice a second and at the end.
        arguments = ["-progress", "pipe:1", *arguments]
        self._forwarder = None
        if isinstance(output, str):
            super().__init__(name, WriterError, [*arguments, output], subprocess.PIPE, inherited)
        else:
            read_end, write_end = make_pipe(WriterError)
            self._forwarder = Forwarder(read_end, output)
            try:
                inherited = [*inherited, write_end]
                super().__init__(name, WriterError, [*arguments, f"pipe:{write_end}"], subprocess.PIPE, inherited)
            finally:
                os.close(write_end)  # ffmpeg has its own, whose end is the end of the pipe
        assert self.process.stdin is not None
        self._stdin = self.process.stdin
        os.set_blocking(self._stdin.fileno(), False)
        self._progress = TailReader(self._stdout)

    def write(self, frames: np.ndarray) -> None:
        """Send frames, waiting while ffmpeg is busy. Raises `WriterError` if ffmpeg or its output has failed."""
        descriptor, data = self._stdin.fileno(), frames.data.cast("B")
        try:
            while data:
                self._raise_output_error()
                self._wait_for_room(descriptor)
                with suppress(BlockingIOError):  # the room may be too small for now
                    data = data[os.write(descriptor, data) :]
        except OSError:
            self.process.wait()
            raise self._failure() from None

    def _wait_for_room(self, descriptor: int) -> None:
        """Wait until ffmpeg takes more.

        An ffmpeg that got SIGTERM stops to read frames, and waits for more sound, which only comes with more frames.
        """
        room = select.poll()
        room.register(descriptor, select.POLLOUT)
        reports, silence = self._progress.count, 0
        while not room.poll(1000):  # seconds are counted here, since this process may be stopped, too
            is_silent = self._progress.count == reports and not (self._forwarder and self._forwarder.is_consuming)
            reports, silence = self._progress.count, silence + 1 if is_silent else 0
            if silence >= _MAX_SILENCE:
                self.kill()
                raise WriterError(f"{self.name}: ffmpeg failed: it has not responded for {_MAX_SILENCE} seconds.")

    def finish(self) -> int:
        """End the input, wait for ffmpeg and its output, and return the number of frames it reports as written."""
        self._stdin.close()
        if self.process.wait() != 0:
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
        self._progress.join()
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


class FfmpegReader(FfmpegProcess):
    """A running ffmpeg that writes to its standard output."""

    def __init__(self, name: str, arguments: Sequence[str], inherited: Sequence[int] = ()) -> None:
        super().__init__(name, ReaderError, [*arguments, "pipe:1"], subprocess.DEVNULL, inherited)

    def read_into(self, buffer: memoryview) -> int:
        """Fill a buffer of bytes and return their number, which is less than its length only at the end."""
        descriptor, filled = self._stdout.fileno(), 0
        while filled < len(buffer) and (count := os.readv(descriptor, [buffer[filled:]])):
            filled += count
        return filled

    def wait(self) -> tuple[int, str]:
        """Wait for ffmpeg, whose output has ended: its return code, and the cause that it logged, "" if nothing."""
        code = self.process.wait()
        self._log.join()
        return code, self._reason() if code or self._log.count else ""

    def close(self) -> None:
        self.kill()
        self.release()


class FfmpegDecoder(FfmpegReader):
    """A running ffmpeg that writes raw frames. So many lines of its log are known errors."""

    def __init__(self, name: str, arguments: Sequence[str], num_known_errors: int = 0) -> None:
        read_end, write_end = make_pipe(ReaderError)
        self._times = open(read_end, "rb")  # noqa: SIM115
        self._num_known_errors = num_known_errors
        self._num_timed = 0
        times = ["-enc_time_base", "demux", "-stats_enc_pre", f"pipe:{write_end}", "-stats_enc_pre_fmt", _TIME]
        in_order = ["-bsf:v", "setts=ts=N"]  # ffmpeg refuses to write frames whose times do not increase
        try:
            # -xerror stops at the first error. (-err_detect explode finds no more errors, and hangs.)
            super().__init__(name, ["-xerror", *arguments, *times, *in_order], [write_end])
        except BaseException:
            self._times.close()
            raise
        finally:
            os.close(write_end)  # ffmpeg has its own

    def read_times(self, num_frames: int) -> list[Fraction]:
        """The times in seconds of the next frames, of which the last has been read."""
        times = []
        for expected in range(self._num_timed, self._num_timed + num_frames):
            number, time, unit = self._times.readline().decode().split()  # written before the frame itself
            if int(number) != expected:
                lost = f"{self.name}: ffmpeg has lost frame {expected}"
                raise ReaderError(f"{lost}; convert the video first: ffmpeg -i VIDEO -c:v ffv1 NEW.mkv.")
            times.append(int(time) * Fraction(unit))
        self._num_timed += num_frames
        return times

    def finish(self, *, is_enough: bool = False) -> None:
        """Wait for ffmpeg, whose output has ended, or end it if it `is_enough`. Any error in its log is raised."""
        if is_enough:
            self.kill()
        code, reason = self.wait()
        if (code and not is_enough) or self._log.count > self._num_known_errors:  # of a truncated file it only logs
            raise ReaderError(f"{self.name}: is damaged or truncated; ffmpeg says: {reason}.")

    def close(self) -> None:
        self._times.close()
        super().close()


@lru_cache
def listing(*options: str, error: type[LTXVAEError]) -> list[list[str]]:
    """The words of each line that ffmpeg prints for options such as `-encoders`."""
    output = _run(["-hide_banner", *options], error).stdout
    return [line.split() for line in output.decode(errors="replace").splitlines()]


def read_log(name: str, kind: str, arguments: Sequence[str], error: type[LTXVAEError]) -> str:
    """ffmpeg's log of reading an input without writing anything. Raises `error` if it fails."""
    quiet = [*_GLOBAL_OPTIONS, "-loglevel", "repeat+level+info", *arguments, "-f", "null", "-"]
    process, end = _start(quiet, error, None, subprocess.DEVNULL, ())
    try:
        with process:
            assert process.stderr is not None
            log = _read_lines(process.stderr)
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
        raise error(f"{name}: contains no {kind} that ffmpeg can read: {_reason(errors, process.returncode)}.")
    return log


def _read_lines(pipe: IO[bytes]) -> str:
    """A log to its end. Of metadata, whose values may be long, it has the beginnings, and only so many."""
    kept, room, is_new = [], _MAX_LOG, True
    with open(os.dup(pipe.fileno()), "rb") as log:  # buffered, unlike the pipe
        while piece := log.readline(_MAX_LINE):
            is_kept = is_new and not _CONTINUED.match(piece) and room > 0
            is_new = piece.endswith(b"\n")
            if is_kept:
                room -= len(piece)
                kept.append(piece if is_new else piece + b"\n")
    return b"".join(kept).decode(errors="replace")


def check_audio(path: str | os.PathLike) -> None:
    """Raise a `WriterError` that names the file if ffmpeg cannot read the beginning of its first audio stream."""
    if not os.path.isfile(path):
        raise WriterError(f"{excerpt(path, 200)}: {explain_missing(path, 'audio file')}")
    read_log(os.fspath(path), "audio", [*input_arguments(path), "-map", "0:a:0", "-frames:a", "1"], WriterError)


def read_end(arguments: Sequence[str]) -> tuple[int, Fraction | None]:
    """How many frames a stream of an input has if it is a video, and when it ends in seconds, if that is known.

    The file is read, and nothing decoded: headers state the duration of the longest stream, or estimate it.
    """
    copy = ["-progress", "pipe:1", *arguments, "-c", "copy", "-f", "null", "-"]
    progress = _run([*_GLOBAL_OPTIONS, "-loglevel", "error", *copy], ReaderError).stdout.decode()
    frames = re.findall(r"^frame=(\d+)", progress, re.MULTILINE)
    ends = re.findall(r"^out_time_us=(\d+)", progress, re.MULTILINE)
    return int(frames[-1]) if frames else 0, Fraction(int(ends[-1]), 10**6) if ends else None


def read_ffmetadata(path: str | os.PathLike, max_bytes: int) -> str:
    """The beginning of the metadata of a file in ffmpeg's format; "" if ffmpeg cannot read the file."""
    buffer = bytearray(max_bytes)
    reader = FfmpegReader(os.fspath(path), [*input_arguments(path), "-f", "ffmetadata"])
    try:
        return buffer[: reader.read_into(memoryview(buffer))].decode(errors="replace")
    finally:
        reader.close()


def input_arguments(path: str | os.PathLike) -> list[str]:
    """The arguments for ffmpeg to read a file, and no other file, address or device that the file may name."""
    rows = listing("-demuxers", error=ReaderError)  # "D", "d" for a device, names separated by commas, a description
    names = [row[1] for row in rows if row[:1] == ["D"] and len(row) > 2 and row[1] != "d"]
    formats = ",".join(name for name in names if name not in _REFERRING)
    # As a URL, the path may have colons, dashes and percent signs.
    return ["-protocol_whitelist", "file,pipe", "-format_whitelist", formats, "-i", f"file:{path}"]


def _run(arguments: Sequence[str], error: type[LTXVAEError]) -> subprocess.CompletedProcess[bytes]:
    process, end = _start(arguments, error, None, subprocess.DEVNULL, ())
    try:
        with process:
            stdout, stderr = process.communicate()
    finally:
        end()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


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
        program = get_ffmpeg_exe()
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


@lru_cache
def _is_ffmpeg(program: str) -> bool:
    done = subprocess.run([program, "-version"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.stdout.startswith(b"ffmpeg ")


def _reason(lines: Sequence[str], return_code: int) -> str:
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
