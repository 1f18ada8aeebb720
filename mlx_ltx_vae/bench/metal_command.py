"""`python -m mlx_ltx_vae.bench --metal`: what the rules for Macs rest on, measured on one."""

import argparse
import getpass
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import mlx.core as mx

from .. import __version__
from ..backend.device import backend
from ..backend.machine import Backend
from ..commands.cli import CommandParser
from ..commands.running import run_command, write_line
from ..errors import LTXVAEError
from ..files import PartFile
from ..process import temporary_folder
from ..units import GB, format_bytes
from .command import describe_machine, make_case, progress, publisher, run_fresh, table, timing_table, write_document
from .metal_tasks import FORMS, GPU_FORMS, make_tasks
from .parsers import METAL_SIZE

#: Changes when fields of the document change their meaning or disappear.
SCHEMA = 2

# Of the document; each is a list.
_PARTS = ("convolutions", "decodes", "accuracy", "attention", "errors")
# A path from the root, from the home folder, or of Windows. "GB/s" and "macOS/arm64" are none.
_PATH = re.compile(r"""(?<![\w.)\]])(?:~|[A-Za-z]:\\|/)[^\s'"`,;:()]+""")

Run = Mapping[str, Any]


def run(parser: CommandParser, options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if backend() is not Backend.METAL and not options.any_device:
        parser.exit(2, f"error: --metal needs Apple's GPU; MLX's default device here is {mx.default_device()}\n")
    if options.submit and is_virtual(describe_machine()):
        parser.exit(2, "error: --submit is of real Macs; this one is virtual, and its times mean nothing\n")
    if options.submit and (options.quick or options.size != METAL_SIZE):
        parser.error(
            f"--submit is of whole measurements of {METAL_SIZE[0]}x{METAL_SIZE[1]}; leave out --quick and --size"
        )
    return run_command(_run, options, computes=True)


def _run(options: argparse.Namespace) -> None:
    publish = publisher(options)
    submitted = Path(submission_name(describe_machine(), date.today().isoformat())) if options.submit else None
    part = PartFile(submitted) if submitted else None
    document = measure(options)
    publish(document, full_report(document))
    if part and submitted:
        write_document(part, without_names(document))
        write_line(f"{submitted}: see docs/measurements/README.md of the repository for where to send it", sys.stderr)
    if failed := document["errors"]:
        first = f"{failed[0]['name']}: {failed[0]['error']}"
        raise LTXVAEError(f"{len(failed)} of the measurements failed; the first: {first}")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all tasks.

    Returns:
        schema, date, version, machine, is_virtual; case; the entries of each part, in which what failed has an `error`
        in place of its results; errors, of all parts; plan, what `compare_with_plan` returns.
    """
    dtype = None if options.model else "bfloat16"
    case = make_case(options, order="time", frames=options.num_frames, dtype=dtype)
    weights = "checkpoint" if case.model else "random"
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "date": date.today().isoformat(),
        "version": __version__,
        "machine": describe_machine(),
        "is_virtual": is_virtual(describe_machine()),
        "case": {**asdict(case), "weights": weights, "is_quick": options.quick},
        **{part: [] for part in _PARTS},
    }
    forms = options.forms or (list(FORMS) if backend() is Backend.CPU else GPU_FORMS)
    with temporary_folder() as folder:
        for part, job, known in progress(list(make_tasks(case, forms, f"{folder}/pixels.npy", is_quick=options.quick))):
            try:
                measured = run_fresh(job)
                measured.pop("samples", None)
            except LTXVAEError as error:
                measured = {**asdict(job.case), "error": str(error)}
                document["errors"].append({"part": part, "name": known["name"], "error": str(error)})
            document[part].append({**known, **measured})
    return {**document, "plan": compare_with_plan(document)}


def full_report(document: Mapping[str, Any]) -> str:
    """What was measured on, and a table for each part."""
    machine, case = document["machine"], document["case"]
    title = (
        f"{machine['processor']}, {machine['memory_bytes'] / GB:.1f} GB, {machine['platform']}, MLX {machine['mlx']}; "
        f"{case['frames']} frames of {case['width']}x{case['height']}, {case['weights']} weights"
    )
    forms = {entry["name"]: entry["runs"] for entry in document["convolutions"] if "error" not in entry}
    rows = [_convolution_row(dict(zip(forms, runs, strict=True))) for runs in zip(*forms.values(), strict=True)]
    tables = [table(rows, ["Milliseconds of all calls."])] if rows else []
    for part in ("decodes", "accuracy", "attention"):
        if runs := document[part]:
            tables.append(timing_table([[run] for run in runs], reference=runs[0]["name"]))
    return "\n\n".join([title, *tables, compare_with_plan(document)["verdict"]])


def _convolution_row(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """One convolution, by the ways in which it was computed."""
    run = next(iter(runs.values()))
    sizes = {name: "not finite" if run[name] is None else f"{run[name]:.4g}" for name in ("input", "output")}
    return {
        "convolution": run["layer"],
        "channels": f"{run['in_channels']}->{run['out_channels']}",
        "of one call": "x".join(map(str, run["grid"])),
        "calls": str(run["calls"]),
        **{f"largest {name}": size for name, size in sizes.items()},
        "rule": run["rule"],
        **{name: f"{1e3 * each['seconds']:.2f}" for name, each in runs.items()},
    }


def planned_runs(document: Mapping[str, Any]) -> list[Run]:
    """The decodes that have a plan and did not fail."""
    runs = [*document["decodes"], *document["accuracy"]]
    return [run for run in runs if run.get("planned_bytes") is not None and "error" not in run]


def peak_share(run: Run) -> float:
    """MLX's peak, as a share of the planned one."""
    return run["total_peak_bytes"] / run["planned_bytes"]


def footprint_share(run: Run) -> float | None:
    """What the machine lost, as a share of the plan with its buffer cache; None if it is not known."""
    peak, start = run.get("peak_footprint_bytes"), run.get("start_footprint_bytes")
    return None if peak is None or start is None else (peak - start) / run["planned_total_bytes"]


def compare_with_plan(document: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the decodes of a document with their plans. The footprint counts on Apple's GPUs alone.

    Returns:
        modes: for each way to decode, of the decode that is nearest to its plan or furthest beyond it, planned_bytes,
        measured_bytes and what the first is of the second, planned_per_measured; and the same of footprints, null where
        they are not known. agrees: whether none takes more than planned; null if nothing was measured. verdict: the
        same in a sentence.
    """
    runs, has_footprint = planned_runs(document), document["machine"]["backend"] == Backend.METAL.value
    by_mode: dict[str, list[Run]] = {}
    for run in runs:
        how = f" by {run['order']}" if run["mode"] == "exact" else ""
        by_mode.setdefault(run["mode"] + how, []).append(run)
    modes = [{"mode": mode, "decodes": len(own), **_worst(own, has_footprint)} for mode, own in by_mode.items()]
    beyond = [text for run in runs for text in _beyond(run, has_footprint)]
    shares = ", ".join(f"{mode['planned_per_measured']:.2f} {mode['mode']}" for mode in modes)
    verdict = f"This machine agrees with the plan: planned / measured memory is {shares}."
    if not modes:
        verdict = "No decode was measured that has a plan."
    elif beyond:
        more = f", and {len(beyond) - 1} more" if len(beyond) > 1 else ""
        verdict = f"This machine does not agree with the plan: {beyond[0]}{more}."
    return {"modes": modes, "agrees": not beyond if modes else None, "verdict": verdict}


def _worst(runs: list[Run], has_footprint: bool) -> dict[str, Any]:
    run = max(runs, key=peak_share)
    values = _ratio("", run["planned_bytes"], run["total_peak_bytes"])
    known = [each for each in runs if has_footprint and (footprint_share(each) or 0) > 0]
    if not known:
        return values | dict.fromkeys(_ratio("_footprint", 1, 1))
    run = max(known, key=lambda each: footprint_share(each) or 0)
    taken = run["peak_footprint_bytes"] - run["start_footprint_bytes"]
    return values | _ratio("_footprint", run["planned_total_bytes"], taken)


def _ratio(kind: str, planned: int, measured: int) -> dict[str, Any]:
    ratio = round(planned / measured, 3)
    return {f"planned{kind}_bytes": planned, f"measured{kind}_bytes": measured, f"planned_per_measured{kind}": ratio}


def _beyond(run: Run, has_footprint: bool) -> Iterator[str]:
    """What took more than planned."""
    which = f"the decode {run['name']!r} ({run['mode']})"
    if peak_share(run) > 1:
        measured, planned = format_bytes(run["total_peak_bytes"]), format_bytes(run["planned_bytes"])
        yield f"{which} took {measured} of MLX's memory, and {planned} were planned"
    share = footprint_share(run) if has_footprint else None
    if share is not None and share > 1:
        yield f"the footprint of {which} was {share:.2f} of the planned one"


def submission_name(machine: Mapping[str, Any], date: str) -> str:
    """The name of a document's file, such as apple-m3-max-2026-01-31.json."""
    processor = re.sub(r"[^a-z0-9]+", "-", machine["processor"].lower()).strip("-")
    return f"{processor}-{date}.json"


def is_virtual(machine: Mapping[str, Any]) -> bool:
    """Whether its GPU is a virtual machine's, such as "Apple Paravirtual device", whose times mean nothing."""
    return "virtual" in machine["processor"].lower()


def without_names(value: Any, key: str = "") -> Any:
    """A document without the checkpoint's name, and with paths hidden, and in errors the user's and the host's name."""
    if isinstance(value, Mapping):
        return {name: without_names(each, name) for name, each in value.items() if name not in ("model", "latents")}
    if isinstance(value, list):
        return [without_names(each, key) for each in value]
    if not isinstance(value, str):
        return value
    text = _PATH.sub("(a path)", value)
    host = platform.node()
    for name in (getpass.getuser(), host, host.split(".")[0]) if key == "error" else ():
        text = re.sub(rf"\b{re.escape(name)}\b", "(a name)", text) if name else text
    return text
