"""`python -m mlx_ltx_vae.preview`: latents to a small clip or a contact sheet, by a decoder that takes seconds."""

import argparse
from dataclasses import replace

from .. import demo
from ..video import is_sheet
from . import decode_command
from .cli import CommandParser, run_command
from .job import run_job

_CHOICES = (
    "-m MODEL is missing: a tiny decoder, such as taeltx2_3.safetensors (github.com/madebyollin/taehv, in the folder "
    "safetensors), or a projection that examples/fit_latent_rgb.py fits to your VAE; --demo has its own"
)


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    decode_command.complete_inputs(parser, arguments, demo.LATENT_RGB, "preview.mp4", _CHOICES)
    arguments.is_silent = arguments.is_preview = True
    arguments.contact_sheet = is_sheet(arguments.output or "")
    job, make_task = decode_command.make_job(parser, arguments)
    if arguments.contact_sheet:  # whose pictures need no more than one of each latent frame
        open_whole = job.open
        job = replace(job, open=lambda: open_whole().for_stills())
    return run_command(lambda _: run_job(job, make_task), arguments, computes=not job.dry_run)
