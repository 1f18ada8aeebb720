"""`python -m mlx_ltx_vae.bench`: measure time and memory on the machine at hand."""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from ..commands.cli import CommandParser, examples, positive, run_command
from ..distributed.ranks import join_ranks
from ..process.cleanup import temporary_folder
from .command import MODES, add_decode_options, add_rank_options, make_case, plot_file, report, report_ranks
from .decoding import decode, encode
from .metal import command as metal
from .processes import Job
from .tables import timing_table

_COMPARABLE = ("exact", "tiled")
_DEFAULT_MODES = ["single", "exact"]
_BAND_MODES = ("exact", "time")


def build_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae.bench",
        usage="%(prog)s [-m VAE] [options]",
        description="Measure time and peak memory of decoding or encoding, each run in a fresh process. "
        "Without -m it takes random weights in the shape of a published VAE. The ranks that mlx.launch has started "
        "decode in bands of rows, in their own processes.",
        epilog=examples(
            "python -m mlx_ltx_vae.bench",
            "python -m mlx_ltx_vae.bench -m vae.safetensors --size 768x512 --frames 121",
            "python -m mlx_ltx_vae.bench --against --plot decodes.png",
        ),
    )
    parser.add_argument(
        "--frames",
        type=positive,
        nargs="+",
        default=[57],
        metavar="N",
        help="length of the video, 1 + 8*k; several are measured one after the other (default: 57)",
    )
    add_decode_options(parser)
    parser.add_argument(
        "--tile-batch-size",
        type=positive,
        nargs="+",
        default=[1],
        metavar="N",
        help="tiles that run together (default: 1)",
    )
    parser.add_argument(
        "--plot", type=plot_file, metavar="FILE", help="draw memory and times of decodes to FILE (.png, .svg or .pdf)"
    )
    _add_what(parser)
    add_rank_options(parser)
    return parser


def _add_what(parser: CommandParser) -> None:
    """Add the options that say what to measure."""
    what = parser.add_argument_group("what to measure").add_mutually_exclusive_group()
    what.add_argument(
        "--modes",
        nargs="+",
        choices=MODES,
        metavar="MODE",
        help=f"decode in these modes, of {', '.join(MODES)}; time, rows and columns are the exact mode in that order "
        "(default: single exact)",
    )
    what.add_argument(
        "--against",
        nargs="*",
        choices=["single", *_COMPARABLE],
        metavar="MODE",
        help="decode in a single pass and in these modes, and compare their frames too (default: exact tiled); "
        "comparisons with other programs are in benchmarks/ of the repository",
    )
    what.add_argument(
        "--metal",
        action="store_true",
        help="on a Mac: which convolutions, dtypes and steps its GPU wants, with options of its own, which --metal "
        "--help explains",
    )
    what.add_argument("--encode", action="store_true", help="encode as a stream, and in tiles with --tile")


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
    return run_command(partial(_bench, parser), options, computes=True)


def _bench(parser: CommandParser, options: argparse.Namespace) -> None:
    ranks = join_ranks("auto")
    if ranks is not None and ranks.size > 1:
        _check_ranks(parser, options)
        (mode,) = options.modes or ["exact"]
        report_ranks(options, [make_case(options, mode, frames=frames) for frames in options.frames], ranks)
        return
    if options.one_rank:
        parser.error("--one-rank goes with several ranks, which mlx.launch starts")
    if options.encode:
        notes = ["Metal may have a faster convolution for a batch of one than for more."]
        table = partial(timing_table, reference="stream", notes=notes if max(options.tile_batch_size) > 1 else ())
        report(options, list(_encodes(options)), table)
        return
    with temporary_folder() as folder:
        report(options, list(_decodes(options, folder)), partial(timing_table, reference="single"), options.plot)


def _check_ranks(parser: CommandParser, options: argparse.Namespace) -> None:
    """Refuse what does not go with several ranks, and choose how to measure one."""
    refused = {
        "--encode": options.encode,
        "--against": options.against is not None,
        "--plot": options.plot,
        "--tile": options.tile,
        "--tile-batch-size": options.tile_batch_size != [1],
        f"--modes {' '.join(options.modes or [])}": options.modes and options.modes not in [[m] for m in _BAND_MODES],
    }
    if names := [name for name, is_given in refused.items() if is_given]:
        parser.error(f"{names[0]} goes with one process; several ranks decode in bands of rows, exactly and by time")
    options.one_rank = options.one_rank or "measure"


def _decodes(options: argparse.Namespace, folder: Path) -> Iterator[Job]:
    """Every mode with every length. `folder` is for frames that are compared."""
    compared = options.against is not None
    modes = ["single", *(name for name in _COMPARABLE if name in (options.against or _COMPARABLE))]
    for frames, mode in product(options.frames, modes if compared else options.modes or _DEFAULT_MODES):
        run_options: dict[str, Any] = {"sampled": options.plot is not None}
        if compared:
            run_options["save" if mode == "single" else "reference"] = f"{folder}/{frames}.npy"
        for size in options.tile_batch_size if mode == "tiled" else [1]:
            yield Job(decode, make_case(options, mode, frames=frames, tile_batch_size=size), run_options)


def _encodes(options: argparse.Namespace) -> Iterator[Job]:
    """Every length as a stream, and in tiles where any are given."""
    for frames in options.frames:
        yield Job(encode, make_case(options, "stream", frames=frames))
        for size in options.tile_batch_size if options.tile else []:
            yield Job(encode, make_case(options, "tiled", frames=frames, tile_batch_size=size))


if __name__ == "__main__":
    sys.exit(main())
