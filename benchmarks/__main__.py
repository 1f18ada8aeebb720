"""`python -m benchmarks`: measurements that developers run, one subcommand each."""

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.against import OTHERS, OURS, against_jobs, against_table
from benchmarks.emulation import emulation_jobs, emulation_table
from benchmarks.formulations import formulation_jobs, formulation_table
from benchmarks.metal.pages import ROOT, read_document, submit, write_pages
from benchmarks.metal.verdicts import sums_and_verdicts
from benchmarks.overlap import overlap, overlap_table
from benchmarks.pictures import draw_pictures
from benchmarks.plan_table import plan_table
from benchmarks.quality import precision_jobs, precision_table, quality_jobs, quality_table
from benchmarks.roofline import roofline, roofline_table
from benchmarks.scaling import DEFAULT_TFLOPS, scaling_tables
from benchmarks.validation import validation_jobs, validation_table
from mlx_ltx_vae.bench.command import MODES, add_decode_options, add_run_options, make_case, plot_file, report
from mlx_ltx_vae.bench.metal.command import full_report
from mlx_ltx_vae.bench.processes import Job, Run
from mlx_ltx_vae.commands.cli import CommandParser, add_common_options, positive, print_report, run_command

#: Measurements of fixed cases: what makes their jobs and their table, and a description.
_FIXED = {
    "emulation": (
        emulation_jobs,
        emulation_table,
        "what Metal's convolutions cost in quality, emulated on the CPU, on the demo clip",
    ),
    "formulations": (formulation_jobs, formulation_table, "what the package's convolutions gain over plain MLX"),
    "validate-plan": (validation_jobs, validation_table, "planned peaks against measured ones"),
}


def build_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(prog="python -m benchmarks", description="Measure this package in detail.")
    commands = parser.add_subparsers(required=True, metavar="MEASUREMENT")

    def add(name: str, run: Callable[[argparse.Namespace], None], description: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=description, description=description)
        command.set_defaults(run=run)
        return command

    against = add("against", _against, "our modes and other programs on the same weights and latents")
    _add_decode_options(against, frames=57)
    against.add_argument(
        "--only", nargs="+", choices=[*OURS, *OTHERS], default=[*OURS, *OTHERS], help="the single pass always runs"
    )
    against.add_argument("--plot", type=plot_file, metavar="FILE", help="draw memory and times to FILE")
    overlapping = add("overlap", _overlap, "whether frames are written while the next ones are decoded")
    _add_decode_options(overlapping, frames=241, modes=["exact"])
    overlapping.add_argument("--ffmpeg", action="store_true", help="write an mp4 too")
    _add_decode_options(add("precision", _precision, "time, memory and accuracy of each dtype"), frames=57)
    add_run_options(add("quality", _quality, "what tiles and half precision cost in quality, on the demo clip"))
    limits = add("roofline", _roofline, "decodes against their convolutions alone, and synchronizations")
    _add_decode_options(limits, frames=57, modes=["exact", "single"])
    for name, (jobs, make_table, description) in _FIXED.items():
        add_run_options(add(name, partial(_report_fixed, jobs, make_table), description))
    add_common_options(add("plan-table", lambda _: print(plan_table()), "LTX-2.3's planned peaks on a Mac"))
    add_common_options(
        add(
            "measurements",
            lambda _: print(f"changed: {', '.join(write_pages(ROOT)) or 'nothing'}"),
            "write the tables of README.md and docs/performance.md from docs/measurements/",
        )
    )
    add_common_options(
        add(
            "pictures",
            lambda _: print(f"written: {', '.join(draw_pictures(ROOT / 'docs'))}"),
            "draw docs/demo.gif and docs/tiles.png from the demo clip",
        )
    )
    metal = add("metal", _metal, "what a file of python -m mlx_ltx_vae.bench --metal --json says about our rules")
    metal.add_argument("file", type=Path, metavar="FILE")
    publish = "copy it to docs/measurements/, without paths and names, and write the tables"
    metal.add_argument("--submit", action="store_true", help=publish)
    add_common_options(metal)
    scaling = add(
        "scaling",
        lambda options: print(scaling_tables(options.tflops, options.frames)),
        "a simulation of row bands on 2 to 16 machines",
    )
    speed = "speed of one machine (default: %(default)s)"
    scaling.add_argument("--tflops", type=positive, default=DEFAULT_TFLOPS, metavar="N", help=speed)
    scaling.add_argument("--frames", type=positive, default=121, metavar="N", help="1 + 8*k (default: 121)")
    add_common_options(scaling)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = build_parser().parse_args(argv)
    return run_command(options.run, options)


def _add_decode_options(parser: argparse.ArgumentParser, *, frames: int, modes: list[str] | None = None) -> None:
    """Options of decodes. Measurements with `modes` take several modes and lengths, the others one length."""
    several: dict[str, Any] = {"nargs": "+", "default": [frames]} if modes else {"default": frames}
    parser.add_argument("--frames", type=positive, metavar="N", help=f"1 + 8*k (default: {frames})", **several)
    if modes:
        parser.add_argument("--modes", nargs="+", choices=MODES, default=modes, help=f"default: {' '.join(modes)}")
    add_decode_options(parser)


def _report_fixed(
    jobs: Callable[[], list[Job]], make_table: Callable[[list[list[Run]]], str], options: argparse.Namespace
) -> None:
    report(options, jobs(), make_table)


def _metal(options: argparse.Namespace) -> None:
    document = read_document(options.file)
    print_report(f"{full_report(document)}\n\n{sums_and_verdicts(document)}")
    if options.submit:
        print_report(f"\nwritten: {', '.join(submit(document))}")


def _against(options: argparse.Namespace) -> None:
    case = make_case(options, frames=options.frames)
    with tempfile.TemporaryDirectory() as folder:
        jobs = against_jobs(case, options.only, f"{folder}/single.npy", sampled=options.plot is not None)
        report(options, jobs, against_table, options.plot)


def _precision(options: argparse.Namespace) -> None:
    case = make_case(options, frames=options.frames)
    with tempfile.TemporaryDirectory() as folder:
        report(options, precision_jobs(case, f"{folder}/float32.npy"), precision_table)


def _quality(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report(options, quality_jobs(f"{folder}/single.npy"), quality_table)


def _overlap(options: argparse.Namespace) -> None:
    report(options, _repeating_jobs(options, overlap, ffmpeg=options.ffmpeg), overlap_table)


def _roofline(options: argparse.Namespace) -> None:
    report(options, _repeating_jobs(options, roofline), roofline_table)


def _repeating_jobs(options: argparse.Namespace, measure: Callable[..., dict[str, Any]], **extra: Any) -> list[Job]:
    """Every mode with every length, for a measurement that repeats by itself."""
    return [
        Job(measure, make_case(options, mode, frames=frames), {"rounds": options.repeat, **extra}, once=True)
        for frames, mode in product(options.frames, options.modes)
    ]


if __name__ == "__main__":
    sys.exit(main())
