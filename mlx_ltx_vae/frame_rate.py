"""Frame rates as exact fractions: 23.976 is 24000/1001."""

import math
import re
from fractions import Fraction

from .errors import LTXVAEError, quote

DEFAULT_FPS = Fraction(24)  # of a video whose latent file states no rate
MAX_FPS = 1000

Rate = str | float | Fraction  # frames per second as users write them, see `parse_fps`

# Rates that broadcast video slows down by 1000/1001, usually written with two or three decimals.
_NTSC_RATES = [Fraction(1000 * rate, 1001) for rate in (24, 30, 48, 60, 120, 240)]
_NTSC_TOLERANCE = Fraction(1, 100)  # covers 23.97 and 23.98 alike; 24 itself is 0.024 away
_NUMBER = re.compile(r"(\d{1,9})(\.\d{0,20})?")
_RATIO = re.compile(r"\d{1,9}/0*[1-9]\d{0,8}")


def parse_fps(rate: Rate) -> Fraction:
    """Frames per second as an exact fraction.

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
    """As `parse_fps`, with an `error` that names the file."""
    try:
        return parse_fps(rate)
    except ValueError as problem:
        raise error(f"{name}: {problem}") from problem
