"""Our modes compared with other programs that decode the same weights and latents."""

import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.measuring import (
    Case,
    Job,
    Run,
    count_weight_bytes,
    decode,
    footprint,
    load_case_latents,
    load_vae,
    measure,
    open_case,
    timing_table,
)
from benchmarks.others import load_diffusers, load_mlx_video, load_ports
from mlx_ltx_vae.models.base import Config
from mlx_ltx_vae.models.video_vae.block_types import RES_STACK, UPSAMPLE
from mlx_ltx_vae.models.video_vae.config import VAEConfig

#: Our own modes.
OURS = ("single", "exact", "tiled")

#: Other programs, and the modules that they need.
OTHERS: dict[str, tuple[str, ...]] = {
    "ports": (),
    "diffusers": ("torch", "diffusers"),
    # Another package has the same name, but not this submodule.
    "mlx_video": ("mlx_video.models.ltx_2.video_vae.decoder",),
}

_LOADERS = {"ports": load_ports, "diffusers": load_diffusers, "mlx_video": load_mlx_video}
_NOTES = {
    "ports": "ports: each tile in a single pass, one after the other, as MLX ports do.",
    "diffusers": "diffusers: its peak is the growth of the process's memory, since torch counts none on the CPU.",
    "mlx_video": "mlx_video: in its default tiles.",
}


def against_jobs(case: Case, names: Sequence[str], reference: str) -> list[Job]:
    """Decodes by the single pass and by others, whose frames are compared with the single pass.

    A program that cannot decode the case is left out with a warning.

    Args:
        case: what to decode.
        names: of `OURS` and `OTHERS`.
        reference: a file for the frames of the single pass.
    """
    config = open_case(case).config
    jobs = [Job(decode, replace(case, mode="single"), {"save": reference})]
    for name in (*OURS[1:], *OTHERS):
        if name not in names:
            continue
        reason = explain_unsupported(name, config)
        if reason:
            warnings.warn(f"{name} is skipped: {reason}.", stacklevel=2)
            continue
        function = decode_with_other if name in OTHERS else decode
        jobs.append(Job(function, replace(case, mode=name), {"reference": reference}))
    return jobs


def explain_unsupported(name: str, config: Config) -> str | None:
    """Why one of `OURS` or `OTHERS` cannot decode with a configuration, or None if it can."""
    if not is_installed(name):
        return "it is not installed"
    is_ltx_2 = False
    if isinstance(config, VAEConfig):
        types = {block.type for block in config.network("decoder").blocks}
        is_ltx_2 = not config.timestep_conditioning and types == {RES_STACK, UPSAMPLE}
    if name in ("diffusers", "mlx_video") and not is_ltx_2:
        return "its class is for LTX-2 and later"
    return None


def is_installed(name: str) -> bool:
    """Return whether the modules that one of `OTHERS` needs are installed."""
    try:
        return all(importlib.util.find_spec(module) is not None for module in OTHERS.get(name, ()))
    except ImportError:
        return False


def decode_with_other(case: Case, **options: str) -> dict[str, Any]:
    """Decode with the program that `case.mode` names.

    Args:
        options: of `measure`.

    Returns:
        weights_bytes and what `measure` returns, without first_frame_seconds and between_bytes: these programs
        return all frames at the end. For diffusers the memory is the process's.
    """
    vae = load_vae(case)
    latents = load_case_latents(case, vae)
    weights_bytes = count_weight_bytes(vae)
    decoder = _LOADERS[case.mode](vae, case)
    del vae
    before = footprint()
    measured = measure(decoder(latents), case, **options)
    del measured["first_frame_seconds"], measured["between_bytes"]
    total = footprint()
    if case.mode == "diffusers" and before is not None and total is not None:
        measured |= {"peak_bytes": total - before, "total_peak_bytes": total}
        measured["bytes_per_pixel"] = measured["peak_bytes"] / (case.width * case.height)
    return {"weights_bytes": weights_bytes, **measured}


def against_table(results: list[list[Run]]) -> str:
    """Medians; times as ratios to the single pass, frames compared with the single pass."""
    notes = ["largest, PSNR: of the 8-bit levels, compared with the single pass."]
    if not results[0][0]["model"]:
        notes.append("Random weights make no picture, so these say nothing about a video's quality.")
    notes += [_NOTES[runs[0]["mode"]] for runs in results if runs[0]["mode"] in _NOTES]
    return timing_table(results, reference="single", notes=notes)
