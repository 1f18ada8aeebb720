"""`python -m mlx_ltx_vae.bench --metal`: what the rules for Macs rest on, measured on one."""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import mlx.core as mx

from ... import __version__
from ...backend.device import backend
from ...backend.machine import Backend
from ...commands.cli import CommandParser, examples, positive, run_command, write_line
from ...errors import LTXVAEError
from ...files import PartFile
from ...process import temporary_folder
from ...units import GB
from ..command import add_output_options, add_vae_options, make_case, progress, publisher
from ..processes import describe_machine, run_fresh
from ..tables import table, timing_table
from .agreement import compare_with_plan
from .submission import SIZE, is_virtual, submission_name, without_names
from .tasks import FORMS, GPU_FORMS, make_tasks

#: Changes when fields of the document change their meaning or disappear.
SCHEMA = 2

# Of the document; each is a list.
_PARTS = ("convolutions", "decodes", "accuracy", "attention", "errors")


def build_parser() -> CommandParser:
    """The command line of `--metal`."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae.bench --metal",
        usage="%(prog)s [-m VAE] [--submit] [options]",
        description="Measure what the package's rules for Macs rest on, in about ten minutes: every convolution of a "
        "decode in every formulation, with the range of its numbers; whole decodes, their accuracy, and their memory "
        "against the plan; and blocks of the diffusion decoder's attention. In a clone of the repository, python -m "
        "benchmarks metal FILE says from the written file whether the rules are right for this GPU.",
        epilog=examples(
            "python -m mlx_ltx_vae.bench --metal",
            "python -m mlx_ltx_vae.bench --metal -m VAE --submit",
        ),
    )
    parser.add_argument("--metal", action="store_true", help="this measurement")
    submit = """also write it to a file for the project, without paths and names: apple-m3-max-2026-01-31.json, by the
        chip and the date"""
    parser.add_argument("--submit", action="store_true", help=submit)
    parser.add_argument("--quick", action="store_true", help="fewer decodes, and no attention")
    length = "length of the video, 1 + 8*k (default: 49)"
    parser.add_argument("--num-frames", type=positive, default=49, metavar="N", help=length)
    forms = (
        f"ways to compute a convolution, of {'; '.join(FORMS)} (default: all but taps and columns, which are for CPUs)"
    )
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), metavar="FORM", help=forms)
    device = "for developers: run without a Metal device, on any other"
    parser.add_argument("--any-device", action="store_true", help=device)
    add_vae_options(parser, size=SIZE, base_width=128)
    add_output_options(parser)
    return parser


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if backend() is not Backend.METAL and not options.any_device:
        parser.exit(2, f"error: --metal needs Apple's GPU; MLX's default device here is {mx.default_device()}\n")
    if options.submit and is_virtual(describe_machine()):
        parser.exit(2, "error: --submit is of real Macs; this one is virtual, and its times mean nothing\n")
    if options.submit and (options.quick or options.size != SIZE):
        parser.error(f"--submit is of whole measurements of {SIZE[0]}x{SIZE[1]}; leave out --quick and --size")
    return run_command(_run, options, computes=True)


def _run(options: argparse.Namespace) -> None:
    publish = publisher(options)
    submitted = Path(submission_name(describe_machine(), date.today().isoformat())) if options.submit else None
    part = PartFile(submitted) if submitted else None
    document = measure(options)
    publish(document, full_report(document))
    if part and submitted:
        part.path.write_text(json.dumps(without_names(document), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        part.complete()
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
