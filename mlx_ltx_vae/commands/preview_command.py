"""`python -m mlx_ltx_vae.preview`: decode latents to a small clip or a contact sheet, with a fast decoder."""

import argparse

from .. import demo
from ..model_table import Kind, list_names
from ..options import OutputOptions, PlanOptions
from ..video import is_sheet
from .cli import CommandParser
from .decode_command import DecodeSettings, complete_inputs, run_decode

_CHOICES = (
    f"-m MODEL is missing: give {list_names([Kind.PREVIEW])}, or a tiny decoder of github.com/madebyollin/taehv, or a "
    "projection that examples/fit_latent_rgb.py fits to your VAE; --demo has its own"
)


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    complete_inputs(parser, arguments, demo.LATENT_RGB, _CHOICES)
    sheet = is_sheet(arguments.output or "")
    return run_decode(
        parser,
        arguments,
        OutputOptions(contact_sheet=sheet),
        DecodeSettings(PlanOptions(memory_budget=arguments.memory_budget), are_stills=sheet),
        "preview.mp4" if arguments.demo else "{name}-preview.mp4",
    )
