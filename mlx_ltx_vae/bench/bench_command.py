"""`python -m mlx_ltx_vae.bench`: measure time and memory on the machine at hand."""

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

from ..backend.machine import launched_rank
from ..commands.cli import CommandParser
from ..commands.running import run_command
from ..errors import CheckpointError
from ..process import temporary_folder
from .command import Job, chosen_modes, make_case, report, timing_table
from .decoding import Case, decode, encode, open_case
from .parsers import COMPARABLE, FRAMES


def run(parser: CommandParser, options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
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
        modes = ["single", *(name for name in COMPARABLE if name in (options.against or COMPARABLE))]
    for frames, fields in product(options.num_frames or [FRAMES], list(chosen_modes(options, modes))):
        use = {"save" if fields["mode"] == "single" else "reference": f"{folder}/{frames}.npy"}
        compared = {} if options.against is None else use
        for size in options.tile_batch_size or [1] if fields["mode"] == "tiled" else [1]:
            case = make_case(options, frames=frames, tile_batch_size=size, **fields)
            yield Job(decode, case, {"sampled": options.plot is not None, **compared})


def _encodes(options: argparse.Namespace) -> Iterator[Job]:
    """Every length as a stream, and in tiles where any are given."""
    for frames in options.num_frames or [FRAMES]:
        yield Job(encode, make_case(options, frames=frames, mode="stream"))
        for size in options.tile_batch_size or [1] if options.tile or options.preset else []:
            yield Job(encode, make_case(options, frames=frames, mode="tiled", tile_batch_size=size))
