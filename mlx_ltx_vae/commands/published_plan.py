"""`decode --dry-run --generation NAME`: the plan of a published VAE, without a checkpoint and latents."""

import argparse
import json
from typing import Any

from ..errors import PlanError
from ..frame_rate import DEFAULT_FPS
from ..models.families import published
from ..planning.options import PlanOptions
from ..published import PublishedVAE
from ..video.frame_format import FrameOutput, frame_format
from .cli import CommandParser, frame_size, positive, print_report, run_command
from .decode_options import with_preset
from .job import plan_report

#: Those that only go with `--generation`.
_OWN = ("size", "num_frames", "sound")
#: What else it takes.
_OTHERS = (
    "generation", "dry_run", "json", "quiet", "debug", "memory_budget", "dtype", "mode", "order", "chunk", "tile",
    "tile_frames", "preset", "tile_batch_size", "steps", "bit_depth", "fps",
)  # fmt: skip


def add_generation_options(parser: CommandParser) -> None:
    """Add the options of plans without a checkpoint."""
    group = parser.add_argument_group("with --dry-run, in place of LATENTS and -m")
    names = f"plan for a published VAE, without a file: {', '.join(published())}"
    group.add_argument("--generation", choices=list(published()), metavar="NAME", help=names)
    group.add_argument("--size", type=frame_size, metavar="WxH", help="of the video, multiples of 32")
    group.add_argument("--num-frames", type=positive, metavar="N", help="of the video, 1 + 8*k")
    group.add_argument("--sound", action="store_true", help="with its sound, at --fps")


def is_without_files(parser: CommandParser, arguments: argparse.Namespace) -> bool:
    """Whether a published VAE is to be planned for. Wrong usage if an option does not go with that, or only with it."""
    if arguments.generation is None:
        for name in _OWN:
            if getattr(arguments, name):
                parser.error(f"--{name.replace('_', '-')} goes with --generation, for a plan without files")
        return False
    if not arguments.dry_run:
        parser.error("--generation names no file to decode with; add --dry-run for the plan, or give -m VAE")
    if arguments.latents:
        parser.error("--generation plans without files; leave out LATENTS")
    parser.refuse_others(arguments, [*_OWN, *_OTHERS], "--generation plans without files")
    if arguments.size is None or arguments.num_frames is None:
        parser.error("--generation needs --size WxH and --num-frames N, of the video")
    return True


def print_published_plan(parser: CommandParser, arguments: argparse.Namespace, options: PlanOptions) -> int:
    """Print the plan that `decode` would follow; returns the exit code."""
    width, height = arguments.size
    video = arguments.num_frames, height, width
    with parser.wrong_usage():
        vae = PublishedVAE.find(arguments.generation)
        vae.latent_shape(video)
        if arguments.sound:
            vae.find_sound()

    def report(_: argparse.Namespace) -> None:
        plan = vae.plan(
            video,
            dtype=arguments.dtype,
            sound_fps=arguments.fps or DEFAULT_FPS if arguments.sound else None,
            holds_latents=False,
            outputs=(FrameOutput(frame_format(arguments.bit_depth, PlanError)),),
            **vars(with_preset(options, arguments.preset, video)),
        )
        used: dict[str, Any] = {"generation": vae.config.generation, "decoder": vae.family.decoder}
        values, text = plan_report(plan, {"vae": used})
        print_report(json.dumps(values) if arguments.json else text)

    return run_command(report, arguments)
