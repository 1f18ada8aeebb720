"""`python -m mlx_ltx_vae.bench --metal`: parts A to G, and what follows from them."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from tqdm import tqdm

from ... import __version__
from ...backend.device import backend
from ...backend.machine import Backend
from ...commands.cli import CommandParser, add_common_options, examples, frame_size, positive, print_report, run_command
from ...errors import LTXVAEError
from ...files.atomic import PartFile, writing_to
from ..case import GENERATION_NAMES, Case
from ..processes import run_fresh
from .convolutions import FORMS, GPU_FORMS
from .jobs import Measurement, Task
from .report import full_report
from .submission import SCHEMA, submission, submission_path
from .sums import clip_sums, describe
from .system import describe_mac
from .verdicts import make_verdicts

#: The parts B, D, E, F and G of the document, each a list.
PARTS = ("convolutions", "elementwise", "decodes", "accuracy", "ranges")


def build_parser() -> CommandParser:
    """The command line of `--metal`."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae.bench --metal",
        usage="%(prog)s [-m VAE] [--quick] [--submit FILE]",
        description="Answer the questions that this package can only ask a Mac, in about five minutes: every "
        "convolution of a decode in every formulation, what runs between them, whole decodes with their time and "
        "memory, their accuracy, and the range of their numbers. A verdict on each says whether the package's rules "
        "are right for this GPU.",
        epilog=examples(
            "python -m mlx_ltx_vae.bench --metal",
            "python -m mlx_ltx_vae.bench --metal -m VAE --submit docs/measurements/",
        ),
    )
    parser.add_argument("--metal", action="store_true", help="this measurement")
    parser.add_argument(
        "-m", "--model", metavar="VAE", help="checkpoint file, folder, or hub repository id (default: random weights)"
    )
    parser.add_argument("--quick", action="store_true", help="convolutions only in bfloat16, and fewer decodes")
    parser.add_argument(
        "--submit",
        type=Path,
        metavar="FILE",
        help="write everything measured to FILE as docs/measurements/ takes it, without paths or names of this "
        "machine; a folder gets a file named after chip and date",
    )
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE; - for standard output")
    parser.add_argument(
        "--size", type=frame_size, default=(768, 512), metavar="WxH", help="of the video, in pixels (default: 768x512)"
    )
    parser.add_argument(
        "--frames", type=positive, default=49, metavar="N", help="length of the video, 1 + 8*k (default: 49)"
    )
    parser.add_argument(
        "--forms",
        nargs="+",
        choices=list(FORMS),
        metavar="FORM",
        help=f"ways to compute a convolution, of {'; '.join(FORMS)} (default: all but taps and columns, which are for "
        "CPUs)",
    )
    _add_random_weights(parser)
    parser.add_argument(
        "--any-device", action="store_true", help="for developers: run without a Metal device, on any other"
    )
    add_common_options(parser)
    return parser


def _add_random_weights(parser: CommandParser) -> None:
    """Add the options of random weights."""
    random = parser.add_argument_group("random weights, without -m")
    random.add_argument("--generation", choices=sorted(GENERATION_NAMES), default="ltx-2.3", help="default: ltx-2.3")
    random.add_argument(
        "--base-width", type=positive, default=128, metavar="N", help="channels of the last layers (default: 128)"
    )


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if backend() is not Backend.METAL and not options.any_device:
        parser.exit(2, f"error: --metal needs Apple's GPU; MLX's default device here is {mx.default_device()}\n")
    return run_command(_measure, options, computes=True)


def _measure(options: argparse.Namespace) -> None:
    machine, day = describe_mac(), date.today().isoformat()
    targets = {}
    if options.submit:
        targets["submit"] = PartFile(submission_path(options.submit, machine["chip"], day))
    if options.json and options.json != "-":
        targets["json"] = PartFile(Path(options.json))
    progress = partial(tqdm, unit="run", disable=not sys.stderr.isatty())
    document = {"schema": SCHEMA, "date": day, "version": __version__, "machine": machine}
    document |= measure(_measurement(options), progress)
    document["verdicts"] = make_verdicts(document)
    if "json" in targets:
        _write(targets["json"], document)
    print_report(json.dumps(document) if options.json == "-" else full_report(document))
    if "submit" in targets:
        _write(targets["submit"], submission(document))
    if failed := errors_of(document):
        raise LTXVAEError(f"{len(failed)} of the measurements failed; the first: {failed[0]}")


def _measurement(options: argparse.Namespace) -> Measurement:
    width, height = options.size
    case = Case(
        model=options.model,
        generation=options.generation,
        base_width=options.base_width,
        dtype=None if options.model else "bfloat16",
        width=width,
        height=height,
        frames=options.frames,
        order="time",
    )
    forms = tuple(options.forms or (FORMS if backend() is Backend.CPU else GPU_FORMS))
    return Measurement(case, backend(), forms, options.quick)


def measure(measurement: Measurement, progress: Callable[[Sequence[Task]], Iterable[Task]] = iter) -> dict[str, Any]:
    """Run all jobs.

    Args:
        progress: wraps the list of jobs, to show how many of them are done.

    Returns:
        case; plan; the results of each part, in which what failed has an `error` in place of its results; sums.
    """
    case, plan = measurement.case, measurement.plan()
    document: dict[str, Any] = {
        "case": {
            "weights": "checkpoint" if case.model else "random",
            "model": case.model,
            "generation": None if case.model else case.generation,
            "base_width": None if case.model else case.base_width,
            "width": case.width,
            "height": case.height,
            "frames": case.frames,
            "latent_frames": plan.latent_shape.frames,
            "is_quick": measurement.is_quick,
        },
        "plan": plan.as_dict(),
        **{part: [] for part in PARTS},
        "errors": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for task in progress(measurement.tasks(f"{folder}/reference.npy")):
            _run(task, document)
    document["sums"] = clip_sums(document["convolutions"])
    return document


def _run(task: Task, document: dict[str, Any]) -> None:
    """Run a job, and put its result where it belongs."""
    rows = document[task.part]
    try:
        result = task.result(run_fresh(task.job))
    except LTXVAEError as error:
        document["errors"].append({"part": task.part, "name": task.name, "error": str(error)})
        if not task.is_part:
            rows.append({**task.known, "error": str(error)})
        return
    rows += result


def errors_of(document: Mapping[str, Any]) -> list[str]:
    """Everything that failed, in a line each."""
    forms = [
        f"{describe(entry)}, {run['form']} in {run['dtype']}: {run['error']}"
        for entry in document["convolutions"]
        for run in entry.get("runs", ())
        if "error" in run
    ]
    return [f"{each['name']}: {each['error']}" for each in document["errors"]] + forms


def _write(target: PartFile, document: Mapping[str, Any]) -> None:
    with writing_to(target.target):
        target.path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    target.complete()
