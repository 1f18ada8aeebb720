"""`mlx_ltx_vae preview`: small clips, contact sheets and galleries of latents, by a fast decoder."""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

from .. import demo
from ..audio_vae import find_audio_decoder
from ..model_table import Kind, list_names
from ..options import OutputOptions, PlanOptions
from ..pipeline.clip_audio import AudioSettings
from ..pipeline.frames import scaling_step
from ..pipeline.prepare import DecodeSettings
from ..video import is_audio, is_sheet
from .cli import CommandParser
from .decode_command import PreviewJob, complete_inputs, run_decode
from .gallery import run_gallery

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
    output, audio = OutputOptions(contact_sheet=is_sheet(arguments.output or "")), None
    if arguments.max_size is not None:
        output = replace(output, frames=replace(output.frames, steps=(scaling_step(arguments.max_size),)))
    if arguments.audio_model is not None:
        find_vae = partial(find_audio_decoder, arguments.audio_model, None, arguments.dtype)
        audio = AudioSettings(find_vae, is_required=not is_gallery)  # in a gallery, some latents may have no audio
    settings = DecodeSettings(output, PlanOptions(memory_budget=arguments.memory_budget), audio=audio)
    if is_gallery:
        return run_gallery(parser, arguments, settings)
    default = "preview.mp4" if arguments.demo else "{name}-preview.mp4"
    return run_decode(parser, arguments, settings, default, PreviewJob)
