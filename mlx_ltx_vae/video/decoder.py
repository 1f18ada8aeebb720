"""ffmpeg as a source of frames and their times."""

import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from ..errors import ReaderError
from .ffmpeg import FfmpegProcess, input_arguments, read_log

_TIME = "{ni} {pts} {tb}"  # for each frame: its number in the file and its time, in units of the time base


class FfmpegDecoder(FfmpegProcess):
    """A running ffmpeg that writes raw frames to its standard output, which is not among its `arguments`.

    Up to `num_known_errors` lines of its log are no reason to fail, see `errors_before_first_frame`.
    """

    def __init__(self, name: str, arguments: Sequence[str], num_known_errors: int = 0) -> None:
        read_end, write_end = os.pipe()
        self._times = open(read_end, "rb")  # noqa: SIM115
        self._num_known_errors = num_known_errors
        self._num_timed = 0
        times = ["-enc_time_base", "demux", "-stats_enc_pre", f"pipe:{write_end}", "-stats_enc_pre_fmt", _TIME]
        in_order = ["-bsf:v", "setts=ts=N"]  # ffmpeg refuses to write frames whose times do not increase
        try:
            # -xerror stops at the first error. (-err_detect explode finds no more errors, and hangs.)
            arguments = ["-xerror", *arguments, *times, *in_order, "pipe:1"]
            super().__init__(name, ReaderError, arguments, inherited=[write_end])
        except BaseException:
            self._times.close()
            raise
        finally:
            os.close(write_end)  # ffmpeg has its own

    def read_into(self, buffer: memoryview) -> int:
        """Fill a buffer of bytes and return their number, which is less than its length only at the end."""
        descriptor, filled = self._stdout.fileno(), 0
        while filled < len(buffer) and (count := os.readv(descriptor, [buffer[filled:]])):
            filled += count
        return filled

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
        """Wait for ffmpeg, whose output has ended. With `is_enough`, end it: no more frames are wanted.

        Raises:
            ReaderError: if ffmpeg fails or logs an error. For a truncated file it only logs, and returns 0.
        """
        if is_enough:
            self.kill()
        has_failed = self.process.wait() != 0 and not is_enough
        if has_failed or self._log.count() > self._num_known_errors:
            raise ReaderError(f"{self.name}: is damaged or truncated; ffmpeg says: {self._reason()}.")

    def release(self) -> None:
        self._times.close()
        super().release()


def describe(name: str, input_arguments: Sequence[str], stream: str) -> str:
    """ffmpeg's log of an input and of its first frame (from the filter `showinfo`), which it must be able to read."""
    first_frame = ["-map", stream, "-vf", "showinfo=checksum=0", "-frames:v", "1"]
    return read_log(name, "video", [*input_arguments, *first_frame], ReaderError)


def errors_before_first_frame(name: str, input_arguments: Sequence[str], stream: str) -> list[str]:
    """The errors that ffmpeg logs, with one thread, until it has decoded a frame."""
    first_frame = ["-debug_ts", *input_arguments, "-map", stream, "-frames:v", "1"]
    before, _, _ = read_log(name, "video", first_frame, ReaderError).partition("decoder -> ")
    return [line for line in before.splitlines() if "[error]" in line]


def check_image(path: Path) -> None:
    """Raise a `ReaderError` that names the image if ffmpeg cannot read it as one of a sequence, by its ending."""
    image = ["-f", "image2", "-pattern_type", "none", *input_arguments(path)]
    decoder = FfmpegDecoder(str(path), [*image, "-map", "0:V:0", "-f", "null"])
    try:
        decoder.finish()
    finally:
        decoder.kill()
        decoder.release()
