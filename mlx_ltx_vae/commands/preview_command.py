"""`mlx_ltx_vae preview`: small clips, contact sheets and galleries of latents, by a fast decoder."""

import argparse
from pathlib import Path

from .. import demo
from ..model_table import Kind, list_names
from ..options import OutputOptions, PlanOptions
from ..pipeline.prepare import DecodeSettings
from ..video import is_audio, is_sheet
from .cli import CommandParser
from .decode_command import PreviewJob, complete_inputs, run_decode
from .gallery import preview_audio, preview_frames, run_gallery

_CHOICES = (
    f"-m MODEL is missing: give {list_names([Kind.PREVIEW])}, or a tiny decoder of github.com/madebyollin/taehv, or a "
    "projection that examples/fit_latent_rgb.py fits to your VAE; --demo has its own"
)


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    is_gallery = Path(arguments.output or "").suffix.lower() in (".html", ".htm")
    if arguments.watch and not is_gallery:
        parser.error("--watch is for a gallery; name a page with -o, such as gallery.html")
    if is_audio(arguments.output or ""):
        parser.error(f"{arguments.output}: a preview has pictures; decode -o NAME.wav decodes the audio alone")
    if arguments.picks and not is_gallery:
        parser.error("--picks is for a gallery; name a page with -o, such as gallery.html")
    complete_inputs(parser, arguments, demo.LATENT_RGB, None if is_gallery else _CHOICES, kind=Kind.PREVIEW)
    if is_gallery:
        return run_gallery(parser, arguments)
    sheet = is_sheet(arguments.output or "")
    output = OutputOptions(contact_sheet=sheet, frames=preview_frames(arguments))
    plan = PlanOptions(memory_budget=arguments.memory_budget)
    settings = DecodeSettings(output, plan, audio=preview_audio(arguments, is_required=True))
    default = "preview.mp4" if arguments.demo else "{name}-preview.mp4"
    return run_decode(parser, arguments, settings, default, PreviewJob)
