"""ffmpeg as a source of sound, and of raw frames with their times."""

import io
import os
import select
from collections.abc import Sequence
from fractions import Fraction

from ..errors import ReaderError
from .ffmpeg import FfmpegProcess, input_arguments, pipe_from_ffmpeg
from .pipes import TailReader

_TIME = "{ni} {pts} {tb}"  # for each frame: its number in the file and its time, in units of the time base


class FfmpegReader(FfmpegProcess):
    """A running ffmpeg that writes to its standard output."""

    def __init__(self, name: str, arguments: Sequence[str], inherited: Sequence[int] = ()) -> None:
        with pipe_from_ffmpeg(ReaderError) as (progress, write_end):
            arguments, inherited = ["-progress", f"pipe:{write_end}", *arguments, "pipe:1"], [*inherited, write_end]
            super().__init__(name, ReaderError, arguments, inherited)
        self._progress = TailReader(progress)

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

    def wait(self) -> tuple[int, str]:
        """Wait for ffmpeg, whose output has ended: its return code, and the cause that it logged, "" if nothing."""
        code = self._wait_for_end()
        return code, self._reason() if code or self._log.count else ""

    def close(self) -> None:
        self.kill()
        self.release()


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


def read_ffmetadata(path: str | os.PathLike, max_bytes: int) -> str:
    """The beginning of the metadata of a file in ffmpeg's format; "" if ffmpeg cannot read the file."""
    buffer = bytearray(max_bytes)
    reader = FfmpegReader(os.fspath(path), [*input_arguments(path), "-f", "ffmetadata"])
    try:
        count = reader.read_into(memoryview(buffer))
        if count < max_bytes:
            reader.wait()
        return buffer[:count].decode(errors="replace")
    finally:
        reader.close()
