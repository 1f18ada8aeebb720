"""Planned peaks compared with measured ones."""

from dataclasses import replace
from typing import Any

from mlx_ltx_vae.bench.case import GENERATION_NAMES, Case
from mlx_ltx_vae.bench.decoding import decode
from mlx_ltx_vae.bench.processes import Job, Run
from mlx_ltx_vae.bench.tables import table
from mlx_ltx_vae.units import MB


def validation_cases() -> list[Case]:
    """Generations, widths, sizes, lengths, modes, chunks and dtypes, small enough to decode in seconds."""
    base = Case(base_width=16, dtype="float32", width=128, height=96, frames=41, order="time")
    ways: list[dict[str, Any]] = [
        {},
        {"chunk": 3},
        {"order": "rows"},
        {"order": "columns"},
        {"mode": "single", "order": "auto"},
    ]
    grid = [{**way, "generation": name} for name in GENERATION_NAMES for way in ways]
    grid += [{**way, "dtype": dtype} for dtype in ("bfloat16", "float16") for way in ways[::2]]
    grid += [{"base_width": width, **way} for width in (8, 32) for way in (ways[0], ways[2], ways[4])]
    grid += [{"frames": frames, "width": 256, "height": 160} for frames in (1, 9, 57, 121)]
    tiled: dict[str, Any] = {"mode": "tiled", "order": "auto", "width": 512, "height": 320, "base_width": 8}
    grid += [{**tiled, "tiles": name} for name in ("aggressive", "default")]
    grid += [{**tiled, "tiles": "spatial_only", "width": 704}, {**tiled, "tiles": "temporal_only", "frames": 81}]
    grid += [{**tiled, "tiles": "aggressive", "dtype": "bfloat16"}, {**tiled, "tiles": "default", "width": 608}]
    grid += [{**tiled, "tiles": name, "tile_batch_size": 2} for name in ("256:64", "aggressive")]
    return [replace(base, **change) for change in grid]


def validation_jobs() -> list[Job]:
    """One decode of each case."""
    return [Job(decode, case, once=True) for case in validation_cases()]


def validation_table(results: list[list[Run]]) -> str:
    """Planned and measured peaks, weights included."""
    head = ["generation", "dtype", "mode", "order", "base", "size", "frames", "chunk", "measured MB", "planned MB"]
    rows = []
    ratios = []
    for (run,) in results:
        ratios.append(run["planned_bytes"] / run["total_peak_bytes"])
        rows.append(
            [
                *(run[name] for name in ("generation", "dtype", "mode", "order")),
                str(run["base_width"]),
                f"{run['width']}x{run['height']}",
                str(run["frames"]),
                str(run["chunk"] or ""),
                f"{run['total_peak_bytes'] / MB:.1f}",
                f"{run['planned_bytes'] / MB:.1f}",
                f"{ratios[-1]:.2f}",
            ]
        )
    note = f"{len(results)} cases; planned / measured between {min(ratios):.2f} and {max(ratios):.2f}."
    return f"{table([*head, 'ratio'], rows)}\n\n{note}"
