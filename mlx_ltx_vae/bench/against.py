"""Our ways to decode beside others': `bench --against`."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import mlx.core as mx
import numpy as np

from .case import Case, Task
from .others import OTHERS, is_installed
from .processes import Run, run_interleaved
from .quality import Difference, difference
from .tables import MB, aligned, median

#: Our own ways.
OURS = ("single", "exact", "tiled")

_LEVELS = 255.0  # between black and white of a uint8 frame


def run_against(base: Case, names: Sequence[str], repeat: int) -> list[list[Run]]:
    """Decode in each way, interleaved, and hold the frames against the single pass's, which is always run.

    Args:
        base: what to decode.
        names: of `OURS` and `OTHERS`.
        repeat: how often.

    Returns:
        As `run_interleaved`, in the order of `OURS` and `OTHERS`; each run has psnr and largest (see `Difference`, of
        uint8 frames) besides. What cannot be measured has one run with mode and not_measured, which says why.
    """
    wanted = [name for name in (*OURS, *OTHERS) if name in names or name == "single"]
    missing = [name for name in wanted if name in OTHERS and not is_installed(name)]
    with tempfile.TemporaryDirectory() as folder:
        cases = [
            replace(
                base,
                task=Task.AGAINST if name in OTHERS else Task.DECODE,
                mode=name,
                keep=str(Path(folder) / f"{name}.npy"),
            )
            for name in wanted
            if name not in missing
        ]
        runs = run_interleaved(cases, repeat)
        reference = np.load(cases[0].keep)
        for case, results in zip(cases, runs, strict=True):
            found = {} if _is_refused(results) else asdict(_difference(np.load(case.keep), reference))
            for run in results:
                run |= {**found, "keep": None}
    return runs + [[{"mode": name, "not_measured": "not installed"}] for name in missing]


def _is_refused(results: list[Run]) -> bool:
    return "not_measured" in results[0]


def _difference(one: np.ndarray, other: np.ndarray) -> Difference:
    return difference(mx.array(one), mx.array(other), span=_LEVELS, rounding=0.5)


def against_table(runs: list[list[Run]]) -> str:
    """Medians: times and peaks as ratios to the single pass."""
    single = runs[0]
    seconds = median(single, "seconds")
    rows = []
    resident = False
    for results in runs:
        run = results[0]
        if _is_refused(results):
            rows.append([run["mode"], *["-"] * 5, run["not_measured"]])
            continue
        mark = ""
        if run.get("memory") == "resident":
            resident, mark = True, "*"
        peak = max(run["peak_bytes"] for run in results) / MB
        found = "reference" if run["mode"] == "single" else str(Difference(run["psnr"], run["largest"]))
        rows.append(
            [
                run["mode"],
                {"tiled": run["tiles"], "ports": run["tiles"], "mlx_video": "default"}.get(run["mode"], "-"),
                f"{median(results, 'seconds'):.2f}",
                f"{median(results, 'seconds') / seconds:.2f}",
                f"{peak:.0f}{mark}",
                f"{run['largest']:.0f}",
                found,
            ]
        )
    head = ["decoder", "tiles", "seconds", "ratio", "peak MB", "largest", "PSNR"]
    run = single[0]
    notes = [
        "ratio: to the single pass. largest, PSNR: of the frames' 8-bit levels against the single pass's"
        + ("." if run["model"] else "; random weights make no picture."),
        "ports: each tile in a single pass, one after the other, as MLX ports do.",
        f"{run['frames']} frames of {run['width']}x{run['height']}; medians of {len(single)} fresh processes; "
        f"peaks are the largest, without {run['weights_bytes'] / MB:.0f} MB of weights.",
    ]
    if resident:
        notes.append("* by how much the process's largest resident size grew: torch counts no memory on the CPU.")
    return "\n".join([aligned(head, rows, words=2), *notes])
