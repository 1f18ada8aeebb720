"""`python -m mlx_ltx_vae.encode`: encodes videos to latent files."""

import argparse
import sys
from functools import partial

from . import demo
from .commands.cli import CommandParser, examples, frame_rate, frame_size, positive, run_command, tile
from .commands.encode_task import EncodeSettings, EncodeTask
from .commands.inputs import has_table
from .commands.job import Job, run_job
from .commands.options import add_network_options, add_output_options, add_plan_options, pick
from .commands.outputs import find_pattern
from .latents import check_latents_name
from .planning.options import parse_options
from .tiling import TilingConfig


def build_parser() -> CommandParser:
    """The command line."""
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
    videos = """videos or GIFs, folders of images, or patterns such as %%05d.png; @clips.txt for those that a list
        names, one a line; clips.csv for a table with a column path, and optionally output, width, height, frames,
        fps"""
    parser.add_argument("video", nargs="+", metavar="VIDEO", help=videos)
    output = """output file, .safetensors. For several inputs: folder/ for files named after them,
        folder/clip.safetensors; or a pattern such as folder/{name}-latents.safetensors"""
    parser.add_argument("-o", "--output", metavar="LATENTS", help=output)
    add_network_options(parser, demo="the small VAE that ships with the package")
    _add_video_options(parser.add_argument_group("the video"))
    how = parser.add_argument_group("how to encode")
    how.add_argument("--tile", type=tile, metavar="SIZE:OVERLAP", help="encode in tiles, in pixels, such as 512:128")
    add_plan_options(how)
    add_output_options(parser)
    return parser


def _add_video_options(video: argparse._ArgumentGroup) -> None:
    video.add_argument("--size", type=frame_size, metavar="WxH", help="frame size to encode (default: the video's)")
    fit = video.add_mutually_exclusive_group()
    resize = "scale to --size, or to the nearest size that can be encoded"
    fit.add_argument("--resize", action="store_true", help=resize)
    crop = "fill --size and crop the rest, or crop to a size that can be encoded"
    fit.add_argument("--crop", action="store_true", help=crop)
    video.add_argument("--frames", type=positive, metavar="N", help="encode the first N frames (default: all)")
    video.add_argument("--pad", action="store_true", help="repeat the last frame up to 1 + 8*k (default: drop frames)")
    rate = "drop or repeat frames to this rate, at unchanged speed; for images, their rate (default: the video's)"
    video.add_argument("--fps", type=frame_rate, metavar="RATE", help=rate)


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
    if not arguments.output and not has_table(arguments.video):
        parser.error("-o LATENTS is missing: where to write the latents")
    with parser.wrong_usage():
        pattern = find_pattern(arguments.video, arguments.output, ".safetensors")
        if pattern:
            check_latents_name(pattern)
        plan = parse_options(
            memory_budget=arguments.memory_budget,
            mode="tiled" if arguments.tile else "auto",
            tiling=TilingConfig(arguments.tile) if arguments.tile else None,
            tile_batch_size=arguments.tile_batch_size,
        )
    job = pick(Job, arguments, network="encoder", sources=arguments.video, pattern=pattern)
    settings = pick(EncodeSettings, arguments, plan=plan)
    return run_command(lambda _: run_job(job, partial(EncodeTask, settings)), arguments, computes=not job.dry_run)


if __name__ == "__main__":
    sys.exit(main())
