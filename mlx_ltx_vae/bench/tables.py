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


def rank_table(results: Sequence[list[Run]], notes: Sequence[str] = ()) -> str:
    """A row for each rank of decodes by several ranks, and of those by one: medians, and the largest peaks.

    Args:
        results: for each case its runs, as `lockstep.measure_case` returns them.
        notes: further lines below the table.
    """
    run = results[0][0]
    all_notes = [
        "Peaks are those of each rank, without weights and latents, and with them. sent MB is per latent frame.",
        *notes,
        f"{run['width']}x{run['height']}; medians of {len(results[0])} runs; peaks are the largest.",
    ]
    ratios = speed_ups(results)
    return table([row for runs in results for row in _rank_rows(runs, ratios)], all_notes)


def speed_ups(results: Sequence[list[Run]]) -> dict[tuple[int, int], float]:
    """The time of one rank divided by that of several, by (frames, ranks), where both were measured."""
    medians = {(runs[0]["frames"], runs[0]["ranks"]): median(runs, "seconds") for runs in results}
    return {
        (frames, ranks): medians[frames, 1] / seconds
        for (frames, ranks), seconds in medians.items()
        if (frames, 1) in medians
    }


def _rank_rows(runs: list[Run], ratios: Mapping[tuple[int, int], float]) -> list[dict[str, str]]:
    run = runs[0]
    seconds, frames, ranks = median(runs, "seconds"), run["frames"], run["ranks"]
    ratio = ratios.get((frames, ranks))
    of_all = {
        "ranks": str(ranks),
        "frames": str(frames),
        "seconds": f"{seconds:.2f}",
        "speed-up": "" if ratio is None else f"{ratio:.2f}",
        "frames/s": f"{frames / seconds:.2f}",
        "first": f"{median(runs, 'first_frame_seconds'):.2f}",
    }
    rows = []
    for rank in range(ranks):
        peak, total = (
            max(each[key][rank] for each in runs) / MB for key in ("peak_bytes_per_rank", "peak_memory_bytes_per_rank")
        )
        of_rank = {
            "rank": str(rank),
            "rows": str(run["rows"][rank]) if "rows" in run else "",
            "peak MB": f"{peak:.1f}",
            "with weights": f"{total:.1f}",
            "sent MB": f"{run['sent_bytes_per_rank'][rank] / run['latent_frames'] / MB:.2f}" if ranks > 1 else "",
        }
        rows.append({**(of_all if rank == 0 else dict.fromkeys(of_all, "")), **of_rank})
    return rows
