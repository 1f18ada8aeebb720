"""What is printed: tables of what was measured or planned, and the cases that hold plans against measurement."""

import math
import statistics
from dataclasses import replace
from typing import Any

import mlx.core as mx

from .. import demo
from ..config import GENERATIONS, parse_vae_config
from ..media import load_latents
from ..memory import Backend
from ..plan import DecodePlan, Machine, Mode, make_plan
from ..tiling import preset
from ..vae import VideoVAE
from .case import GENERATION_NAMES, Case, latent_grid
from .processes import Run

_BUDGETS = (4, 8, 16, 32)
_ROUNDING = 2e-5  # as far as two orders of the same sums differ in float32
_MB, _GB = 1e6, 1e9


def timing_table(runs: list[list[Run]]) -> str:
    """Medians per case; times as a ratio to the single pass of as many frames, where there is one."""
    single = {results[0]["frames"]: _median(results, "seconds") for results in runs if results[0]["mode"] == "single"}
    head = f"{'mode':8}{'order':8}{'frames':>7}{'seconds':>9}{'ratio':>7}{'first':>8}"
    rows = [f"{head}{'peak MB':>10}{'B/pixel':>9}{'caches':>8}"]
    for results in runs:
        run = results[0]
        seconds, first = _median(results, "seconds"), _median(results, "first_frame_seconds")
        peak = max(run["peak_bytes"] for run in results)
        ratio = f"{seconds / single[run['frames']]:7.2f}" if run["frames"] in single else f"{'-':>7}"
        rows.append(
            f"{run['mode']:8}{run['order']:8}{run['frames']:7}{seconds:9.2f}{ratio}{first:8.2f}{peak / _MB:10.1f}"
            f"{run['bytes_per_pixel']:9.0f}{run['between_bytes'] / (run['width'] * run['height']):8.0f}"
        )
    rows.append("B/pixel and caches (what is held between two chunks) are bytes per pixel of one frame.")
    rows.append(_footnote(runs))
    return "\n".join(rows)


def encode_table(runs: list[list[Run]]) -> str:
    """Medians per case; times as a ratio to the stream of as many frames."""
    stream = {results[0]["frames"]: _median(results, "seconds") for results in runs if results[0]["mode"] == "stream"}
    rows = [f"{'mode':8}{'tiles':>10}{'batch':>7}{'frames':>8}{'seconds':>9}{'ratio':>7}{'peak MB':>10}{'B/pixel':>9}"]
    for results in runs:
        run = results[0]
        seconds, peak = _median(results, "seconds"), max(run["peak_bytes"] for run in results)
        tiles = (run["tiles"], run["tile_batch_size"]) if run["mode"] == "tiled" else ("", "")
        rows.append(
            f"{run['mode']:8}{tiles[0]:>10}{tiles[1]:>7}{run['frames']:8}{seconds:9.2f}"
            f"{seconds / stream[run['frames']]:7.2f}{peak / _MB:10.1f}{run['bytes_per_pixel']:9.0f}"
        )
    rows.append(_footnote(runs))
    return "\n".join(rows)


def validation_cases() -> list[Case]:
    """What `--validate-plan` runs: generations, widths, sizes, lengths, modes, chunks and dtypes, small enough."""
    base = Case(base_width=16, dtype="float32", width=128, height=96, frames=41, order="time")
    ways = [{}, {"chunk": 3}, {"order": "rows"}, {"order": "columns"}, {"mode": "single", "order": "auto"}]
    grid = [{**way, "generation": name} for name in GENERATION_NAMES for way in ways]
    grid += [{**way, "dtype": dtype} for dtype in ("bfloat16", "float16") for way in ways[::2]]
    grid += [{"base_width": width, **way} for width in (8, 32) for way in (ways[0], ways[2], ways[4])]
    grid += [{"frames": frames, "width": 256, "height": 160} for frames in (1, 9, 57, 121)]
    tiled = {"mode": "tiled", "order": "auto", "width": 512, "height": 320, "base_width": 8}
    grid += [{**tiled, "tiles": name} for name in ("aggressive", "default")]
    grid += [{**tiled, "tiles": "spatial_only", "width": 704}, {**tiled, "tiles": "temporal_only", "frames": 81}]
    grid += [{**tiled, "tiles": "aggressive", "dtype": "bfloat16"}, {**tiled, "tiles": "default", "width": 608}]
    grid += [{**tiled, "tiles": name, "tile_batch_size": 2} for name in ("256:64", "aggressive")]
    return [replace(base, **change) for change in grid]


def validation_table(runs: list[list[Run]]) -> str:
    """Planned against measured peaks, weights included."""
    head = f"{'generation':10}{'base':>5} {'dtype':9}{'size':>9}{'frames':>7} {'mode':7}{'order':8}{'chunk':>6}"
    rows = [f"{head}{'measured MB':>12}{'planned MB':>11}{'ratio':>7}"]
    ratios = []
    for (run,) in runs:
        ratios.append(run["planned_bytes"] / run["total_peak_bytes"])
        size = f"{run['width']}x{run['height']}"
        rows.append(
            f"{run['generation']:10}{run['base_width']:5} {run['dtype']:9}{size:>9}{run['frames']:7} {run['mode']:7}"
            f"{run['order']:8}{run['chunk'] or '':>6}{run['total_peak_bytes'] / _MB:12.1f}"
            f"{run['planned_bytes'] / _MB:11.1f}{ratios[-1]:7.2f}"
        )
    rows.append(f"{len(runs)} cases; planned / measured between {min(ratios):.2f} and {max(ratios):.2f}.")
    return "\n".join(rows)


def plan_table() -> str:
    """How the real LTX-2.3 decoder would be decoded on a Mac within several budgets, as a Markdown table.

    Planned, not measured: bfloat16, weights included, with the GPU's convolution scratch.
    """
    config = parse_vae_config(GENERATIONS["LTX-2.3"], "LTX-2.3")
    rows = [
        "| video | " + " | ".join(f"{budget} GB" for budget in _BUDGETS) + " | single pass |",
        "|---|" + "---|" * (len(_BUDGETS) + 1),
    ]
    for width, height in ((768, 512), (1280, 704), (1920, 1088), (3840, 2176)):
        for frames in (121, 257):
            shape = (1, config.latent_channels, *latent_grid(config, frames, height, width))
            options = {"machine": Machine(Backend.GPU, 2)}
            cells = []
            for budget in _BUDGETS:
                plan = make_plan(config, shape, memory_budget=budget * 10**9, must_fit=False, **options)
                cells.append(_planned(plan, budget))
            single = make_plan(config, shape, mode="single", **options)
            cells.append(f"{single.peak_bytes / _GB:.0f} GB")
            rows.append(f"| {width}x{height}, {frames} frames | {' | '.join(cells)} |")
    return "\n".join(rows)


def _planned(plan: DecodePlan, budget: int) -> str:
    if plan.peak_bytes > budget * _GB:
        return f"no: needs {plan.peak_bytes / _GB:.1f} GB"
    way = f"by {plan.order.value}" if plan.mode is Mode.EXACT else "tiles"
    return f"{way}, {plan.peak_bytes / _GB:.1f} GB"


def quality_table() -> str:
    """The demo clip decoded in every way in float32, held against the single pass, as a Markdown table.

    Pixels span 2, so PSNR is 20 log10(2 / rms).
    """
    vae = VideoVAE.from_pretrained(demo.VAE, dtype="float32", encoder=False)
    latents, _ = load_latents(demo.LATENTS)
    single = vae.decode(latents, vae.plan(latents.shape, mode="single"))
    ways: dict[str, dict[str, Any]] = {f"exact, by {order}": {"order": order} for order in ("time", "rows", "columns")}
    for name in ("default", "aggressive", "spatial_only"):
        ways[f"tiles, {name}"] = {"mode": "tiled", "tiling": preset(name, *single.shape[3:], single.shape[2])}
    rows = ["| | PSNR against the single pass | largest difference |", "|---|---|---|"]
    for name, options in ways.items():
        error = mx.abs(vae.decode(latents, vae.plan(latents.shape, **options)) - single)
        largest, mean = error.max().item(), mx.square(error).mean().item()
        psnr = "identical" if largest < _ROUNDING else f"{10 * math.log10(4 / mean):.1f} dB"
        rows.append(f"| {name} | {psnr} | {largest:.1g} |")
    return "\n".join(rows)


def _median(results: list[Run], key: str) -> float:
    return statistics.median(run[key] for run in results)


def _footnote(runs: list[list[Run]]) -> str:
    weights = runs[0][0]["weights_bytes"] / _MB
    return f"Medians of {len(runs[0])} fresh processes; peaks are the largest, without {weights:.0f} MB of weights."
