"""What ffmpeg does here: it writes and reads videos and sound, and describes files and itself."""

import io
import os
import select
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from fractions import Fraction
from functools import lru_cache

import numpy as np

from ..errors import LTXVAEError, ReaderError, WriterError
from ..files import file_state
from ..process import close_in_children
from .ffmpeg_process import FfmpegProcess, find_reason, pipe_from_ffmpeg

_PATIENCE = 1.0  # seconds that a cancelled output may take: it can hang in a pipe that nobody reads
_PIPE_BYTES = 1 << 16  # what a pipe holds
_TIME = "{ni} {pts} {tb}"  # for each frame: its number in the file and its time, in units of the time base
# Formats that are lists, scripts and descriptions of other files and addresses, which ffmpeg would open.
_REFERRING = {
    "hls", "dash", "webm_dash_manifest", "concat", "imf", "sdp", "sap", "rtp", "rtsp", "avisynth", "vapoursynth",
    "vobsub", "dvdvideo", "svg_pipe",
}  # fmt: skip


class FfmpegEncoder(FfmpegProcess):
    """A running ffmpeg that reads raw frames from its standard input (`-i pipe:0` among its arguments).

    Its output is a URL, or a function that a thread calls with the bytes, and that raises a `WriterError` to end it.
    It also gets the `inherited` open files.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], output: str | Callable[[bytes], None], inherited: Sequence[int] = ()
    ) -> None:
        self._forwarder, self._path = None, None
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
            raise self._failure(*self.wait_for_end()) from None

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
        code, log = self.wait_for_end()
        if code:
            raise self._failure(code, log)
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

    def _failure(self, code: int, log: Sequence[str]) -> WriterError:
        self._raise_output_error()  # the cause, if ffmpeg has failed because nobody reads what it writes
        return WriterError(f"{self.name}: ffmpeg failed: {find_reason(log, code)}.")


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


class FfmpegReader(FfmpegProcess):
    """A running ffmpeg that writes to its standard output (`pipe:1`, the last of its arguments)."""

    def __init__(
        self, name: str, arguments: Sequence[str], inherited: Sequence[int] = (), error: type[LTXVAEError] = ReaderError
    ) -> None:
        super().__init__(name, error, [*arguments, "pipe:1"], inherited, writes_output=True)

    def read_into(self, buffer: memoryview) -> int:
        """Fill a buffer of bytes and return their number, which is less than its length only at the end."""
        if self._owner != os.getpid():
            raise ReaderError(f"{self.name}: is read by the process that opened it; open it again in this one.")
        descriptor, filled = self._stdout.fileno(), 0
        while filled < len(buffer):
            self._wait_for_transfer(descriptor, select.POLLIN)
            count = os.readv(descriptor, [buffer[filled:]])
            if not count:
                break
            filled += count
        return filled

    def read(self, size: int) -> bytes:
        """So many bytes, or fewer at the end."""
        data = bytearray(size)
        return bytes(data[: self.read_into(memoryview(data))])

    def wait(self) -> tuple[int, str]:
        """Wait for ffmpeg, whose output has ended: its return code, and the cause that it logged, "" if nothing."""
        code, log = self.wait_for_end()
        return code, find_reason(log, code) if code or self._log.count else ""


class FfmpegDecoder(FfmpegReader):
    """A running ffmpeg that writes raw frames. So many lines of its log are known errors."""

    def __init__(self, name: str, arguments: Sequence[str], num_known_errors: int = 0) -> None:
        self._num_known_errors = num_known_errors
        self._num_timed = 0
        in_order = ["-bsf:v", "setts=ts=N"]  # ffmpeg refuses to write frames whose times do not increase
        with pipe_from_ffmpeg(ReaderError) as (pipe, write_end):
            times = ["-enc_time_base", "demux", "-stats_enc_pre", f"pipe:{write_end}", "-stats_enc_pre_fmt", _TIME]
            # -xerror stops at the first error. (-err_detect explode finds no more errors, and hangs.)
            super().__init__(name, ["-xerror", *arguments, *times, *in_order], [write_end])
        self._times = io.BufferedReader(pipe)

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


def read_output(
    arguments: Sequence[str], max_bytes: int = sys.maxsize, name: str = "ffmpeg", error: type[LTXVAEError] = ReaderError
) -> str:
    """What ffmpeg writes to its standard output, also if it fails, or the beginning of that."""
    content = bytearray()
    with closing(FfmpegReader(name, arguments, error=error)) as reader:
        while len(content) < max_bytes and (part := reader.read(_PIPE_BYTES)):
            content += part
        if len(content) < max_bytes:
            reader.wait()
    return content[:max_bytes].decode(errors="replace")


@lru_cache
def listing(*options: str, error: type[LTXVAEError]) -> list[list[str]]:
    """The words of each line that ffmpeg prints for options such as `-encoders`."""
    return [line.split() for line in read_output(options, error=error).splitlines()]


def read_log(name: str, kind: str, arguments: Sequence[str], error: type[LTXVAEError]) -> str:
    """ffmpeg's log of reading an input without writing anything. Raises `error` if it fails."""
    process = FfmpegProcess(name, error, [*arguments, "-f", "null", "-"], keeps_head=True)
    try:
        code, lines = process.wait_for_end()
    finally:
        process.close()
    log = "\n".join(lines)
    if code:
        if "matches no streams" in log:
            raise error(f"{name}: contains no {kind} stream.")
        if "Format not on whitelist" in log:
            raise error(
                f"{name}: is a playlist or the like, which names other files; they are never followed, so name the "
                f"{kind} itself."
            )
        errors = [line for line in log.splitlines() if "[error]" in line or "[fatal]" in line]
        raise error(f"{name}: contains no {kind} that ffmpeg can read: {find_reason(errors, code)}.")
    return log


def read_times(arguments: Sequence[str]) -> tuple[list[Fraction], Fraction | None]:
    """The times of a stream's packets in seconds, in the order in which they are shown, and when the last one ends.

    The file is read, and nothing decoded: headers state the duration of the longest stream, or estimate it.
    """
    lines = read_output([*arguments, "-c", "copy", "-f", "framecrc"]).splitlines()
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
