"""`python -m mlx_ltx_vae.encode`: encodes videos to latent files."""

import argparse
import json
from contextlib import ExitStack
from pathlib import Path

from .. import demo
from ..checkpoint import open_checkpoint
from ..distributed.ranks import join_ranks
from ..files.opening import sample_path
from ..latents import check_latents_name
from .batch import run_many, skip
from .cli import (
    CommandParser,
    add_common_options,
    add_many_options,
    add_plan_options,
    add_report_options,
    examples,
    frame_rate,
    frame_size,
    positive,
    print_report,
    progress_bar,
    run_command,
    tile,
)
from .file_encoder import ItemEncoder
from .inputs import read_inputs
from .outputs import are_many, check_many, find_pattern, name_items

_ENDING = ".safetensors"


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae.encode",
        usage="%(prog)s VIDEO... -m VAE -o LATENTS [options]",
        description="Encode videos to LTX latents, exactly, in memory that does not grow with the clip.",
        epilog=examples(
            "python -m mlx_ltx_vae.encode clip.mp4 -m vae.safetensors -o clip.safetensors",
            "python -m mlx_ltx_vae.encode clip.mov -m vae/ -o a.safetensors --size 768x512",
            "python -m mlx_ltx_vae.encode clips.csv -m vae/ -o latents/ --skip-existing",
        ),
    )
    parser.add_argument(
        "video",
        nargs="+",
        metavar="VIDEO",
        help="videos or GIFs, folders of images, or patterns such as %%05d.png; @clips.txt for those that a list "
        "names, one a line; clips.csv for a table with a column path, and optionally output, width, height, frames, "
        "fps",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="LATENTS",
        help="output file, .safetensors. For several inputs: folder/ for files named after them, "
        "folder/clip.safetensors; or a pattern such as folder/{name}-latents.safetensors",
    )
    parser.add_argument("-m", "--model", metavar="VAE", help="checkpoint file, folder, or hub repository id")
    parser.add_argument("--demo", action="store_true", help="use the small VAE that ships with the package")

    _add_video_options(parser.add_argument_group("the video"))
    how = parser.add_argument_group("how to encode")
    how.add_argument("--tile", type=tile, metavar="SIZE:OVERLAP", help="encode in tiles, in pixels, such as 512:128")
    add_plan_options(how)

    add_many_options(parser)
    add_report_options(parser)
    add_common_options(parser)
    return parser


def _add_video_options(video: argparse._ArgumentGroup) -> None:
    video.add_argument("--size", type=frame_size, metavar="WxH", help="frame size to encode (default: the video's)")
    fit = video.add_mutually_exclusive_group()
    fit.add_argument(
        "--resize", action="store_true", help="scale to --size, or to the nearest size that can be encoded"
    )
    fit.add_argument(
        "--crop", action="store_true", help="fill --size and crop the rest, or crop to a size that can be encoded"
    )
    video.add_argument("--frames", type=positive, metavar="N", help="encode the first N frames (default: all)")
    video.add_argument("--pad", action="store_true", help="repeat the last frame up to 1 + 8*k (default: drop frames)")
    video.add_argument(
        "--fps",
        type=frame_rate,
        metavar="RATE",
        help="drop or repeat frames to this rate, at unchanged speed; for images, their rate (default: the video's)",
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = build_parser()
    arguments = parser.parse_inputs(argv)
    if arguments.demo and arguments.model:
        parser.error("--demo comes with a VAE; leave out -m")
    if arguments.demo:
        arguments.model = str(demo.VAE)
    if not arguments.model:
        parser.error("-m VAE is missing: the checkpoint to encode with (or --demo)")
    if not arguments.output and not any(name.lower().endswith(".csv") for name in arguments.video):
        parser.error("-o LATENTS is missing: where to write the latents")
    with parser.wrong_usage():
        if are_many(arguments.video):
            check_many(arguments.video, arguments.output)
        pattern = find_pattern(arguments.video, arguments.output, _ENDING)
        if pattern:
            check_latents_name(pattern)
    return run_command(_encode, arguments, computes=not arguments.dry_run)


def _encode(arguments: argparse.Namespace) -> None:
    ranks = join_ranks(arguments.distributed, arguments.rank_timeout)
    if ranks is None:
        return
    pattern = find_pattern(arguments.video, arguments.output, _ENDING)
    items = name_items(read_inputs(arguments.video, with_sizes=True), pattern, is_dry_run=arguments.dry_run)
    is_many = are_many(arguments.video)
    checkpoint = ranks.together(lambda: open_checkpoint(arguments.model, decoder=False))
    ranks.check_same({"the checkpoints": checkpoint.description})
    ranks.check_same_contents(lambda: {"the weights": checkpoint.sample()})
    encoder = ItemEncoder(checkpoint, arguments, is_many=is_many, ranks=ranks)
    if is_many:
        run_many(encoder, items, arguments, ranks)
        return
    if ranks.first_decides(lambda: skip(encoder.measure(items[0]), arguments)):
        return
    encoder.measure_machine()
    with ExitStack() as stack:
        video, plan = ranks.together(lambda: stack.enter_context(encoder.open(items[0])))
        ranks.check_same({"the videos": [video.size, video.num_frames, str(video.fps)], "the plans": plan.as_dict()})
        if arguments.dry_run:
            if ranks.is_first:
                print_report(json.dumps({"plan": plan.as_dict()}) if arguments.json else plan)
            return
        ranks.check_same_contents(lambda: {"the contents of the videos": sample_path(Path(items[0].source))})
        with progress_bar(video.num_frames, arguments) as bar:
            report = encoder.encode(items[0], video, plan, bar.update)
    if not ranks.is_first:
        return
    if arguments.json:
        print_report(json.dumps(report.as_dict()))
    elif not arguments.quiet:
        print_report(report)
