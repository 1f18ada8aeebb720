"""Results as tables."""

import statistics
from collections.abc import Mapping, Sequence

from ..units import MB
from .processes import Run


def table(rows: Sequence[Mapping[str, str]], notes: Sequence[str] = ()) -> str:
    """A Markdown table of rows of the same columns, and notes below it.

    It is padded to be readable as plain text. Columns without any value are left out.
    """
    columns = [
        [cell.ljust(max(map(len, cells))) for cell in cells]
        for cells in zip(rows[0], *(row.values() for row in rows), strict=True)
        if any(cells[1:])
    ]
    lines = [f"| {' | '.join(cells)} |" for cells in zip(*columns, strict=True)]
    rule = f"|{'|'.join('-' * (len(cells[0]) + 2) for cells in columns)}|"
    return "\n".join([lines[0], rule, *lines[1:], *([""] if notes else []), *notes])


def format_psnr(decibels: float | None) -> str:
    """`psnr` of `metrics.compare` as text."""
    return "identical" if decibels is None else f"{decibels:.1f} dB"


def median(runs: list[Run], key: str) -> float:
    """The median of one measured value."""
    return statistics.median(run[key] for run in runs)


def time_ratio(runs: list[Run], reference: list[Run]) -> str:
    """The median, the least and the largest of the ratios of times, each of runs of the same turn."""
    ratios = sorted(run["seconds"] / other["seconds"] for run, other in zip(runs, reference, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def timing_table(results: list[list[Run]], *, reference: str, notes: Sequence[str] = ()) -> str:
    """Times and peaks of decodes or encodes: medians of each case.

    Args:
        reference: the mode or dtype whose time is 1, for videos of the same length.
        notes: further lines below the table.
    """
    baseline = {
        runs[0]["frames"]: median(runs, "seconds")
        for runs in results
        if reference in (runs[0]["mode"], runs[0]["dtype"])
    }
    run = results[0][0]
    all_notes = [
        "B/pixel and caches (held between two chunks) are bytes per pixel of one frame.",
        *notes,
        f"{run['width']}x{run['height']}; medians of {len(results[0])} fresh processes; peaks are the largest, without "
        "the weights.",
    ]
    return table([_timing_row(runs, baseline) for runs in results], all_notes)


def _timing_row(runs: list[Run], baseline: dict[int, float]) -> dict[str, str]:
    run = runs[0]
    seconds, frames = median(runs, "seconds"), run["frames"]
    tiled = run["mode"] in ("tiled", "ports")
    caches = run["between_bytes"] / (run["width"] * run["height"]) if "between_bytes" in run else None
    return {
        "mode": run["mode"],
        "order": run["order"] if run["mode"] == "exact" else "",
        "tiles": run["tiles"] if tiled else "",
        "dtype": run["dtype"] or "",
        "batch": str(run["tile_batch_size"]) if tiled else "",
        "frames": str(frames),
        "seconds": f"{seconds:.2f}",
        "ratio": f"{seconds / baseline[frames]:.2f}" if frames in baseline else "",
        "first": f"{median(runs, 'first_frame_seconds'):.2f}" if "first_frame_seconds" in run else "",
        "peak MB": f"{max(each['peak_bytes'] for each in runs) / MB:.1f}",
        "B/pixel": f"{run['bytes_per_pixel']:.0f}",
        "caches": "" if caches is None else f"{caches:.0f}",
        "weights MB": f"{run['weights_bytes'] / MB:.0f}",
        "largest": f"{run['largest']:.0f}" if "largest" in run else "",
        "PSNR": format_psnr(run["psnr"]) if "psnr" in run else "",
    }
