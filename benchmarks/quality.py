"""Loss of quality by tiles and half precision, compared with a single pass in float32."""

from dataclasses import replace
from typing import get_args

from benchmarks.measuring import Case, Job, Run, decode, format_psnr, table, timing_table
from mlx_ltx_vae import demo
from mlx_ltx_vae.backend.mlx_utils import DtypeName

_ROUNDING = 2e-5  # the most that two summation orders differ in float32
_REFERENCE: DtypeName = "float32"
_TILES = ("default", "aggressive", "spatial_only")


def quality_jobs(reference: str) -> list[Job]:
    """Return the decodes of the demo clip, 73 frames of 384x256, in every mode and dtype, compared with a single pass.

    Args:
        reference: a file for the pixels of the single pass.
    """
    case = Case(model=str(demo.VAE), latents=str(demo.LATENTS), dtype=_REFERENCE, mode="single")
    case = replace(case, frames=73, width=384, height=256)
    ways = [replace(case, mode="exact", order=order) for order in ("time", "rows", "columns")]
    ways += [replace(case, mode="tiled", tiles=name) for name in _TILES]
    ways += [replace(case, dtype=dtype) for dtype in get_args(DtypeName) if dtype != _REFERENCE]
    jobs = [Job(decode, way, {"in_float": True, "reference": reference}, once=True) for way in ways]
    return [Job(decode, case, {"in_float": True, "save": reference}, once=True), *jobs]


def quality_table(results: list[list[Run]]) -> str:
    """Return a Markdown table."""
    rows = []
    for (run,) in results[1:]:
        names = {"exact": f"exact, by {run['order']}", "tiled": f"tiles, {run['tiles']}", "single": run["dtype"]}
        psnr = None if run["largest"] <= _ROUNDING else run["psnr"]
        difference = {"PSNR against the single pass": format_psnr(psnr), "largest difference": f"{run['largest']:.1g}"}
        rows.append({"": names[run["mode"]], **difference})
    return table(rows)


def precision_jobs(case: Case, reference: str) -> list[Job]:
    """Decodes in every dtype, compared with float32, whose frames are saved in the file `reference`."""
    return [
        Job(decode, replace(case, dtype=dtype), {"save" if dtype == _REFERENCE else "reference": reference})
        for dtype in sorted(get_args(DtypeName), key=lambda dtype: dtype != _REFERENCE)
    ]


def precision_table(results: list[list[Run]]) -> str:
    """Medians; times as ratios to float32."""
    notes = ["largest, PSNR: of the 8-bit levels, compared with float32."]
    return timing_table(results, reference=_REFERENCE, notes=notes)
