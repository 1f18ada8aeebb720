"""`python -m mlx_ltx_vae.bench --metal`: what the rules for Macs rest on, measured on one."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from typing import Any

import mlx.core as mx

from ... import __version__
from ...backend.device import backend
from ...backend.machine import Backend
from ...commands.cli import CommandParser, examples, positive, run_command
from ...errors import LTXVAEError
from ...process.cleanup import temporary_folder
from ...units import GB, MB
from ..command import add_output_options, add_vae_options, make_case, progress, publisher
from ..processes import describe_machine, run_fresh
from ..tables import table
from .jobs import make_tasks, plan_case
from .kernels import FORMS, GPU_FORMS

#: Changes when fields of the document change their meaning or disappear.
SCHEMA = 1

# What is printed of each part.
_COLUMNS = {
    "elementwise": ("shape", "operation", "is_ours", "seconds", "gb_per_second"),
    "attention": ("grid", "size", "is_ours", "seconds", "scratch_bytes"),
    "decodes": (
        *("name", "seconds", "first_frame_seconds"),
        *("total_peak_bytes", "planned_bytes", "peak_footprint_bytes", "planned_total_bytes"),
    ),
    "accuracy": ("name", "psnr", "largest"),
    "ranges": ("layer", "is_normalized", "input", "output"),
}


def build_parser() -> CommandParser:
    """The command line of `--metal`."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae.bench --metal",
        usage="%(prog)s [-m VAE] [--quick] [--json FILE]",
        description="Measure what the package's rules for Macs rest on, in about five minutes: every convolution of a "
        "decode in every formulation, what runs between them, the attention of the diffusion decoder, whole decodes "
        "with their time and memory, their accuracy, and the range of their numbers. In a clone of the repository, "
        "python -m benchmarks metal FILE says from the written file whether the rules are right for this GPU.",
        epilog=examples(
            "python -m mlx_ltx_vae.bench --metal",
            "python -m mlx_ltx_vae.bench --metal -m VAE --json mac.json",
        ),
    )
    parser.add_argument("--metal", action="store_true", help="this measurement")
    parser.add_argument("--quick", action="store_true", help="convolutions only in bfloat16, and fewer decodes")
    length = "length of the video, 1 + 8*k (default: 49)"
    parser.add_argument("--frames", type=positive, default=49, metavar="N", help=length)
    forms = (
        f"ways to compute a convolution, of {'; '.join(FORMS)} (default: all but taps and columns, which are for CPUs)"
    )
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), metavar="FORM", help=forms)
    device = "for developers: run without a Metal device, on any other"
    parser.add_argument("--any-device", action="store_true", help=device)
    add_vae_options(parser, size=(768, 512), base_width=128)
    add_output_options(parser)
    return parser


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if backend() is not Backend.METAL and not options.any_device:
        parser.exit(2, f"error: --metal needs Apple's GPU; MLX's default device here is {mx.default_device()}\n")
    return run_command(_run, options, computes=True)


def _run(options: argparse.Namespace) -> None:
    publish = publisher(options)
    document = measure(options)
    publish(document, full_report(document))
    if failed := document["errors"]:
        first = f"{failed[0]['name']}: {failed[0]['error']}"
        raise LTXVAEError(f"{len(failed)} of the measurements failed; the first: {first}")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all tasks.

    Returns:
        schema, date, version, machine; case; plan; the entries of each part, in which what failed has an `error` in
        place of its results; errors, of all parts.
    """
    case = make_case(options, "time", frames=options.frames, dtype=None if options.model else "bfloat16")
    weights = "checkpoint" if case.model else "random"
    errors: list[dict[str, str]] = []
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "date": date.today().isoformat(),
        "version": __version__,
        "machine": describe_machine(),
        "case": {**asdict(case), "weights": weights, "is_quick": options.quick},
        "plan": plan_case(case)[1].as_dict(),
        **{part: [] for part in ("convolutions", *_COLUMNS)},
        "errors": errors,
    }
    forms = options.forms or (list(FORMS) if backend() is Backend.CPU else GPU_FORMS)
    with temporary_folder() as folder:
        for part, job, known in progress(list(make_tasks(case, forms, f"{folder}/pixels.npy", is_quick=options.quick))):
            try:
                measured = run_fresh(job)
                measured.pop("samples", None)
            except LTXVAEError as error:
                measured = {"error": str(error)}
                errors.append({"part": part, "name": known.get("name", part), **measured})
            if not known:
                document[part] = measured.get("runs", [])
            else:
                document[part].append({**known, **measured})
            for run in measured.get("runs", ()):
                if "error" in run:
                    name = f"{describe(known)}, {run['form']} in {run['dtype']}"
                    errors.append({"part": part, "name": name, "error": run["error"]})
    return document


def full_report(document: Mapping[str, Any]) -> str:
    """What was measured on, and a table for each part. Columns have the names of the JSON; bytes are in MB."""
    document = {**document, "ranges": document["ranges"][:8]}
    machine, case = document["machine"], document["case"]
    title = (
        f"{machine['processor']}, {machine['memory_bytes'] / GB:.1f} GB, {machine['platform']}, MLX {machine['mlx']}; "
        f"{case['frames']} frames of {case['width']}x{case['height']}, {case['weights']} weights"
    )
    parts = {"convolutions, ms of a call": _convolutions(document["convolutions"])}
    parts |= {part: [_row(entry, columns) for entry in document.get(part, ())] for part, columns in _COLUMNS.items()}
    return "\n\n".join([title, *(f"{part}\n\n{table(rows)}" for part, rows in parts.items() if rows)])


def describe(entry: Mapping[str, Any]) -> str:
    """A convolution in a few characters, such as 512->512 96x64 x2 (channels, picture, frames)."""
    return f"{entry['in_channels']}->{entry['out_channels']} {entry['width']}x{entry['height']} x{entry['frames']}"


def _convolutions(entries: list[Any]) -> list[dict[str, str]]:
    return [
        {"convolution": describe(entry), "calls": f"{entry['calls']:.0f}", "dtype": dtype, "rule": rule}
        | {
            run["form"]: "failed" if "error" in run else f"{1e3 * run['seconds']:.2f}"
            for run in entry["runs"]
            if run["dtype"] == dtype
        }
        for entry in entries
        if "runs" in entry
        for dtype, rule in entry["rule"].items()
    ]


def _row(entry: Mapping[str, Any], columns: tuple[str, ...]) -> dict[str, str]:
    values = {name: entry.get(name, "failed" if "error" in entry else None) for name in columns}
    return {name.replace("_bytes", " MB").replace("_", " "): _text(name, value) for name, value in values.items()}


def _text(name: str, value: Any) -> str:
    if isinstance(value, list):
        return "x".join(map(str, value))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value / MB:.1f}" if name.endswith("_bytes") else f"{value:.4g}"
    return "" if value is None else str(value)
