"""What tiles and half precision cost in quality, compared with a single pass in float32."""

from dataclasses import asdict, replace
from typing import Any

from mlx_ltx_vae import demo
from mlx_ltx_vae.backend.dtypes import DTYPES
from mlx_ltx_vae.bench.case import Case, Decode
from mlx_ltx_vae.bench.decoding import decode
from mlx_ltx_vae.bench.processes import Job, Run
from mlx_ltx_vae.bench.tables import format_psnr, table, timing_table
from mlx_ltx_vae.metrics import compare

_ROUNDING = 2e-5  # the most that two summation orders differ in float32
_REFERENCE = "float32"


def quality_jobs() -> list[Job]:
    """The demo clip, 73 frames of 384x256, decoded in every mode and dtype."""
    case = Case(model=str(demo.VAE), latents=str(demo.LATENTS), dtype=_REFERENCE, mode="single")
    return [Job(quality, replace(case, frames=73, width=384, height=256), once=True)]


def quality(case: Case) -> dict[str, Any]:
    """Decode a case in every other way, and compare the pixels with its own.

    Returns:
        ways: for each its name, and what `compare` returns.
    """
    ways: dict[str, dict[str, str]] = {
        f"exact, by {order}": {"mode": "exact", "order": order} for order in ("time", "rows", "columns")
    }
    ways |= {f"tiles, {name}": {"mode": "tiled", "tiles": name} for name in ("default", "aggressive", "spatial_only")}
    ways |= {dtype: {"dtype": dtype} for dtype in DTYPES if dtype != case.dtype}
    reference = Decode.from_case(case).decode_pixels()
    results = []
    for name, changes in ways.items():
        pixels = Decode.from_case(Case(**asdict(case) | changes)).decode_pixels()
        results.append({"way": name, **compare(pixels, reference, rounding=_ROUNDING)})
    return {"ways": results}


def quality_table(results: list[list[Run]]) -> str:
    """A Markdown table."""
    ((run,),) = results
    rows = [
        {
            "": way["way"],
            "PSNR against the single pass": format_psnr(way["psnr"]),
            "largest difference": f"{way['largest']:.1g}",
        }
        for way in run["ways"]
    ]
    return table(rows)


def precision_jobs(case: Case, reference: str) -> list[Job]:
    """Decodes in every dtype, compared with float32, whose frames are saved in the file `reference`."""
    return [
        Job(decode, replace(case, dtype=dtype), {"save" if dtype == _REFERENCE else "reference": reference})
        for dtype in sorted(DTYPES, key=lambda dtype: dtype != _REFERENCE)
    ]


def precision_table(results: list[list[Run]]) -> str:
    """Medians; times as ratios to float32."""
    notes = ["largest, PSNR: of the 8-bit levels, compared with float32."]
    return timing_table(results, reference=_REFERENCE, notes=notes)
