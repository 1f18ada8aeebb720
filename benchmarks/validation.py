"""Planned peaks compared with measured ones."""

from dataclasses import replace
from itertools import product
from typing import Any

from mlx_ltx_vae.bench.case import GENERATION_NAMES, Case
from mlx_ltx_vae.bench.decoding import decode, encode
from mlx_ltx_vae.bench.processes import Job, Run
from mlx_ltx_vae.bench.tables import table
from mlx_ltx_vae.units import MB


def validation_cases() -> list[Case]:
    """Decodes: generations, widths, sizes, lengths, modes, chunks and dtypes, each of which takes seconds."""
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
    # Six tiles side by side, for a clip that is shorter than the network's delay, and for a longer one.
    grid += [{**tiled, "tiles": "256:64", "width": 576, "base_width": 32, "dtype": "bfloat16", "frames": 25}]
    grid += [{**tiled, "tiles": "256:64", "width": 576, "frames": 81}]
    return [replace(base, **change) for change in grid]


def encode_cases() -> list[Case]:
    """Encodes: generations and dtypes as a stream, in tiles cut in space, and in tiles cut in time."""
    base = Case(base_width=16, width=256, height=160, frames=81)
    ways: list[dict[str, Any]] = [
        {"mode": "stream"},
        {"mode": "tiled", "tiles": "128:64"},
        {"mode": "tiled", "tiles": "temporal_only"},
    ]
    networks = [("0.9.0", "float32"), ("0.9.1", "bfloat16"), ("ltx-2.3", "float32"), ("ltx-2.3", "bfloat16")]
    return [replace(base, generation=name, dtype=dtype, **way) for (name, dtype), way in product(networks, ways)]


def validation_jobs() -> list[Job]:
    """One decode or encode of each case."""
    cases = [*product([decode], validation_cases()), *product([encode], encode_cases())]
    return [Job(measure, case, once=True) for measure, case in cases]


def validation_table(results: list[list[Run]]) -> str:
    """Planned and measured peaks, weights included."""
    ratios = [run["planned_bytes"] / run["total_peak_bytes"] for (run,) in results]
    rows = [
        {
            **{name: run[name] for name in ("task", "generation", "dtype", "mode", "order")},
            "tiles": run["tiles"] if run["mode"] == "tiled" else "",
            "base": str(run["base_width"]),
            "size": f"{run['width']}x{run['height']}",
            "frames": str(run["frames"]),
            "chunk": str(run["chunk"] or ""),
            "measured MB": f"{run['total_peak_bytes'] / MB:.1f}",
            "planned MB": f"{run['planned_bytes'] / MB:.1f}",
            "ratio": f"{ratio:.2f}",
        }
        for (run,), ratio in zip(results, ratios, strict=True)
    ]
    note = f"{len(results)} cases; planned / measured between {min(ratios):.2f} and {max(ratios):.2f}."
    return table(rows, [note])
