"""`decode --dry-run --generation NAME`: the plan of a published VAE, without a checkpoint and latents."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any

from ..backend.mlx_utils import DtypeName
from ..errors import PlanError
from ..planning.plan import BitDepth, ModeName, OrderName
from ..published import PublishedVAE
from ..shapes import Grid, Size
from ..tiling import SpatialTilingConfig, TemporalTilingConfig, preset
from ..units import DEFAULT_FPS
from ..video.frame_format import FrameOutput, frame_format
from .cli import CommandParser
from .jobs import plan_report
from .options import pick
from .running import print_report, run_command

_OWN = {"only_here": True}
_REPORT = ("dry_run", "json", "quiet", "debug")


@dataclass(frozen=True)
class PublishedSettings:
    """The options of a plan without files. Some go with `--generation` only."""

    generation: str
    size: Size = field(metadata=_OWN)
    num_frames: int = field(metadata=_OWN)
    sound: bool = field(metadata=_OWN)
    memory_budget: str | int | None
    dtype: DtypeName | None
    mode: ModeName
    order: OrderName
    chunk: int | None
    tile: SpatialTilingConfig | None
    tile_frames: TemporalTilingConfig | None
    preset: str | None
    tile_batch_size: int
    steps: int | None
    bit_depth: BitDepth
    fps: Fraction | None


def find_published(parser: CommandParser, arguments: argparse.Namespace) -> PublishedSettings | None:
    """The plan without files that is wanted, if any. Wrong usage if an option does not go with it, or only with it."""
    if arguments.generation is None:
        for own in fields(PublishedSettings):
            if own.metadata.get("only_here") and getattr(arguments, own.name):
                parser.error(f"--{own.name.replace('_', '-')} goes with --generation, for a plan without files")
        return None
    if not arguments.dry_run:
        parser.error("--generation names no file to decode with; add --dry-run for the plan, or give -m VAE")
    if arguments.latents:
        parser.error("--generation plans without files; leave out LATENTS")
    known = [*_REPORT, *(field.name for field in fields(PublishedSettings))]
    parser.refuse_others(arguments, known, "--generation plans without files")
    with parser.wrong_usage():
        PublishedVAE.find(arguments.generation)
    if arguments.size is None or arguments.num_frames is None:
        parser.error("--generation needs --size WxH and --num-frames N, of the video")
    return pick(PublishedSettings, arguments)


def with_preset(options: Mapping[str, Any], name: str | None, video: Grid) -> Mapping[str, Any]:
    """The options of a video's plan with the tiles of a preset, which may depend on the size; None for no preset."""
    num_frames, height, width = video
    tiling = preset(name, height, width, num_frames) if name else None
    return {**options, "mode": "tiled", "tiling": tiling} if tiling else options


def print_published_plan(
    parser: CommandParser, arguments: argparse.Namespace, settings: PublishedSettings, options: Mapping[str, Any]
) -> int:
    """Print the plan that `decode` would follow; returns the exit code."""
    width, height = settings.size
    video = settings.num_frames, height, width
    with parser.wrong_usage():
        vae = PublishedVAE.find(settings.generation)
        vae.latent_shape(video)
        if settings.sound:
            vae.find_sound()

    def report(_: argparse.Namespace) -> None:
        plan = vae.plan(
            video,
            dtype=settings.dtype,
            sound_fps=settings.fps or DEFAULT_FPS if settings.sound else None,
            holds_latents=False,
            outputs=(FrameOutput(frame_format(settings.bit_depth, PlanError)),),
            **with_preset(options, settings.preset, video),
        )
        used: dict[str, Any] = {"generation": vae.config.generation, "decoder": vae.family.decoder}
        values, text = plan_report(plan, {"vae": used})
        print_report(json.dumps(values) if arguments.json else text)

    return run_command(report, arguments)
