"""`python -m weights_convert`: a checkpoint to a folder in MLX layout, and two checkpoints held against each other."""

import argparse
import json
import sys
import time
from functools import partial

import mlx.core as mx
from tqdm import tqdm

from mlx_ltx_vae.checkpoint.original import HALVES
from mlx_ltx_vae.cli import add_common_options, add_report_options, run_command
from mlx_ltx_vae.vae import DTYPES

from .convert import convert
from .tensors import Progress
from .verify import Verification, verify

_GB = 1e9


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m weights_convert",
        usage="%(prog)s SOURCE -o FOLDER [options]\n       %(prog)s --verify A B [options]",
        description="Convert the VAE of an LTX checkpoint to a folder that MLX loads as it is, and verify it.",
    )
    parser.add_argument("source", nargs="?", metavar="SOURCE", help="checkpoint file, folder, or hub repository id")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="must not exist, or be empty")
    parser.add_argument(
        "--verify", nargs=2, metavar=("A", "B"), help="only say whether B holds the weights of A, cast or as they are"
    )
    parser.add_argument("--dtype", choices=list(DTYPES), help="default: each tensor's own")
    parser.add_argument("--only", choices=list(HALVES), help="leave out the other half")
    add_report_options(parser)
    add_common_options(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.verify:
        if arguments.source or arguments.output or arguments.dtype:
            parser.error("--verify A B writes nothing; leave out SOURCE, -o and --dtype")
        return run_command(_verify, arguments)
    if not arguments.source:
        parser.error("SOURCE is missing (or --verify A B)")
    if not arguments.output:
        parser.error("-o FOLDER is missing: where to write the converted checkpoint")
    return run_command(_convert, arguments)


def _convert(arguments: argparse.Namespace) -> None:
    start = time.perf_counter()
    dtype = DTYPES[arguments.dtype] if arguments.dtype else None
    made = convert(arguments.source, arguments.output, dtype=dtype, only=arguments.only, progress=_progress(arguments))
    seconds = time.perf_counter() - start
    if arguments.json:
        print(json.dumps({**made.as_dict(), "seconds": seconds, "peak_memory_bytes": mx.get_peak_memory()}))
    elif not arguments.quiet:
        written = made.written
        print(
            f"{made.output}: {' and '.join(made.halves)} ({made.generation}), {written.tensors} tensors in "
            f"{' and '.join(written.dtypes)}, {written.bytes / _GB:.3f} GB, in {seconds:.1f} s\n"
            f"{_describe(made.verification)}"
        )


def _verify(arguments: argparse.Namespace) -> None:
    source, converted = arguments.verify
    verification = verify(source, converted, only=arguments.only, progress=_progress(arguments))
    if arguments.json:
        print(json.dumps({**verification.as_dict(), "peak_memory_bytes": mx.get_peak_memory()}))
    elif not arguments.quiet:
        print(_describe(verification))


def _describe(verification: Verification) -> str:
    before, after = verification.load_seconds
    return (
        f"Verified: {verification}\n"
        f"Loading: {after:.2f} s, the source {before:.2f} s\n"
        f"Peak memory: {mx.get_peak_memory() / _GB:.3f} GB"
    )


def _progress(arguments: argparse.Namespace) -> Progress:
    """A bar on standard error where a person looks at it."""
    hidden = arguments.quiet or arguments.json or not sys.stderr.isatty()
    return partial(tqdm, unit="tensor", disable=hidden)


if __name__ == "__main__":
    sys.exit(main())
