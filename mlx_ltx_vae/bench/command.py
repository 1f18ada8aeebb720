"""What the benchmark commands share: options, progress and reports."""

import argparse
import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..backend.dtypes import DTYPES
from ..commands.cli import add_common_options, argument_type, frame_size, memory_budget, positive, print_report
from ..distributed.ranks import Ranks, Work
from ..files.atomic import PartFile
from ..tiling import PRESETS
from .case import GENERATION_NAMES, Case
from .lockstep import find_recorded, measure_case
from .plot import draw, new_figure
from .processes import Job, Run, describe_machine, run_interleaved
from .tables import rank_table, speed_ups

_PLOT_ENDINGS = (".png", ".svg", ".pdf")
_ORDERS = ("time", "rows", "columns")

_MEASURE = "measure"
_ONE_RANK = (_MEASURE, "skip")

#: The choices of `--modes`. The exact mode in a given order goes by the order's name.
MODES = ("exact", *_ORDERS, "single", "tiled")


def add_decode_options(parser: argparse.ArgumentParser) -> None:
    """Options that say what is decoded or encoded, but for `--frames` and `--modes`, and `add_run_options`."""
    parser.add_argument(
        "-m", "--model", metavar="VAE", help="checkpoint file, folder, or hub repository id (default: random weights)"
    )
    parser.add_argument(
        "--size", type=frame_size, default=(256, 256), metavar="WxH", help="of the video, in pixels (default: 256x256)"
    )
    parser.add_argument(
        "--dtype",
        choices=list(DTYPES),
        help="compute in this precision (default: the checkpoint's, float32 for random weights)",
    )
    parser.add_argument(
        "--memory-budget", type=memory_budget, metavar="SIZE", help="plan within this memory: 8GB, 500MB, 50%%"
    )
    parser.add_argument(
        "--chunk",
        type=positive,
        metavar="N",
        help="latent frames (or rows, columns) at a time in exact mode (default: 1)",
    )
    parser.add_argument(
        "--tile",
        type=argument_type(_check_tiles),
        metavar="TILES",
        help=f"SIZE:OVERLAP in pixels, or one of {', '.join(PRESETS)} (mode tiled; default: default)",
    )
    random = parser.add_argument_group("random weights, without -m")
    random.add_argument(
        "--generation",
        choices=sorted(GENERATION_NAMES),
        default="ltx-2.3",
        help="whose layers they have (default: ltx-2.3)",
    )
    random.add_argument(
        "--base-width",
        type=positive,
        default=32,
        metavar="N",
        help="channels of the last layers; the published VAEs have 128 (default: 32)",
    )
    add_run_options(parser)


def plot_file(text: str) -> str:
    """The type of `--plot decodes.png`."""
    if Path(text).suffix.lower() not in _PLOT_ENDINGS:
        raise argparse.ArgumentTypeError(f"{text!r} does not end in {', '.join(_PLOT_ENDINGS)}")
    return text


def _check_tiles(text: str) -> str:
    Case(tiles=text).make_tiling()
    return text


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Options that every measurement has."""
    parser.add_argument("--repeat", type=positive, default=3, metavar="N", help="runs, or rounds, of each (default: 3)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE; - for standard output")
    add_common_options(parser)


def add_rank_options(parser: argparse.ArgumentParser) -> None:
    """Options of a measurement by several ranks."""
    parser.add_argument_group("several ranks, with mlx.launch").add_argument(
        "--one-rank",
        metavar="WHAT",
        help="the time of one rank, for the speed-up. measure (default): the first rank decodes alone too; skip; or a "
        "FILE that --json wrote without mlx.launch, with --modes exact",
    )


def make_case(options: argparse.Namespace, mode: str = "exact", **changes: Any) -> Case:
    """The case of `add_decode_options` for one of `MODES` or another mode; `changes` override it."""
    names = ("model", "dtype", "generation", "base_width", "memory_budget")
    fields: dict[str, Any] = {name: getattr(options, name) for name in names}
    fields["width"], fields["height"] = options.size
    fields["mode"], fields["order"] = ("exact", mode) if mode in _ORDERS else (mode, "auto")
    fields["chunk"] = options.chunk if fields["mode"] == "exact" else None
    fields["tiles"] = options.tile or Case.tiles
    return Case(**fields | changes)


def report(
    options: argparse.Namespace, jobs: list[Job], table: Callable[[list[list[Run]]], str], plot: str | None = None
) -> None:
    """Run the jobs as `add_run_options` say, print their runs as `table` formats them, and draw decodes to `plot`."""
    json_file = _new_json(options)
    plot_part = PartFile(Path(plot)) if plot else None
    figure = new_figure() if plot else None
    results = run_interleaved(jobs, options.repeat, partial(tqdm, unit="run", disable=not sys.stderr.isatty()))
    if figure and plot_part:
        draw(figure, results)
        figure.savefig(plot_part.path, dpi=150)
        plot_part.complete()
    document = {"machine": describe_machine(), "runs": [run for runs in results for run in runs]}
    _publish(options, json_file, document, table(results))


def report_ranks(options: argparse.Namespace, cases: Sequence[Case], ranks: Ranks) -> None:
    """Decode each case by all ranks, and by one as `--one-rank` says, and print it as `report` does, on the first rank.

    Raises:
        LTXVAEError: if something cannot be measured, on all ranks.
    """
    json_file = ranks.together(lambda: _new_json(options) if ranks.is_first else None)
    recorded = options.one_rank if options.one_rank not in _ONE_RANK else None
    earlier: list[list[Run]] = []
    if recorded:
        earlier = ranks.together(lambda: [find_recorded(recorded, case) for case in cases] if ranks.is_first else [])
    alone = options.one_rank == _MEASURE
    results = [runs for case in cases for runs in measure_case(case, ranks, options.repeat, alone=alone)] + earlier
    machines, hosts = zip(*ranks.gather([describe_machine(), platform.node()]), strict=True)
    if not ranks.is_first:
        return
    ratios = [
        {"frames": frames, "ranks": size, "speed_up": ratio} for (frames, size), ratio in speed_ups(results).items()
    ]
    document = {
        "machine": machines[0],
        "machines": machines,
        "ranks": ranks.size,
        "distributed": Work.ROWS.value,
        "speed_ups": [each for each in ratios if each["ranks"] > 1],
        "runs": [run for runs in results for run in runs],
    }
    notes = []
    if alone:
        notes.append("1 rank: the first rank alone, in the same process, while the others sleep.")
    if recorded:
        notes.append(f"1 rank: from {recorded}.")
    if len(set(hosts)) < len(hosts):
        notes.append("Ranks share a machine: mlx.launch takes a core, and so does each rank that waits for another.")
    _publish(options, json_file, document, rank_table(results, notes))


def _new_json(options: argparse.Namespace) -> PartFile | None:
    """The file of `--json`, created before anything is measured, so that a folder that is missing is said first."""
    return PartFile(Path(options.json)) if options.json and options.json != "-" else None


def _publish(options: argparse.Namespace, json_file: PartFile | None, document: Mapping[str, Any], text: str) -> None:
    """Print a report as text, and write it as `--json` says."""
    if options.json == "-":
        print_report(json.dumps(document))
        return
    if json_file:
        json_file.path.write_text(json.dumps(document, indent=1), encoding="utf-8")
        json_file.complete()
    print_report(text)
