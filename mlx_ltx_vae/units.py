"""Formats and parses byte counts, and formats times, counts and speeds. 1 GB is 1e9 bytes."""

import math
import re

from .errors import PlanError, quote

MB, GB = 1e6, 1e9

_UNITS = {
    "K": 1e3, "M": MB, "G": GB, "T": 1e12, "KB": 1e3, "MB": MB, "GB": GB, "TB": 1e12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip


def byte_unit(count: float) -> tuple[float, str, int]:
    """The unit in which a count is shown, its name, and its decimals: GB, MB below 1 GB, kB below 1 MB."""
    return (GB, "GB", 2) if count >= GB else (MB, "MB", 1) if count >= MB else (1e3, "kB", 0)


def format_bytes(count: float, *, round_up: bool = False) -> str:
    """The count as text, such as 2.42 GB, 814.2 MB or 812 kB (see `byte_unit`)."""
    unit, name, digits = byte_unit(count)
    if round_up:
        count = math.ceil(count / unit * 10**digits) / 10**digits * unit
    return f"{count / unit:.{digits}f} {name}"


def format_seconds(seconds: float) -> str:
    """The time as text, such as 0.25 s, 6.8 s or 75 s."""
    digits = 2 if seconds < 1 else 1 if seconds < 10 else 0
    return f"{seconds:.{digits}f} s"


def format_count(count: int, noun: str) -> str:
    """A number of things as text, such as 1 frame or 73 frames."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_are(count: int) -> str:
    """A number of things as the subject of a sentence: 1 is, 2 are."""
    return f"{count} {'is' if count == 1 else 'are'}"


def format_rate(frames: int, seconds: float) -> str:
    """The speed as text, such as 12.345 frames-per-sec, also where the clock stands still."""
    return f"{frames / seconds:.3f} frames-per-sec" if seconds > 0 else "speed unknown"


def parse_bytes(text: str | int | float, available: int) -> int:
    """The bytes of a memory budget: "8GB" (1e9 each), "8G", "7.5 GiB", "50%" of `available`, or a number of bytes.

    Anything else is a `PlanError`, also a string without a unit.
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
