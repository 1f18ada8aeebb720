"""`python -m mlx_ltx_vae.bench`: measure time and memory on the machine at hand. Old options work with a warning."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from ..backend.machine import launched_rank
from ..commands.cli import CommandParser, examples, positive, run_command, write_line
from ..errors import CheckpointError
from ..process import temporary_folder
from ..tiling import PRESETS
from . import metal_command
from .command import add_decode_options, add_mode_options, chosen_modes, make_case, plot_file, report, timing_table
from .decoding import Case, decode, encode, open_case
from .processes import Job

_COMPARABLE = ("exact", "tiled")
_FRAMES = 57


def build_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        first=("model", "size", "num_frames", "mode", "memory_budget", "repeat", "save", "plot", "against", "encode"),
        prog="python -m mlx_ltx_vae.bench",
        usage="%(prog)s [-m VAE] [options]",
        description="Measure time and peak memory of decoding or encoding, each run in a fresh process. "
        "Without -m it takes random weights in the shape of a published VAE.",
        epilog=examples(
            "python -m mlx_ltx_vae.bench -m vae.safetensors --size 768x512 --num-frames 121",
            "python -m mlx_ltx_vae.bench --generation ltx-2.5-diffusion --mode exact",
            "python -m mlx_ltx_vae.bench --against --plot decodes.png",
        ),
    )
    length = f"length of the video, 1 + 8*k; may be given more than once (default: {_FRAMES})"
    parser.add_argument("--num-frames", type=positive, action="append", metavar="N", help=length)
    add_decode_options(parser)
    batch = "tiles that run together; may be given more than once (default: 1)"
    parser.add_argument("--tile-batch-size", type=positive, action="append", metavar="N", help=batch)
    picture = "draw memory and times of decodes to FILE (.png, .svg or .pdf)"
    parser.add_argument("--plot", type=plot_file, metavar="FILE", help=picture)
    add_mode_options(parser, "single and exact")
    what = parser.add_argument_group("what to measure").add_mutually_exclusive_group()
    against = "decode in a single pass and in these modes, and compare their frames too (default: exact tiled)"
    what.add_argument("--against", nargs="*", choices=["single", *_COMPARABLE], metavar="MODE", help=against)
    kernels = "on a Mac: whole decodes in many ways, and each convolution; see --metal --help for its own options"
    what.add_argument("--metal", action="store_true", help=kernels)
    what.add_argument("--encode", action="store_true", help="encode as a stream, and in tiles with --tile or --preset")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = with_new_names(sys.argv[1:] if argv is None else argv)
    if "--metal" in arguments:
        return metal_command.main(arguments)
    parser = build_parser()
    options = parser.parse_args(arguments)
    _check(parser, options)
    return run_command(_bench, options, computes=True)


def _check(parser: CommandParser, options: argparse.Namespace) -> None:
    if options.plot and options.encode:
        parser.error("--plot draws decodes; leave out --encode")
    if options.plot and len(options.num_frames or ()) > 1:
        parser.error("--plot draws decodes of one length; give --num-frames once")
    if (options.mode or options.order) and (options.encode or options.against is not None):
        given = "--mode" if options.mode else "--order"
        parser.error(f"{given} is of decodes that are not compared; leave out {given}, or --encode and --against")
    if options.order and "exact" not in (options.mode or ["exact"]):
        parser.error("--order is of the exact mode; add --mode exact")
    if options.encode and not options.model:
        try:
            open_case(Case(generation=options.generation)).spec("encoder")
        except CheckpointError:
            parser.error(f"--encode: random weights of {options.generation} have no encoder; add -m, or choose others")
    if launched_rank() is not None:
        parser.error("each run is a process of its own; for several ranks see decode --json in docs/scaling.md")


def _bench(options: argparse.Namespace) -> None:
    if options.encode:
        notes = ["Metal may have a faster convolution for a batch of one than for more."]
        has_batches = max(options.tile_batch_size or [1]) > 1
        report(
            options,
            list(_encodes(options)),
            partial(timing_table, reference="stream", notes=notes if has_batches else ()),
        )
        return
    with temporary_folder() as folder:
        report(options, list(_decodes(options, folder)), partial(timing_table, reference="single"), options.plot)


def _decodes(options: argparse.Namespace, folder: Path) -> Iterator[Job]:
    """Every mode with every length. `folder` is for frames that are compared."""
    modes = ["single", "exact"]
    if options.against is not None:
        modes = ["single", *(name for name in _COMPARABLE if name in (options.against or _COMPARABLE))]
    for frames, fields in product(options.num_frames or [_FRAMES], list(chosen_modes(options, modes))):
        use = {"save" if fields["mode"] == "single" else "reference": f"{folder}/{frames}.npy"}
        compared = {} if options.against is None else use
        for size in options.tile_batch_size or [1] if fields["mode"] == "tiled" else [1]:
            case = make_case(options, frames=frames, tile_batch_size=size, **fields)
            yield Job(decode, case, {"sampled": options.plot is not None, **compared})


def _encodes(options: argparse.Namespace) -> Iterator[Job]:
    """Every length as a stream, and in tiles where any are given."""
    for frames in options.num_frames or [_FRAMES]:
        yield Job(encode, make_case(options, frames=frames, mode="stream"))
        for size in options.tile_batch_size or [1] if options.tile or options.preset else []:
            yield Job(encode, make_case(options, frames=frames, mode="tiled", tile_batch_size=size))


_OLD = ("--frames", "--modes", "--json", "--tile")
_ORDERS = ("time", "rows", "columns")


def with_new_names(arguments: Iterable[str]) -> list[str]:
    """Arguments with the names of today, and a warning on standard error for each option that had another."""
    groups: list[list[str]] = [[]]  # each option with what follows it
    for argument in arguments:
        if argument[:1] == "-" and len(argument) > 1 and not argument[1].isdigit():
            groups.append(argument.split("=", 1) if argument.partition("=")[0] in _OLD else [argument])
        else:
            groups[-1].append(argument)
    words: list[str] = []
    for group in groups:
        new = _renamed(group[0], group[1:]) if group else None
        if new is not None:
            text = f"{' '.join(group)} is written {' '.join(new)} now; the old form goes with the next release"
            write_line(f"warning: {text}.", sys.stderr)
        words += group if new is None else new
    return words


def _renamed(option: str, values: Sequence[str]) -> list[str] | None:
    """The option and its values as they are written now; None if they are written so."""
    names = [name for value in values for name in value.split(",")]
    if option == "--frames" and values:
        return _repeat("--num-frames", names)
    if option == "--modes" and values:
        orders = [name for name in names if name in _ORDERS]
        modes = dict.fromkeys("exact" if name in _ORDERS else name for name in names)
        orders = ["auto", *orders] if orders and "exact" in names else orders
        return [*_repeat("--mode", modes), *_repeat("--order", orders)]
    if option == "--tile-batch-size" and len(names) > 1:
        return _repeat(option, names)
    if option == "--json" and values:
        return [*(["--json"] if values[0] == "-" else ["--save", values[0]]), *values[1:]]
    if option == "--tile" and values and values[0] in PRESETS:
        return ["--preset", *values]
    return None


def _repeat(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]
