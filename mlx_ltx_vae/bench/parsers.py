"""The command lines of bench and of its --metal. Imports no MLX."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from ..backend.machine import DtypeName
from ..commands.cli import (
    CommandParser,
    add_common_options,
    examples,
    frame_size,
    memory_budget,
    positive,
    tile,
)
from ..models.convolution.rules import Formulation
from ..planning.options import ModeName, OrderName
from ..startup import import_command
from ..tiling import PRESETS

#: The width and height of measurements that can be compared, and the names of ways to compute a convolution.
METAL_SIZE = (768, 512)
FORM_NAMES = (
    "the package's rule",
    *(each.value for each in Formulation),
    "joined, MLX's tile batch",
    "joined, no Winograd",
)
#: Modes that are compared with the single pass, and the default length.
COMPARABLE = ("exact", "tiled")
FRAMES = 57

_PLOT_ENDINGS = (".png", ".svg", ".pdf")


def parse(arguments: Sequence[str]) -> tuple[CommandParser, argparse.Namespace]:
    """The parser of these arguments, and what they say."""
    parser = build_metal_parser() if "--metal" in arguments else build_parser()
    return parser, parser.parse_args(arguments)


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
    length = f"length of the video, 1 + 8*k; may be given more than once (default: {FRAMES})"
    parser.add_argument("--num-frames", type=positive, action="append", metavar="N", help=length)
    add_decode_options(parser)
    batch = "tiles that run together; may be given more than once (default: 1)"
    parser.add_argument("--tile-batch-size", type=positive, action="append", metavar="N", help=batch)
    picture = "draw memory and times of decodes to FILE (.png, .svg or .pdf)"
    parser.add_argument("--plot", type=plot_file, metavar="FILE", help=picture)
    add_mode_options(parser, "single and exact")
    what = parser.add_argument_group("what to measure").add_mutually_exclusive_group()
    against = "decode in a single pass and in these modes, and compare their frames too (default: exact tiled)"
    what.add_argument("--against", nargs="*", choices=["single", *COMPARABLE], metavar="MODE", help=against)
    kernels = "on a Mac: whole decodes in many ways, and each convolution; see --metal --help for its own options"
    what.add_argument("--metal", action="store_true", help=kernels)
    what.add_argument("--encode", action="store_true", help="encode as a stream, and in tiles with --tile or --preset")
    return parser


def build_metal_parser() -> CommandParser:
    """The command line of `--metal`."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae.bench --metal",
        usage="%(prog)s [-m VAE] [--submit] [options]",
        description="Measure what the package's rules for Macs rest on, in about ten minutes: every convolution of a "
        "decode in every formulation, with the range of its numbers; whole decodes, their accuracy, and their memory "
        "against the plan; and blocks of the diffusion decoder's attention. In a clone of the repository, python -m "
        "benchmarks metal FILE says from the written file whether the rules are right for this GPU.",
        epilog=examples(
            "python -m mlx_ltx_vae.bench --metal",
            "python -m mlx_ltx_vae.bench --metal -m VAE --submit",
        ),
    )
    parser.add_argument("--metal", action="store_true", help="this measurement")
    submit = """also write it to a file for the project, without paths and names: apple-m3-max-2026-01-31.json, by the
        chip and the date"""
    parser.add_argument("--submit", action="store_true", help=submit)
    parser.add_argument("--quick", action="store_true", help="fewer decodes, and no attention")
    length = "length of the video, 1 + 8*k (default: 49)"
    parser.add_argument("--num-frames", type=positive, default=49, metavar="N", help=length)
    ways = "; ".join(FORM_NAMES)
    forms = f"ways to compute a convolution, of {ways} (default: all but taps and columns, which are for CPUs)"
    parser.add_argument("--forms", nargs="+", choices=FORM_NAMES, metavar="FORM", help=forms)
    device = "for developers: run without a Metal device, on any other"
    parser.add_argument("--any-device", action="store_true", help=device)
    add_vae_options(parser, size=METAL_SIZE, base_width=128)
    add_output_options(parser)
    return parser


def add_decode_options(parser: argparse.ArgumentParser) -> None:
    """Options that say what is decoded or encoded, but for its length and modes, and `add_run_options`."""
    add_vae_options(parser, size=(256, 256), base_width=32)
    precision = "compute in this precision (default: the checkpoint's, float32 for random weights)"
    parser.add_argument("--dtype", choices=get_args(DtypeName), help=precision)
    budget = "plan within this memory: 8GB, 500MB, 50%%"
    parser.add_argument("--memory-budget", type=memory_budget, metavar="SIZE", help=budget)
    chunk = "latent frames (or rows, columns) at a time in exact mode (default: 1)"
    parser.add_argument("--chunk", type=positive, metavar="N", help=chunk)
    tiles = parser.add_mutually_exclusive_group()
    space = "tiles of SIZE pixels that share OVERLAP pixels with their neighbors, for mode tiled"
    tiles.add_argument("--tile", type=tile, metavar="SIZE:OVERLAP", help=space)
    presets = f"tiles of mode tiled by name, of {', '.join(PRESETS)} (default: the first that fits the VAE)"
    tiles.add_argument("--preset", choices=PRESETS, metavar="NAME", help=presets)
    add_run_options(parser)


def add_vae_options(parser: argparse.ArgumentParser, *, size: tuple[int, int], base_width: int) -> None:
    """Options of the VAE and of the picture, with these defaults."""
    checkpoint = "checkpoint file, folder, or hub repository id (default: random weights)"
    parser.add_argument("-m", "--model", metavar="VAE", help=checkpoint)
    picture = f"of the video, in pixels (default: {size[0]}x{size[1]})"
    parser.add_argument("--size", type=frame_size, default=size, metavar="WxH", help=picture)
    random = parser.add_argument_group("random weights, without -m")
    layers = "whose layers they have: ltx-2.3 (default), ltx-2.5, ltx-2.5-diffusion, taehv and others"
    random.add_argument("--generation", type=_generation, default="ltx-2.3", metavar="NAME", help=layers)
    channels = f"channels of the last layers; the published VAEs have 128, PrunaVAED 64 (default: {base_width})"
    random.add_argument("--base-width", type=positive, default=base_width, metavar="N", help=channels)


def _generation(text: str) -> str:
    names = import_command("mlx_ltx_vae.models.families:published")()
    if text not in names:
        raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from {', '.join(names)})")
    return text


def add_mode_options(parser: argparse.ArgumentParser, default: str) -> None:
    """`--mode` and `--order`, each of which may be given several times."""
    modes = f"as in decode; may be given more than once (default: {default})"
    parser.add_argument("--mode", action="append", choices=get_args(ModeName), help=modes)
    orders = "of the exact mode, as in decode; may be given more than once (default: auto)"
    parser.add_argument("--order", action="append", choices=get_args(OrderName), help=orders)


def plot_file(text: str) -> str:
    """The type of `--plot decodes.png`."""
    if Path(text).suffix.lower() not in _PLOT_ENDINGS:
        raise argparse.ArgumentTypeError(f"{text!r} does not end in {', '.join(_PLOT_ENDINGS)}")
    return text


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Options that every measurement has."""
    parser.add_argument("--repeat", type=positive, default=3, metavar="N", help="runs, or rounds, of each (default: 3)")
    add_output_options(parser)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """`--json` and `--save`, and the options of all commands."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    parser.add_argument("--save", metavar="FILE", help="write that object, everything measured, to FILE")
    add_common_options(parser)
