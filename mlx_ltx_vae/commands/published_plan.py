"""`decode --dry-run --generation NAME`: print the plan of a published VAE, without a checkpoint and latents."""

import argparse
import json
from dataclasses import replace
from typing import Any

from ..errors import PlanError
from ..frame_format import FrameOutput, frame_format
from ..options import PlanOptions
from ..published import PublishedVAE
from ..shapes import Grid
from ..tiling import preset
from ..units import DEFAULT_FPS
from .cli import CommandParser
from .jobs import plan_report
from .running import print_report, run_command

_GENERATION_OPTIONS = ("size", "num_frames", "sound")  # need --generation
_SHARED_OPTIONS = (
    *("memory_budget", "dtype", "mode", "order", "chunk", "tile", "tile_frames", "preset", "tile_batch_size", "steps"),
    *("bit_depth", "fps", "dry_run", "json", "quiet", "debug"),
)


def wants_published_plan(parser: CommandParser, arguments: argparse.Namespace) -> bool:
    """Return whether --generation requests a plan without files. Exit with 2 for options that do not fit."""
    if arguments.generation is None:
        for name in _GENERATION_OPTIONS:
            if getattr(arguments, name):
                parser.error(f"--{name.replace('_', '-')} goes with --generation, for a plan without files")
        return False
    if not arguments.dry_run:
        parser.error("--generation names no file to decode with; add --dry-run for the plan, or give -m VAE")
    if arguments.latents:
        parser.error("--generation plans without files; leave out LATENTS")
    parser.refuse_others(
        arguments, ["generation", *_GENERATION_OPTIONS, *_SHARED_OPTIONS], "--generation plans without files"
    )
    with parser.wrong_usage():
        PublishedVAE.find(arguments.generation)
    if arguments.size is None or arguments.num_frames is None:
        parser.error("--generation needs --size WxH and --num-frames N, of the video")
    return True


def with_preset(options: PlanOptions, name: str | None, video: Grid) -> PlanOptions:
    """Return the options of a plan with the tiles of a preset, which may depend on the size. `None` means no preset."""
    num_frames, height, width = video
    tiling = preset(name, height, width, num_frames) if name else None
    return replace(options, mode="tiled", tiling=tiling) if tiling else options


def print_published_plan(parser: CommandParser, arguments: argparse.Namespace, options: PlanOptions) -> int:
    """Print the plan that `decode` would follow, and return the exit code."""
    width, height = arguments.size
    video = arguments.num_frames, height, width
    with parser.wrong_usage():
        vae = PublishedVAE.find(arguments.generation)
        vae.latent_shape(video)
        if arguments.sound:
            vae.find_sound()

    def report(_: argparse.Namespace) -> None:
        outputs = (FrameOutput(frame_format(arguments.bit_depth, PlanError)),)
        plan_options = replace(with_preset(options, arguments.preset, video), holds_latents=False, outputs=outputs)
        sound_fps = arguments.fps or DEFAULT_FPS if arguments.sound else None
        plan = vae.plan(video, plan_options, dtype=arguments.dtype, sound_fps=sound_fps)
        used: dict[str, Any] = {"generation": vae.config.generation, "decoder": vae.family.decoder}
        values, text = plan_report(plan, {"vae": used})
        print_report(json.dumps(values) if arguments.json else text)

    return run_command(report, arguments)
