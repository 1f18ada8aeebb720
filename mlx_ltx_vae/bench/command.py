"""What the benchmark commands share: options, progress and reports."""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..backend.mlx_utils import DTYPES
from ..checkpoint import open_checkpoint
from ..commands.cli import add_common_options, argument_type, frame_size, memory_budget, positive, print_report
from ..files.atomic import PartFile
from ..files.inputs import InputFiles
from ..tiling import PRESETS
from .case import GENERATION_NAMES, Case
from .plot import draw, new_figure
from .processes import Job, Run, describe_machine, run_interleaved

_PLOT_ENDINGS = (".png", ".svg", ".pdf")
_ORDERS = ("time", "rows", "columns")

#: The choices of `--modes`. The exact mode in a given order goes by the order's name.
MODES = ("exact", *_ORDERS, "single", "tiled")

#: Wraps a list of runs, to show how many of them are done.
progress: Callable[[Any], Any] = partial(tqdm, unit="run", disable=not sys.stderr.isatty())


def add_decode_options(parser: argparse.ArgumentParser) -> None:
    """Options that say what is decoded or encoded, but for `--frames` and `--modes`, and `add_run_options`."""
    add_vae_options(parser, size=(256, 256), base_width=32)
    precision = "compute in this precision (default: the checkpoint's, float32 for random weights)"
    parser.add_argument("--dtype", choices=list(DTYPES), help=precision)
    parser.add_argument(
        "--memory-budget", type=memory_budget, metavar="SIZE", help="plan within this memory: 8GB, 500MB, 50%%"
    )
    chunk = "latent frames (or rows, columns) at a time in exact mode (default: 1)"
    parser.add_argument("--chunk", type=positive, metavar="N", help=chunk)
    tiles = f"SIZE:OVERLAP in pixels, or one of {', '.join(PRESETS)} (mode tiled; default: default)"
    parser.add_argument("--tile", type=argument_type(_check_tiles), metavar="TILES", help=tiles)
    add_run_options(parser)


def add_vae_options(parser: argparse.ArgumentParser, *, size: tuple[int, int], base_width: int) -> None:
    """Options of the VAE and of the picture, with these defaults."""
    parser.add_argument(
        "-m", "--model", metavar="VAE", help="checkpoint file, folder, or hub repository id (default: random weights)"
    )
    picture = f"of the video, in pixels (default: {size[0]}x{size[1]})"
    parser.add_argument("--size", type=frame_size, default=size, metavar="WxH", help=picture)
    random = parser.add_argument_group("random weights, without -m")
    layers = "whose layers they have (default: ltx-2.3)"
    random.add_argument("--generation", choices=sorted(GENERATION_NAMES), default="ltx-2.3", help=layers)
    channels = f"channels of the last layers; the published VAEs have 128, PrunaVAED 64 (default: {base_width})"
    random.add_argument("--base-width", type=positive, default=base_width, metavar="N", help=channels)


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
    add_output_options(parser)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """`--json`, and the options of all commands."""
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE; - for standard output")
    add_common_options(parser)


def make_case(options: argparse.Namespace, mode: str = "exact", **changes: Any) -> Case:
    """The case of the options that there are, for one of `MODES` or another mode; `changes` override it."""
    names = ("model", "dtype", "generation", "base_width", "memory_budget", "chunk")
    fields: dict[str, Any] = {name: getattr(options, name, None) for name in names}
    fields["width"], fields["height"] = options.size
    fields["mode"], fields["order"] = ("exact", mode) if mode in _ORDERS else (mode, "auto")
    if fields["mode"] != "exact":
        fields["chunk"] = None
    fields["tiles"] = getattr(options, "tile", None) or Case.tiles
    return Case(**fields | changes)


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
    """A function that prints a report as text, and writes it as `--json` says.

    The file is created at once, so that a folder that is missing is said before anything is measured.
    """
    json_file = _create(options.json, options) if options.json and options.json != "-" else None

    def publish(document: dict[str, Any], text: str) -> None:
        if json_file:
            json_file.path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            json_file.complete()
        print_report(json.dumps(document) if options.json == "-" else text)

    return publish
