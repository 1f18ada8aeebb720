"""Bytes and frame rates as users write them; times, counts and speeds as text."""

import math
import re
from fractions import Fraction

from .errors import LTXVAEError, PlanError, quote

MB, GB = 1e6, 1e9

_UNITS = {
    "K": 1e3, "M": MB, "G": GB, "T": 1e12, "KB": 1e3, "MB": MB, "GB": GB, "TB": 1e12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip


def byte_unit(count: float) -> tuple[float, str, int]:
    """Return the unit for a count, its name, and its decimals: GB, MB below 1 GB, kB below 1 MB."""
    return (GB, "GB", 2) if count >= GB else (MB, "MB", 1) if count >= MB else (1e3, "kB", 0)


def format_bytes(count: float, *, round_up: bool = False) -> str:
    """Return the count as text, such as 2.42 GB, 814.2 MB or 812 kB (see `byte_unit`)."""
    unit, name, digits = byte_unit(count)
    if round_up:
        count = math.ceil(count / unit * 10**digits) / 10**digits * unit
    return f"{count / unit:.{digits}f} {name}"


def format_seconds(seconds: float) -> str:
    """Return the time as text, such as 0.25 s, 6.8 s or 75 s."""
    digits = 2 if seconds < 1 else 1 if seconds < 10 else 0
    return f"{seconds:.{digits}f} s"


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun, such as 1 frame or 73 frames."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_are(count: int) -> str:
    """Return a count as the subject of a sentence: 1 is, 2 are."""
    return f"{count} {'is' if count == 1 else 'are'}"


def format_range(frames: slice) -> str:
    """Format a range of frames as `--frames` has it."""
    return f"{frames.start}:{'' if frames.stop is None else frames.stop}"


def format_rate(frames: int, seconds: float) -> str:
    """Return the speed as text, such as 3.45 frames per second, or "speed unknown" for 0 seconds."""
    rate = frames / seconds if seconds > 0 else 0
    digits = 2 if rate < 10 else 1 if rate < 100 else 0
    return f"{rate:.{digits}f} frames per second" if seconds > 0 else "speed unknown"


def parse_bytes(text: str | int | float, available: int) -> int:
    """Parse a memory budget: "8GB" (1e9 bytes each), "8G", "7.5 GiB", "50%" of `available`, or a number of bytes.

    Raises a `PlanError` for anything else, also for a string without a unit.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool) and 0 < text < float("inf"):
        return int(text)
    if re.fullmatch(r"\s*[0-9.]+\s*", str(text)):
        raise PlanError(f"a memory budget needs a unit, such as 8GB, 500MB or 50%; {quote(text)} has none.")
    match = re.fullmatch(r"\s*([0-9]{0,15}\.?[0-9]{1,15})\s*(%|[KMGT](?:I?B)?)\s*", str(text).upper())
    if isinstance(text, bool) or not match or float(match[1]) <= 0:
        raise PlanError(f"a memory budget is a size such as 8GB, 500MB or 50%, not {quote(text)}.")
    unit = available / 100 if match[2] == "%" else _UNITS[match[2]]
    return int(float(match[1]) * unit)


DEFAULT_FPS = Fraction(24)  # of a video whose latent file states no rate
MAX_FPS = 1000

Rate = str | float | Fraction  # frames per second as users write them, see `parse_fps`

# Rates that broadcast video slows down by 1000/1001, usually written with two or three decimals.
_NTSC_RATES = [Fraction(1000 * rate, 1001) for rate in (24, 30, 48, 60, 120, 240)]
_NTSC_TOLERANCE = Fraction(1, 100)  # covers 23.97 and 23.98 alike; 24 itself is 0.024 away
_NUMBER = re.compile(r"(\d{1,9})(\.\d{0,20})?")
_RATIO = re.compile(r"\d{1,9}/0*[1-9]\d{0,8}")


def parse_fps(rate: Rate) -> Fraction:
    """Parse frames per second to an exact fraction.

    Decimals near an NTSC rate mean that rate: 23.976 (and 23.97, 23.98) is 24000/1001, 29.97 is 30000/1001.
    A ratio ("30000/1001") and a `Fraction` are not rounded.

    Raises:
        ValueError: for anything but a number above 0 and at most 1000.
    """
    text = str(rate).strip()
    if isinstance(rate, float):  # also numpy.float64, whose repr depends on numpy's version
        text = repr(float(rate)) if math.isfinite(rate) else "nan"
    if _RATIO.fullmatch(text):
        fps = Fraction(text)
    elif _NUMBER.fullmatch(text):
        fps = Fraction(text)
        ntsc = min(_NTSC_RATES, key=lambda rate: abs(fps - rate))
        fps = ntsc if abs(fps - ntsc) < _NTSC_TOLERANCE else fps.limit_denominator(100_000)  # 32 bits in containers
    else:
        raise ValueError(f"{quote(text)} is not a frame rate; write frames per second as 24, 23.976 or 24000/1001.")
    if not 0 < fps <= MAX_FPS:
        raise ValueError(f"a frame rate must be above 0 and at most {MAX_FPS}, not {text}.")
    return fps


def find_fps(name: object, rate: Rate, error: type[LTXVAEError]) -> Fraction:
    """Parse frames per second as `parse_fps`, with an `error` that names the file."""
    try:
        return parse_fps(rate)
    except ValueError as problem:
        raise error(f"{name}: {problem}") from problem
