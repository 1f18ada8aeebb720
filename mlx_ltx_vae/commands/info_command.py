"""`python -m mlx_ltx_vae.info`: describe a checkpoint, a latent file or a video."""

import argparse
import json

from ..inspect import inspect
from .cli import CommandParser, add_common_options, examples, print_report, run_command
from .options import add_latents_options, take


def build_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae.info",
        usage="%(prog)s FILE [options]",
        description="Describe a checkpoint or a latent file: its generation, sizes and layout, and the memory that "
        "decodes take. Of a checkpoint only the headers are read. Or a video or an image: its size, its metadata, and "
        "what of it encodes.",
        epilog=examples(
            "python -m mlx_ltx_vae.info vae.safetensors",
            "python -m mlx_ltx_vae.info clip.safetensors -m vae.safetensors",
            "python -m mlx_ltx_vae.info clip.mp4",
        ),
    )
    parser.add_argument("file", metavar="FILE", help="checkpoint file, folder or hub repository id; latent file; video")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    latents = parser.add_argument_group("for latents and videos")
    latents.add_argument("-m", "--model", metavar="VAE", help="the checkpoint that they are for")
    audio = "the audio VAE and its vocoder, for audio latents (default: the checkpoint of -m, if it has them)"
    latents.add_argument("--audio-model", metavar="AUDIO", help=audio)
    add_latents_options(latents)
    add_common_options(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command(_info, build_parser().parse_args(argv))


def _info(arguments: argparse.Namespace) -> None:
    options = take(arguments, "tensor", "grid")
    report = inspect(arguments.file, vae=arguments.model, audio_vae=arguments.audio_model, **options)
    print_report(json.dumps(report.as_dict()) if arguments.json else report)
