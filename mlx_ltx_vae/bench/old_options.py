"""The options under the names that they had before, which work until the next release. This file goes with them."""

import sys
from collections.abc import Iterable, Sequence

from ..commands.cli import write_line
from ..tiling import PRESETS

_OLD = ("--frames", "--modes", "--json", "--tile")
_ORDERS = ("time", "rows", "columns")


def with_new_names(arguments: Iterable[str]) -> list[str]:
    """Arguments with the names of today, and a warning on standard error for each option that had another."""
    groups: list[list[str]] = [[]]  # each option with what follows it
    for argument in arguments:
        if argument[:1] == "-" and len(argument) > 1 and not argument[1].isdigit():
            groups.append(argument.split("=", 1) if argument.partition("=")[0] in _OLD else [argument])
        else:
            groups[-1].append(argument)
    words: list[str] = []
    for group in groups:
        new = _renamed(group[0], group[1:]) if group else None
        if new is not None:
            text = f"{' '.join(group)} is written {' '.join(new)} now; the old form goes with the next release"
            write_line(f"warning: {text}.", sys.stderr)
        words += group if new is None else new
    return words


def _renamed(option: str, values: Sequence[str]) -> list[str] | None:
    """The option and its values as they are written now; None if they are written so."""
    names = [name for value in values for name in value.split(",")]
    if option == "--frames" and values:
        return _repeat("--num-frames", names)
    if option == "--modes" and values:
        orders = [name for name in names if name in _ORDERS]
        modes = dict.fromkeys("exact" if name in _ORDERS else name for name in names)
        orders = ["auto", *orders] if orders and "exact" in names else orders
        return [*_repeat("--mode", modes), *_repeat("--order", orders)]
    if option == "--tile-batch-size" and len(names) > 1:
        return _repeat(option, names)
    if option == "--json" and values:
        return [*(["--json"] if values[0] == "-" else ["--save", values[0]]), *values[1:]]
    if option == "--tile" and values and values[0] in PRESETS:
        return ["--preset", *values]
    return None


def _repeat(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]
