"""Results as tables."""

import statistics
from collections.abc import Sequence

from ..units import MB
from .processes import Run


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, padded to be readable as plain text. Columns without any value are left out."""
    columns = [
        [cell.ljust(max(map(len, cells))) for cell in cells]
        for cells in zip(head, *rows, strict=True)
        if any(cells[1:])
    ]
    lines = [f"| {' | '.join(cells)} |" for cells in zip(*columns, strict=True)]
    rule = f"|{'|'.join('-' * (len(cells[0]) + 2) for cells in columns)}|"
    return "\n".join([lines[0], rule, *lines[1:]])


def format_psnr(decibels: float | None) -> str:
    """`psnr` of `metrics.compare` as text."""
    return "identical" if decibels is None else f"{decibels:.1f} dB"


def median(runs: list[Run], key: str) -> float:
    """The median of one measured value."""
    return statistics.median(run[key] for run in runs)


def timing_table(results: list[list[Run]], *, reference: str, notes: Sequence[str] = ()) -> str:
    """Times and peaks of decodes or encodes: medians of each case.

    Args:
        results: the runs of each case.
        reference: the mode or dtype whose time is 1, for videos of the same length.
        notes: further lines below the table.
    """
    head = ["mode", "order", "tiles", "dtype", "batch", "frames", "seconds", "ratio", "first", "peak MB", "B/pixel"]
    head += ["caches", "weights MB", "largest", "PSNR"]
    baseline = {
        runs[0]["frames"]: median(runs, "seconds")
        for runs in results
        if reference in (runs[0]["mode"], runs[0]["dtype"])
    }
    run = results[0][0]
    lines = [
        table(head, [_timing_row(runs, baseline) for runs in results]),
        "",
        "B/pixel and caches (held between two chunks) are bytes per pixel of one frame.",
        *notes,
        f"{run['width']}x{run['height']}; medians of {len(results[0])} fresh processes; peaks are the largest, without "
        "the weights.",
    ]
    return "\n".join(lines)


def _timing_row(runs: list[Run], baseline: dict[int, float]) -> list[str]:
    run = runs[0]
    seconds, frames = median(runs, "seconds"), run["frames"]
    tiled = run["mode"] in ("tiled", "ports")
    caches = run["between_bytes"] / (run["width"] * run["height"]) if "between_bytes" in run else None
    return [
        run["mode"],
        run["order"] if run["mode"] == "exact" else "",
        run["tiles"] if tiled else "",
        run["dtype"] or "",
        str(run["tile_batch_size"]) if tiled else "",
        str(frames),
        f"{seconds:.2f}",
        f"{seconds / baseline[frames]:.2f}" if frames in baseline else "",
        f"{median(runs, 'first_frame_seconds'):.2f}" if "first_frame_seconds" in run else "",
        f"{max(each['peak_bytes'] for each in runs) / MB:.1f}",
        f"{run['bytes_per_pixel']:.0f}",
        "" if caches is None else f"{caches:.0f}",
        f"{run['weights_bytes'] / MB:.0f}",
        f"{run['largest']:.0f}" if "largest" in run else "",
        format_psnr(run["psnr"]) if "psnr" in run else "",
    ]
