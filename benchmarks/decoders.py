"""Decoders of the same latents: the full one of LTX-2.3, and faster ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.measuring import Case, Job, Run, decode, format_psnr, format_ratios, median, table
from mlx_ltx_vae.networks.preview_vae.family import PREVIEW_VAE
from mlx_ltx_vae.units import MB


def _pruna(full: Case) -> Case:
    """PrunaVAED with as many channels after `conv_in` as the full decoder: of the last layers it has half."""
    return replace(full, generation="prunavaed", base_width=full.base_width // 2)


def _preview(full: Case, *, generation: str) -> Case:
    return replace(full, generation=generation)


#: The faster decoders: for each, what makes its case with random weights out of the full decoder's.
DECODERS: dict[str, Callable[[Case], Case]] = {
    "pruna": _pruna,
    **{name: partial(_preview, generation=name) for name in PREVIEW_VAE.published},
}


def decoder_jobs(full: Case, checkpoints: Mapping[str, str], reference: str) -> dict[str, Job]:
    """Return a decode by the full decoder and by each of the faster ones, by name.

    If the full one has random weights, so have the others. If it has a checkpoint, decoders that have one are
    measured, and their frames are compared with the full one's, for which `reference` is a file.
    """
    if full.model is None:
        return {name: Job(decode, make(full)) for name, make in {"full": lambda case: case, **DECODERS}.items()}
    cases = {name: replace(full, model=checkpoint) for name, checkpoint in checkpoints.items()}
    jobs = {name: Job(decode, case, {"reference": reference}) for name, case in cases.items()}
    return {"full": Job(decode, full, {"save": reference}), **jobs}


def decoder_table(names: Sequence[str], results: list[list[Run]]) -> str:
    """Medians and ranges of ratios to the full decoder, whose runs are the first."""
    full = results[0]
    rows = [_row(name, runs, full) for name, runs in zip(names, results, strict=True)]
    run = full[0]
    notes = [
        "Times are ratios to the full decoder's run of the same turn: median (least to largest). Peaks are without the "
        "weights, and their ratios too.",
        f"{run['frames']} frames of {run['width']}x{run['height']}, {len(full)} fresh processes each, in turns.",
    ]
    if run["model"] is None:
        notes.append(
            f"Random weights, {run['base_width']} base channels: these make no picture that could be compared."
        )
    else:
        notes.append("PSNR: of the 8-bit levels, compared with the full decoder's.")
    return table(rows, notes)


def _row(name: str, runs: list[Run], full: list[Run]) -> dict[str, str]:
    peak, full_peak = (max(run["peak_bytes"] for run in decodes) for decodes in (runs, full))
    return {
        "decoder": name,
        "time": "1" if runs is full else format_ratios("seconds", runs, full),
        "seconds": f"{median(runs, 'seconds'):.2f}",
        "first frame": f"{median(runs, 'first_frame_seconds'):.2f}",
        "peak": f"{peak / full_peak:.2f}",
        "peak MB": f"{peak / MB:.1f}",
        "weights MB": f"{runs[0]['weights_bytes'] / MB:.0f}",
        "PSNR": format_psnr(runs[0]["psnr"]) if "psnr" in runs[0] else "",
    }
