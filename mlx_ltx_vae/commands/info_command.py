"""`python -m mlx_ltx_vae.info`: describe a checkpoint, a latent file or a video."""

import argparse
import json
import sys

from ..errors import ItemsError, LTXVAEError, describe_error
from ..inspect import inspect
from .cli import CommandParser, add_common_options, examples, print_report, run_command, write_line
from .options import add_latents_options, take


def build_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae.info",
        usage="%(prog)s FILE... [options]",
        description="Describe a checkpoint or a latent file: its generation, sizes and layout, and the memory that "
        "decodes take. Of a checkpoint only the headers are read. Or a video or an image: its size, its metadata, and "
        "what of it encodes.",
        epilog=examples(
            "python -m mlx_ltx_vae.info vae.safetensors",
            "python -m mlx_ltx_vae.info clip.safetensors -m vae.safetensors",
            "python -m mlx_ltx_vae.info clip.mp4",
        ),
    )
    files = "checkpoint files, folders or hub repository ids; latent files; videos"
    parser.add_argument("file", nargs="+", metavar="FILE", help=files)
    values = "print one JSON object on standard output, nothing else; for several files one a line"
    parser.add_argument("--json", action="store_true", help=values)
    latents = parser.add_argument_group("for latents and videos")
    latents.add_argument("-m", "--model", metavar="VAE", help="the checkpoint that they are for")
    audio = "the audio VAE and its vocoder, for audio latents (default: the checkpoint of -m, if it has them)"
    latents.add_argument("--audio-model", metavar="AUDIO", help=audio)
    add_latents_options(latents)
    add_common_options(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command(_info, build_parser().parse_inputs(argv))


def _info(arguments: argparse.Namespace) -> None:
    """Print a report of each file. The error of one among several does not stop the others."""
    options = take(arguments, "tensor", "grid")
    num_failed = 0
    for index, file in enumerate(arguments.file):
        try:
            report = inspect(file, vae=arguments.model, audio_vae=arguments.audio_model, **options)
        except (LTXVAEError, OSError) as error:
            if len(arguments.file) == 1:
                raise
            num_failed += 1
            write_line(f"error: {describe_error(error)}", sys.stderr)
            continue
        text = json.dumps(report.as_dict()) if arguments.json else str(report)
        print_report(f"\n{text}" if index and not arguments.json else text)
    if num_failed:
        raise ItemsError(f"{num_failed} of {len(arguments.file)} files cannot be described.")
