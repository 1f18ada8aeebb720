"""Frames at irregular times, and of another rate, at a constant rate."""

from fractions import Fraction
from math import ceil

from ..errors import option
from ..frame_rate import MAX_FPS

# A frame of a constant rate may come this much of an interval early or late without being moved to another tick.
_JITTER = Fraction(2, 5)
_ROUNDING = Fraction(1, 4)  # the same after a pause


class RateConverter:
    """Says how often each frame is returned at a constant rate. The time of the next frame decides, or the end.

    It takes the place of ffmpeg's filter `fps`, which loses a frame whenever ffmpeg rebuilds its filters. `end` is when
    the last frame ends, if the file says so.
    """

    def __init__(
        self, fps: Fraction, source_fps: Fraction | None, *, is_variable: bool, end: Fraction | None = None
    ) -> None:
        self.num_frames = 0
        self.left_out = 0  # frames that were returned at no tick
        self.repeated = 0  # how often one was returned again
        self.shortest: Fraction | None = None  # seconds between two frames, of which one came later
        self._fps = fps
        # The numbers of the frames at their own rate, in place of times, which containers round to milliseconds. That
        # would decide between two frames that are equally near, as in every second frame from 60 to 30 fps.
        self._own_fps = None if is_variable else source_fps
        self._end = end
        self._interval = Fraction(0) if source_fps is None else 1 / source_fps
        self._start = self._time = Fraction(0)
        self._number = Fraction(-1)
        self._ticks = 0  # of the frames so far but the last

    def add(self, time: Fraction) -> int:
        """How often the frame before the one that comes at `time` (in seconds) is returned; 0 for the first frame."""
        step = time - self._time
        if self.num_frames == 0:
            self._start = time
        elif step > 0:
            self.shortest = min(step, self.shortest or step)
        else:  # time stands still or goes back, as in files that were put together
            self._start += step - self._interval
        self._time = time
        tick = self._tick(time - self._start)
        self.num_frames += 1
        return self._times_until(tick) if self.num_frames > 1 else 0

    def end(self) -> int:
        """How often the last frame is returned: as long as it lasts, and at least once if it is the first."""
        end = self._time + self._interval if self._end is None or self._end <= self._time else self._end
        times = max(0, max(self._tick(end - self._start), 1) - self._ticks)
        self.left_out += times == 0
        return times

    def warning(self, name: str) -> str:
        """What the conversion has lost of frames at irregular times, and how to keep it; "" for a constant rate."""
        if not self.left_out and 10 * self.repeated <= self.num_frames:
            return ""
        rate = f"{name}: has a variable frame rate; at {float(self._fps):.6g} frames a second"
        lost = f"{self.left_out} of its {self.num_frames} frames were left out and {self.repeated} repeated"
        enough = min(MAX_FPS, ceil(1 / self.shortest)) if self.left_out and self.shortest else 0
        keep, choose = option(f"fps={enough}", f"--fps {enough}"), option("fps=", "--fps")
        advice = f"{keep} would keep them" if enough > self._fps else f"{choose} chooses another rate"
        return f"{rate}, {lost}; {advice}."

    def _times_until(self, tick: int) -> int:
        times = max(0, tick - self._ticks)
        self._ticks += times
        self.left_out += times == 0
        self.repeated += max(0, times - 1)
        return times

    def _tick(self, time: Fraction) -> int:
        if self._own_fps is None:
            return _nearest(time * self._fps)
        position, following = time * self._own_fps, self._number + 1
        if abs(position - following) < _JITTER:
            position = following
        elif position > following and abs(position - _nearest(position)) < _ROUNDING:
            position = Fraction(_nearest(position))
        self._number = position
        return _nearest(position * self._fps / self._own_fps)


def _nearest(number: Fraction) -> int:
    return (2 * number.numerator + number.denominator) // (2 * number.denominator)
