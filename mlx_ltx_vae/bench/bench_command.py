"""`python -m mlx_ltx_vae.bench`: measure time and memory on the machine at hand."""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

from ..commands.cli import CommandParser, examples, positive, run_command
from ..distributed.ranks import launched_rank
from ..process.cleanup import temporary_folder
from .command import MODES, add_decode_options, make_case, plot_file, report
from .decoding import decode, encode
from .metal import command as metal
from .processes import Job
from .tables import timing_table

_COMPARABLE = ("exact", "tiled")


def build_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae.bench",
        usage="%(prog)s [-m VAE] [options]",
        description="Measure time and peak memory of decoding or encoding, each run in a fresh process. "
        "Without -m it takes random weights in the shape of a published VAE.",
        epilog=examples(
            "python -m mlx_ltx_vae.bench",
            "python -m mlx_ltx_vae.bench -m vae.safetensors --size 768x512 --frames 121",
            "python -m mlx_ltx_vae.bench --against --plot decodes.png",
        ),
    )
    lengths = "length of the video, 1 + 8*k; several are measured one after the other (default: 57)"
    parser.add_argument("--frames", type=positive, nargs="+", default=[57], metavar="N", help=lengths)
    add_decode_options(parser)
    batches = "tiles that run together (default: 1)"
    parser.add_argument("--tile-batch-size", type=positive, nargs="+", default=[1], metavar="N", help=batches)
    parser.add_argument(
        "--plot", type=plot_file, metavar="FILE", help="draw memory and times of decodes to FILE (.png, .svg or .pdf)"
    )
    what = parser.add_argument_group("what to measure").add_mutually_exclusive_group()
    modes = f"decode in these, of {', '.join(MODES)} (time, rows, columns: exact, in that order; default: single exact)"
    what.add_argument("--modes", nargs="+", choices=MODES, metavar="MODE", help=modes)
    against = "decode in a single pass and in these modes, and compare their frames too (default: exact tiled)"
    what.add_argument("--against", nargs="*", choices=["single", *_COMPARABLE], metavar="MODE", help=against)
    kernels = "on a Mac: convolutions in every formulation, and whole decodes; see --metal --help for its own options"
    what.add_argument("--metal", action="store_true", help=kernels)
    what.add_argument("--encode", action="store_true", help="encode as a stream, and in tiles with --tile")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if "--metal" in arguments:
        return metal.main(arguments)
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.plot and options.encode:
        parser.error("--plot draws decodes; leave out --encode")
    if options.plot and len(options.frames) > 1:
        parser.error("--plot draws decodes of one length; give --frames one number")
    if launched_rank() is not None:
        parser.error("each run is a process of its own; for several ranks see decode --json in docs/scaling.md")
    return run_command(_bench, options, computes=True)


def _bench(options: argparse.Namespace) -> None:
    if options.encode:
        notes = ["Metal may have a faster convolution for a batch of one than for more."]
        table = partial(timing_table, reference="stream", notes=notes if max(options.tile_batch_size) > 1 else ())
        report(options, list(_encodes(options)), table)
        return
    with temporary_folder() as folder:
        report(options, list(_decodes(options, folder)), partial(timing_table, reference="single"), options.plot)


def _decodes(options: argparse.Namespace, folder: Path) -> Iterator[Job]:
    """Every mode with every length. `folder` is for frames that are compared."""
    modes = options.modes or ["single", "exact"]
    if options.against is not None:
        modes = ["single", *(name for name in _COMPARABLE if name in (options.against or _COMPARABLE))]
    for frames, mode in product(options.frames, modes):
        use = {"save" if mode == "single" else "reference": f"{folder}/{frames}.npy"}
        compared = {} if options.against is None else use
        for size in options.tile_batch_size if mode == "tiled" else [1]:
            case = make_case(options, mode, frames=frames, tile_batch_size=size)
            yield Job(decode, case, {"sampled": options.plot is not None, **compared})


def _encodes(options: argparse.Namespace) -> Iterator[Job]:
    """Every length as a stream, and in tiles where any are given."""
    for frames in options.frames:
        yield Job(encode, make_case(options, "stream", frames=frames))
        for size in options.tile_batch_size if options.tile else []:
            yield Job(encode, make_case(options, "tiled", frames=frames, tile_batch_size=size))
