"""The geometry of resizing and cropping frames."""

from collections.abc import Callable
from enum import Enum, auto
from fractions import Fraction

from ..errors import ReaderError
from ..shapes import MAX_PIXELS, Size, format_size, is_possible_size


class Fit(Enum):
    """How frames of another size are handled."""

    EXACT = auto()  # refused
    RESIZE = auto()  # each side is scaled
    CROP = auto()  # scaled until they cover the requested size, if any; the excess is cut off evenly on both sides


def fit_size(name: str, source: Size, wanted: Size | None, fit: Fit, multiple: int) -> tuple[Size, Size]:
    """The size to scale frames of the size `source` to, and the size to crop to afterwards, a multiple of `multiple`.

    `wanted` is None for the nearest such size (for CROP, the largest within `source`). An impossible fit is a
    `ReaderError` that names the possible ones.
    """
    if wanted is not None and any(side < 1 or side % multiple for side in wanted):
        raise ReaderError(f"{name}: cannot become {format_size(*wanted)}; both sides must be multiples of {multiple}.")
    if wanted is not None and not is_possible_size(wanted):
        raise ReaderError(f"{name}: cannot become {format_size(*wanted)}; frames have at most {MAX_PIXELS:,} pixels.")
    within = _map(lambda side: side // multiple * multiple, source)
    nearest = _map(lambda side: max(1, round(side / multiple)) * multiple, source)
    if fit is Fit.RESIZE:
        target = wanted or nearest
        return target, target
    if fit is Fit.CROP and wanted is not None:
        factor = max(Fraction(wanted[axis], source[axis]) for axis in range(2))
        # One side becomes exactly the requested one, the other at least that, also after rounding.
        return _map(lambda side: round(side * factor), source), wanted
    if fit is Fit.CROP:
        if 0 in within:
            raise ReaderError(
                f"{name}: {format_size(*source)} cannot be cropped to multiples of {multiple}; resize it to "
                f"{format_size(*nearest)} (--resize) or to another size (--size WxH)."
            )
        return source, within
    if source != (wanted or within):
        expected = f"both sides must be multiples of {multiple}" if wanted is None else f"not {format_size(*wanted)}"
        crop = "" if 0 in within else f", crop it to {format_size(*within)} (--crop)"
        raise ReaderError(
            f"{name}: is {format_size(*source)}, and {expected}; resize it to {format_size(*nearest)} (--resize)"
            f"{crop}, or choose a size (--size WxH)."
        )
    return source, source


def _map(change: Callable[[int], int], size: Size) -> Size:
    return change(size[0]), change(size[1])
