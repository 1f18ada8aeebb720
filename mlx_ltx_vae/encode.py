"""`python -m mlx_ltx_vae.encode`: encodes a video to a latent file."""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mlx.core as mx

from . import demo
from .checkpoint import Checkpoint, open_checkpoint
from .cli import (
    CommandParser,
    add_common_options,
    add_plan_options,
    add_report_options,
    examples,
    frame_rate,
    frame_size,
    positive,
    run_command,
    tile,
    with_progress,
)
from .device import this_machine
from .dtypes import DTYPES
from .errors import LatentsError
from .latents import check_latents_name, check_latents_target, save_latents
from .models.video_vae.specs import encoder_spec
from .planning.plan import EncodePlan
from .planning.planner import plan_encode
from .tiling import SpatialTilingConfig, TilingConfig
from .units import format_bytes
from .vae import VideoVAE
from .video import Fit, VideoReader

_UNKNOWN_LENGTH = 1001  # frames; a longer clip takes no more memory


@dataclass(frozen=True)
class Report:
    """The report at the end of a run. `frames` is the number of frames that the latents decode to."""

    frames: int
    size: tuple[int, int]
    fps: Fraction | None
    source_fps: Fraction | None
    seconds: float
    latent_shape: tuple[int, ...]
    plan: EncodePlan
    output: str

    def as_dict(self) -> dict[str, Any]:
        """The report as a JSON-serializable dict. The frame rates of images are null, unless one is given."""
        return {
            "frames": self.frames,
            "width": self.size[0],
            "height": self.size[1],
            "fps": None if self.fps is None else float(self.fps),
            "source_fps": None if self.source_fps is None else float(self.source_fps),
            "seconds": self.seconds,
            "peak_memory_bytes": mx.get_peak_memory(),
            "latent_shape": self.latent_shape,
            "plan": self.plan.as_dict(),
            "output": self.output,
        }

    def __str__(self) -> str:
        rate = ""
        if self.fps and self.source_fps and self.fps != self.source_fps:
            change = "repeating" if self.fps > self.source_fps else "dropping"
            rate = f"Frame rate: {float(self.source_fps):.6g} to {float(self.fps):.6g} fps, {change} frames\n"
        speed = f"{self.frames / self.seconds:.3f} frames-per-sec"
        return (
            f"{rate}Frames: {self.frames}, {speed}, latents {self.latent_shape}\n"
            f"Peak memory: {format_bytes(mx.get_peak_memory())}"
        )


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae.encode",
        usage="%(prog)s VIDEO -m VAE -o LATENTS [options]",
        description="Encode a video to LTX latents, exactly, in memory that does not grow with the clip.",
        epilog=examples(
            "python -m mlx_ltx_vae.encode clip.mp4 -m vae.safetensors -o clip.safetensors",
            "python -m mlx_ltx_vae.encode clip.mov -m vae/ -o a.safetensors --size 768x512",
            "python -m mlx_ltx_vae.encode stills/ --demo -o stills.safetensors --fps 24",
        ),
    )
    parser.add_argument(
        "video", metavar="VIDEO", help="video or GIF, a folder of images, or a pattern such as %%05d.png"
    )
    parser.add_argument("-o", "--output", metavar="LATENTS", required=True, help="output file, .safetensors")
    parser.add_argument("-m", "--model", metavar="VAE", help="checkpoint file, folder, or hub repository id")
    parser.add_argument("--demo", action="store_true", help="use the small VAE that ships with the package")

    video = parser.add_argument_group("the video")
    video.add_argument("--size", type=frame_size, metavar="WxH", help="frame size to encode (default: the video's)")
    fit = video.add_mutually_exclusive_group()
    fit.add_argument(
        "--resize", action="store_true", help="scale to --size, or to the nearest size that can be encoded"
    )
    fit.add_argument(
        "--crop", action="store_true", help="fill --size and crop the rest, or crop to a size that can be encoded"
    )
    video.add_argument("--frames", type=positive, metavar="N", help="encode the first N frames (default: all)")
    video.add_argument("--pad", action="store_true", help="repeat the last frame up to 1 + 8*k (default: drop frames)")
    video.add_argument(
        "--fps",
        type=frame_rate,
        metavar="RATE",
        help="drop or repeat frames to this rate, at unchanged speed; for images, their rate (default: the video's)",
    )

    how = parser.add_argument_group("how to encode")
    how.add_argument("--tile", type=tile, metavar="SIZE:OVERLAP", help="encode in tiles, in pixels, such as 512:128")
    add_plan_options(how)

    add_report_options(parser)
    add_common_options(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.demo and arguments.model:
        parser.error("--demo comes with a VAE; leave out -m")
    if arguments.demo:
        arguments.model = str(demo.VAE)
    if not arguments.model:
        parser.error("-m VAE is missing: the checkpoint to encode with (or --demo)")
    with parser.wrong_usage():
        check_latents_name(arguments.output)
    return run_command(_encode, arguments)


def _encode(arguments: argparse.Namespace) -> None:
    checkpoint = open_checkpoint(arguments.model, decoder=False)
    with VideoReader(
        arguments.video,
        size=arguments.size,
        fit=_fit(arguments),
        multiple=checkpoint.config.spatial_scale,
        max_frames=arguments.frames,
        fps=arguments.fps,
    ) as video:
        plan = _plan(checkpoint, video, arguments)
        if arguments.dry_run:
            print(json.dumps({"plan": plan.as_dict()}) if arguments.json else plan)
            return
        report = _encode_video(checkpoint, video, plan, arguments)
    if arguments.json:
        print(json.dumps(report.as_dict()))
    elif not arguments.quiet:
        print(report)


def _fit(arguments: argparse.Namespace) -> Fit:
    if arguments.crop:
        return Fit.CROP
    return Fit.RESIZE if arguments.resize or arguments.size else Fit.EXACT


def _plan(checkpoint: Checkpoint, video: VideoReader, arguments: argparse.Namespace) -> EncodePlan:
    """Plan the encode. A video may have an unknown number of frames until all of them are read."""
    width, height = video.size
    dtype = arguments.dtype or checkpoint.networks["encoder"].dtype
    return plan_encode(
        encoder_spec(checkpoint.config),
        (video.num_frames or _UNKNOWN_LENGTH, height, width, 3),
        this_machine(DTYPES["float32" if dtype == "float16" else dtype]),  # encoders are promoted
        pad=arguments.pad,
        memory_budget=arguments.memory_budget,
        mode="tiled" if arguments.tile else "auto",
        tiling=TilingConfig(SpatialTilingConfig(*arguments.tile)) if arguments.tile else None,
        tile_batch_size=arguments.tile_batch_size,
    )


def _encode_video(
    checkpoint: Checkpoint, video: VideoReader, plan: EncodePlan, arguments: argparse.Namespace
) -> Report:
    width, height = video.size
    check_latents_target(arguments.output, fps=video.fps)
    vae = VideoVAE.from_pretrained(checkpoint, dtype=arguments.dtype, decoder=False)
    start = time.perf_counter()
    frames = with_progress(video, len, video.num_frames, arguments)
    parts = list(vae.encode_stream(frames, plan, pad=arguments.pad))
    if not parts:
        raise LatentsError(f"{arguments.video}: has no frames.")
    latents = mx.concatenate(parts, axis=2)
    num_frames = checkpoint.config.scale.video_grid(latents.shape[2:])[0]
    save_latents(arguments.output, latents, fps=video.fps, num_frames=num_frames, height=height, width=width)
    seconds = time.perf_counter() - start
    rates = (video.fps, video.source_fps)
    return Report(num_frames, video.size, *rates, seconds, latents.shape, plan, arguments.output)


if __name__ == "__main__":
    sys.exit(main())
