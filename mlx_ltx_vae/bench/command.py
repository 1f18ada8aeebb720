"""What the benchmarks share: options, runs in fresh processes, and reports. A run is a process of this module."""

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from tqdm import tqdm

from ..backend.device import backend
from ..checkpoint import open_checkpoint
from ..commands.running import print_report
from ..errors import LTXVAEError
from ..files import InputFiles, PartFile
from ..process import Cleanup, kill_program, uninterrupted
from ..units import MB
from .decoding import Case

#: A case's fields, the name of the function as `task`, and what it measured.
Run = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A function to call in a fresh process as `measure(case, **options)`, by values that JSON can represent."""

    measure: Callable[..., dict[str, Any]]  # of a module
    case: Case
    options: Mapping[str, Any] = field(default_factory=dict)
    once: bool = False  # whether it repeats by itself, or gives the same result every time
    variables: Mapping[str, str] = field(default_factory=dict)  # added to the environment of the process


def run_interleaved(jobs: Sequence[Job], repeat: int, progress: Callable[[Any], Any] = iter) -> list[list[Run]]:
    """Run every job `repeat` times in turns, or once where that is enough. Returns for each job its runs.

    Raises:
        LTXVAEError: for a run that fails.
    """
    turns = [(index, job) for turn in range(repeat) for index, job in enumerate(jobs) if turn == 0 or not job.once]
    results: list[list[Run]] = [[] for _ in jobs]
    for index, job in progress(turns):
        results[index].append(run_fresh(job))
    return results


def run_fresh(job: Job) -> Run:
    """Run a job in a process of its own.

    Raises:
        LTXVAEError: for a run that fails, with the last line of its output.
    """
    name, case = job.measure.__name__, job.case
    payload = {"module": job.measure.__module__, "function": name, "case": asdict(case), "options": dict(job.options)}
    command = [sys.executable, "-m", __name__, json.dumps(payload)]
    environment = {**os.environ, **job.variables}
    with uninterrupted():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        end = Cleanup(None, kill_program, process)
    try:
        stdout, stderr = process.communicate()
    finally:
        end()
    if process.returncode:
        last = (stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise LTXVAEError(f"{name} of {case.frames} frames (mode {case.mode}) failed: {last}")
    return {"task": name, **asdict(case), **json.loads(stdout)}


def _run_here(payload: str) -> None:
    """In the process of a job: run it, and print what it measured as JSON."""
    job = json.loads(payload)
    measure = getattr(importlib.import_module(job["module"]), job["function"])
    with redirect_stdout(sys.stderr):  # other programs print what they like
        measured = measure(Case(**job["case"]), **job["options"])
    print(json.dumps(measured))


def describe_machine() -> dict[str, Any]:
    """What the measurements ran on."""
    info = mx.device_info()
    return {
        "platform": platform.platform(),
        "processor": info.get("device_name") or platform.processor() or platform.machine(),
        "architecture": info.get("architecture"),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "working_set_bytes": info.get("max_recommended_working_set_size"),
        "device": str(mx.default_device()),
        "backend": backend().value,
        "mlx": version("mlx"),
        "python": platform.python_version(),
        "tf32": os.environ.get("MLX_ENABLE_TF32"),
        "preload": os.environ.get("LD_PRELOAD", ""),
    }


#: Wraps a list of runs, to show how many of them are done.
progress: Callable[[Any], Any] = partial(tqdm, unit="run", disable=not sys.stderr.isatty())


def chosen_modes(options: argparse.Namespace, default: Sequence[str]) -> Iterator[dict[str, str]]:
    """The fields of a case for each mode, and for the exact mode in each order."""
    for mode in options.mode or default:
        for order in options.order or ["auto"] if mode == "exact" else ["auto"]:
            yield {"mode": mode, "order": order}


def make_case(options: argparse.Namespace, **fields: Any) -> Case:
    """The case of the options that there are, and of other fields, which override them."""
    names = ("model", "dtype", "generation", "base_width", "memory_budget")
    given: dict[str, Any] = {name: getattr(options, name, None) for name in names}
    given["width"], given["height"] = options.size
    if fields.get("mode", "exact") in ("exact", "auto"):
        given["chunk"] = getattr(options, "chunk", None)
    given["tiles"] = getattr(options, "preset", None)
    if tiles := getattr(options, "tile", None):
        given["tiles"] = f"{tiles.tile_size_in_pixels}:{tiles.tile_overlap_in_pixels}"
    return Case(**given | fields)


def report(
    options: argparse.Namespace, jobs: list[Job], table: Callable[[list[list[Run]]], str], plot: str | None = None
) -> None:
    """Run the jobs as `add_run_options` say, print their runs as `table` formats them, and draw decodes to `plot`."""
    publish = publisher(options)
    plot_part = _create(plot, options) if plot else None
    figure = new_figure() if plot else None
    results = run_interleaved(jobs, options.repeat, progress)
    if figure and plot_part:
        draw(figure, results)
        figure.savefig(plot_part.path, dpi=150)
        plot_part.complete()
    publish({"machine": describe_machine(), "runs": [run for runs in results for run in runs]}, table(results))


def _create(output: str, options: argparse.Namespace) -> PartFile:
    if model := getattr(options, "model", None):
        InputFiles(open_checkpoint(model).files).check_output(output)
    return PartFile(Path(output))


def publisher(options: argparse.Namespace) -> Callable[[dict[str, Any], str], None]:
    """A function that prints a report, as text or as JSON, and writes it to the file of `--save`.

    The file is created at once, so that a folder that is missing is said before anything is measured.
    """
    file = _create(options.save, options) if options.save else None

    def publish(document: dict[str, Any], text: str) -> None:
        if file:
            write_document(file, document)
        print_report(json.dumps(document) if options.json else text)

    return publish


def write_document(file: PartFile, document: Mapping[str, Any]) -> None:
    """Complete a file with everything that was measured."""
    file.path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    file.complete()


if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    """A `psnr` as text."""
    return "identical" if decibels is None else f"{decibels:.1f} dB"


def median(runs: list[Run], key: str) -> float:
    """The median of one measured value."""
    return statistics.median(run[key] for run in runs)


def timing_table(results: list[list[Run]], *, reference: str, notes: Sequence[str] = ()) -> str:
    """Times and peaks of decodes or encodes: medians of each case.

    Args:
        reference: the name, mode or dtype whose time is 1, for videos of the same length.
        notes: further lines below the table.
    """
    baseline = {
        runs[0]["frames"]: median(runs, "seconds")
        for runs in results
        if reference in (runs[0].get("name"), runs[0]["mode"], runs[0]["dtype"]) and "seconds" in runs[0]
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
    run = dict(runs[0])
    frames, pixels, tiled = run["frames"], run["width"] * run["height"], run["mode"] in ("tiled", "ports")

    def show(key: str, digits: int, unit: float = 1) -> str:
        return f"{run[key] / unit:.{digits}f}" if key in run else ""

    if "error" not in run:
        run |= {key: median(runs, key) for key in ("seconds", "first_frame_seconds") if key in run}
        run |= {"peak_bytes": max(each["peak_bytes"] for each in runs)}
        run |= {"ratio": run["seconds"] / baseline[frames]} if frames in baseline else {}
    return {
        "name": run.get("name", ""),
        "mode": run["mode"],
        "order": run["order"] if run["mode"] == "exact" else "",
        "tiles": (run["tiles"] or "default") if tiled else "",
        "dtype": run["dtype"] or "",
        "batch": str(run["tile_batch_size"]) if tiled else "",
        "frames": str(frames),
        "seconds": "failed" if "error" in run else show("seconds", 2),
        "ratio": show("ratio", 2),
        "first": show("first_frame_seconds", 2),
        "peak MB": show("peak_bytes", 1, MB),
        "B/pixel": show("bytes_per_pixel", 0),
        "caches": show("between_bytes", 0, pixels),
        "weights MB": show("weights_bytes", 0, MB),
        "largest": show("largest", 3 if run.get("largest", 1) < 1 else 0),
        "PSNR": format_psnr(run["psnr"]) if "psnr" in run else "",
    }


def new_figure() -> "Figure":
    """An empty picture. Raises `LTXVAEError` if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise LTXVAEError(
            'a plot needs matplotlib, which is not installed; install it with: pip install "mlx_ltx_vae[plot]".'
        ) from None
    return Figure(figsize=(10, 4.2), layout="constrained")


def draw(figure: "Figure", results: list[list[Run]]) -> None:
    """Draw the decodes of one video, given the runs of each case: the samples of the first as a curve, times as bars.

    Times are ratios to the first case.
    """
    from matplotlib import style

    with style.context("tableau-colorblind10"):
        memory, times = figure.subplots(1, 2, width_ratios=(3, 2))
        reference = median(results[0], "seconds")
        for runs in results:
            run, ratio = runs[0], median(runs, "seconds") / reference
            (bar,) = times.barh([_name(run)], [ratio])
            times.annotate(f" {ratio:.2f}", (ratio, bar.get_y() + bar.get_height() / 2), va="center", fontsize=9)
            if "samples" in run:
                seconds, active, _ = zip(*run["samples"], strict=True)
                held = run["total_peak_bytes"] - run["peak_bytes"]
                heights = [max(0, each - held) / MB for each in active]
                label = f"{_name(run)}, peak {run['peak_bytes'] / MB:.0f} MB"
                memory.plot(seconds, heights, linewidth=1, label=label, color=bar.get_facecolor())
    memory.set(xlabel="seconds", ylabel="MB in use, without weights and latents", xlim=(0, None), ylim=(0, None))
    memory.legend(fontsize=9, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1))
    times.set(xlabel=f"time, {_name(results[0][0])} = 1")
    times.margins(x=0.15)
    times.invert_yaxis()
    run = results[0][0]
    weights = "a checkpoint" if run["model"] else f"{run['generation']} with {run['base_width']} base channels"
    dtype = run["dtype"] or ("its dtype" if run["model"] else "float32")
    video = f"{run['frames']} frames of {run['width']}x{run['height']} decoded by {weights}, {dtype}"
    figure.suptitle(f"{video}, {backend().value} backend", x=0.01, ha="left", fontsize=11)


def _name(run: Run) -> str:
    order = f", by {run['order']}" if run["mode"] == "exact" else ""
    batch = f", {run['tile_batch_size']} at a time" if run["tile_batch_size"] > 1 else ""
    return f"{run['mode']}{order}{batch}"


if __name__ == "__main__":
    _run_here(sys.argv[1])
