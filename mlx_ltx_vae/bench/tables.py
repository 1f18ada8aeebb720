"""Tables of text: columns that line up on a terminal, and Markdown."""

import statistics
from collections.abc import Sequence

from .processes import Run

MB, GB = 1e6, 1e9


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: int) -> str:
    """Columns as wide as what is in them.

    Args:
        head: what stands above each.
        rows: of as many cells.
        words: so many of the columns, the first, are words and stand at the left; numbers stand at the right.
    """
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def median(results: list[Run], key: str) -> float:
    """Of what the runs of one case have measured."""
    return statistics.median(run[key] for run in results)


def footnote(runs: list[list[Run]]) -> str:
    """How the figures of a table were come by."""
    weights = runs[0][0]["weights_bytes"] / MB
    return f"Medians of {len(runs[0])} fresh processes; peaks are the largest, without {weights:.0f} MB of weights."
