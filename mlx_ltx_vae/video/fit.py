"""How frames of one size become frames of another: geometry alone."""

from collections.abc import Callable
from enum import Enum, auto
from fractions import Fraction

from ..errors import ReaderError

#: (width, height) in pixels.
Size = tuple[int, int]


class Fit(Enum):
    """What is done to frames whose size is not the one that they should have."""

    EXACT = auto()  # they are refused
    RESIZE = auto()  # each side is scaled
    CROP = auto()  # scaled until they cover a size, where one is given; the rest is cut off evenly on both sides


def fit_size(name: str, source: Size, wanted: Size | None, fit: Fit, multiple: int) -> tuple[Size, Size]:
    """The size to scale to, and the size to then cut to.

    Args:
        name: what to call the frames in errors.
        source: their size.
        wanted: the size that they should have; None for the nearest to their own (with CROP, within it).
        fit: what is done to get there.
        multiple: what both sides must be a multiple of.

    Raises:
        ReaderError: for what cannot be, with what can.
    """
    if wanted is not None and any(side < 1 or side % multiple for side in wanted):
        raise ReaderError(f"{name}: cannot become {show_size(wanted)}; both sides must be multiples of {multiple}.")
    within = _map(lambda side: side // multiple * multiple, source)
    nearest = _map(lambda side: max(1, round(side / multiple)) * multiple, source)
    if fit is Fit.RESIZE:
        target = wanted or nearest
        return target, target
    if fit is Fit.CROP and wanted is not None:
        factor = max(Fraction(wanted[axis], source[axis]) for axis in range(2))
        # One side becomes just what is wanted and the other at least that, rounded or not.
        return _map(lambda side: round(side * factor), source), wanted
    if fit is Fit.CROP:
        if 0 in within:
            raise ReaderError(
                f"{name}: {show_size(source)} cannot be cut to multiples of {multiple}; resize it to "
                f"{show_size(nearest)} (--resize) or to another size (--size WxH)."
            )
        return source, within
    if source != (wanted or within):
        expected = f"both sides must be multiples of {multiple}" if wanted is None else f"not {show_size(wanted)}"
        cut = "" if 0 in within else f", cut it to {show_size(within)} (--crop)"
        raise ReaderError(
            f"{name}: is {show_size(source)}, and {expected}; resize it to {show_size(nearest)} (--resize){cut}, or "
            "choose a size (--size WxH)."
        )
    return source, source


def show_size(size: Size) -> str:
    """As people write it: 768x512."""
    return f"{size[0]}x{size[1]}"


def _map(change: Callable[[int], int], size: Size) -> Size:
    return change(size[0]), change(size[1])
