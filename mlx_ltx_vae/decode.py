"""`python -m mlx_ltx_vae.decode`: decodes a latent file to a video."""

import argparse
import json
import sys
import time
import warnings
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import mlx.core as mx

from . import demo
from .checkpoint import open_checkpoint
from .cli import (
    CommandParser,
    add_common_options,
    add_plan_options,
    add_report_options,
    examples,
    frame_rate,
    grid,
    positive,
    run_command,
    share,
    tile,
    tile_frames,
    with_progress,
)
from .device import this_machine
from .dtypes import DTYPES
from .errors import LatentsError, PlanError
from .frame_rate import DEFAULT_FPS
from .latents import MappedLatents, looks_unnormalized, open_latents
from .models.noise import CONVENTIONS, DEFAULT_CONVENTION
from .models.video_vae.specs import decoder_spec
from .pipeline.postprocess import FrameChunk
from .planning.options import parse_options
from .planning.plan import DecodePlan
from .planning.planner import plan_decode
from .shapes import Grid
from .tiling import PRESETS, SpatialTilingConfig, TemporalTilingConfig, TilingConfig, preset
from .units import format_bytes
from .vae import VideoVAE
from .video import check_output, check_output_options, open_sink

_DEMO_OUTPUT = "demo.mp4"


@dataclass
class Report:
    """The report at the end of a run."""

    plan: DecodePlan
    fps: Fraction
    outputs: list[str] = field(default_factory=list)
    frames: int = 0
    seconds: float = 0.0
    first_frame_seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The report as a JSON-serializable dict. `output` is a list if a batch was decoded to several videos."""
        return {
            "frames": self.frames,
            "width": self.plan.width,
            "height": self.plan.height,
            "fps": float(self.fps),
            "seconds": self.seconds,
            "first_frame_seconds": self.first_frame_seconds,
            "peak_memory_bytes": mx.get_peak_memory(),
            "plan": self.plan.as_dict(),
            "output": self.outputs[0] if len(self.outputs) == 1 else self.outputs,
        }

    def __str__(self) -> str:
        rate = self.frames / self.seconds
        return (
            f"Frames: {self.frames}, {rate:.3f} frames-per-sec, first after {self.first_frame_seconds:.2f} s\n"
            f"Peak memory: {format_bytes(mx.get_peak_memory())}"
        )


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae.decode",
        usage="%(prog)s LATENTS -m VAE -o OUT [options]\n       %(prog)s --demo [options]",
        description="Decode LTX video latents to a video, exactly, in memory that does not grow with the clip.",
        epilog=examples(
            "python -m mlx_ltx_vae.decode --demo",
            "python -m mlx_ltx_vae.decode clip.safetensors -m vae.safetensors -o clip.mp4",
            "python -m mlx_ltx_vae.decode clip.npy -m vae/ --memory-budget 8GB --dry-run",
        ),
    )
    _add_input_options(parser)
    how = parser.add_argument_group("how to decode")
    _add_mode_options(how)
    _add_tile_options(how)
    add_plan_options(how)
    _add_noise_options(how)
    _add_video_options(parser.add_argument_group("the video"))
    add_report_options(parser)
    add_common_options(parser)
    return parser


def _add_input_options(parser: CommandParser) -> None:
    parser.add_argument("latents", nargs="?", metavar="LATENTS", help="latent file: .safetensors, .latent, .npy, .npz")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="the format is that of the ending: .mp4 .mov .mkv .webm .gif .npy; folder/ or %%05d.png for stills; - "
        "for raw frames on standard output (default with --demo: demo.mp4)",
    )
    parser.add_argument("-m", "--model", metavar="VAE", help="the checkpoint: file, folder, or hub repository id")
    parser.add_argument(
        "--demo", action="store_true", help="use the small VAE and the latents that ship with the package"
    )
    parser.add_argument(
        "--fps",
        type=frame_rate,
        metavar="RATE",
        help="frames per second: 24, 23.976, 30000/1001 (default: the file's, else 24)",
    )
    parser.add_argument("--tensor", metavar="NAME", help="which tensor of a latent file that has several")
    parser.add_argument(
        "--grid",
        type=grid,
        metavar="FxHxW",
        help="latent frames, rows and columns of packed latents (B, tokens, C), such as 16x22x40",
    )
    parser.add_argument(
        "--unnormalized",
        action="store_true",
        default=None,  # use what the file states
        help="the latents are unnormalized, as diffusers' LTX-2 pipelines return them",
    )


def _add_mode_options(how: argparse._ArgumentGroup) -> None:
    modes = ["auto", "exact", "single", "tiled"]
    how.add_argument(
        "--mode",
        choices=modes,
        default="auto",
        help="exact: in pieces, with the same frames as a single pass. single: the whole clip at once, in memory that "
        "grows with it. tiled: in overlapping tiles that are blended, so not exact. auto (default): exact, and tiles "
        "only if nothing exact fits the memory budget",
    )
    how.add_argument(
        "--order",
        choices=["auto", "time", "rows", "columns"],
        default="auto",
        help="how exact mode goes through the clip; the frames are the same. time: one latent frame after the other, "
        "so that frames are written from the start; memory grows with the size of a frame. rows, columns: all frames "
        "at once, from top to bottom or from left to right; takes less memory where frames are large and the clip is "
        "short, but no frame is written before the end. auto (default): the first of the three that fits the memory "
        "budget",
    )
    how.add_argument(
        "--chunk",
        type=positive,
        metavar="N",
        help="latent frames (or rows, columns) at a time; the frames are the same, memory grows with N (default: 1)",
    )


def _add_tile_options(how: argparse._ArgumentGroup) -> None:
    how.add_argument(
        "--tile",
        type=tile,
        metavar="SIZE:OVERLAP",
        help="decode in tiles of SIZE pixels that share OVERLAP pixels with their neighbors, such as 512:64; not exact",
    )
    how.add_argument(
        "--tile-frames", type=tile_frames, metavar="SIZE:OVERLAP", help="the same along time, in frames, such as 64:24"
    )
    how.add_argument(
        "--preset",
        choices=list(PRESETS),
        help="tiles by name: default is --tile 512:64 --tile-frames 64:24, aggressive 256:64 and 32:8 (least memory), "
        "conservative 768:64 and 96:24 (fewest seams); spatial_only and temporal_only are one half of default; auto is "
        "default, along axes of more than 512 pixels or 65 frames",
    )


def _add_noise_options(how: argparse._ArgumentGroup) -> None:
    how.add_argument(
        "--timestep",
        type=share,
        metavar="T",
        help="for VAEs 0.9.1 to 0.9.8: how noisy the latents are taken to be, 0 to 1 (default: 0.05)",
    )
    how.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="for VAEs that add noise: the same number gives the same frames (default: 0)",
    )
    how.add_argument(
        "--noise-scale",
        type=share,
        metavar="S",
        help="for VAEs 0.9.1 to 0.9.8: the share of the latents that is replaced by noise, 0 to 1 (default: 0.025)",
    )
    how.add_argument(
        "--like",
        choices=list(CONVENTIONS),
        default=DEFAULT_CONVENTION,
        help="for VAEs 0.9.1 to 0.9.8: whose convention. ltx-video (default): the values above. diffusers: timestep 0 "
        "and no noise by default, and noise is mixed into denormalized latents",
    )


def _add_video_options(video: argparse._ArgumentGroup) -> None:
    video.add_argument("--audio", metavar="FILE", help="audio file to add, in full length even if the video is shorter")
    video.add_argument(
        "--codec",
        metavar="NAME",
        help="h264, hevc (or h265), prores, ffv1 (lossless), vp9 or av1 (default: h264, or vp9 for .webm)",
    )
    video.add_argument(
        "--crf",
        type=int,
        metavar="N",
        help="constant quality: 0 is best, 51 worst, or 63 for vp9 and av1 (default: h264 18, hevc 20, vp9 and av1 24)",
    )
    video.add_argument(
        "--live",
        action="store_true",
        help="an .mp4 or .mov that plays while it grows, or with -o - an mp4 on standard output; the file appears "
        "under its name at once, and is removed if the decode fails",
    )
    video.add_argument(
        "--bit-depth", type=int, choices=[8, 10], default=8, help="bits per color and pixel (default: 8)"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.demo:
        if arguments.latents or arguments.model:
            parser.error("--demo comes with latents and a VAE; leave out LATENTS and -m")
        arguments.latents, arguments.model = str(demo.LATENTS), str(demo.VAE)
        arguments.output = arguments.output or _DEMO_OUTPUT
    if not arguments.latents:
        parser.error("LATENTS is missing (or --demo)")
    if not arguments.model:
        parser.error("-m VAE is missing: the checkpoint to decode with")
    if not arguments.output and not arguments.dry_run:
        parser.error("-o OUT is missing: where to write the video")
    if arguments.json and arguments.output == "-":
        parser.error("--json and -o - both write to standard output; choose one")
    if arguments.preset and (arguments.tile or arguments.tile_frames):
        parser.error("--preset cannot be combined with --tile or --tile-frames")
    with parser.wrong_usage():
        _check_usage(arguments)
    return run_command(_decode, arguments)


def _check_usage(arguments: argparse.Namespace) -> None:
    """Raise the errors of options that contradict each other, before any file is read."""
    tiled = arguments.preset or arguments.tile or arguments.tile_frames
    if tiled and arguments.mode not in ("auto", "tiled"):
        raise PlanError(f"tiles go with --mode tiled, not {arguments.mode}")
    parse_options(mode="tiled" if tiled else arguments.mode, order=arguments.order, chunk=arguments.chunk)
    if arguments.output:
        check_output_options(arguments.output, **_output_options(arguments), fps=arguments.fps)


def _decode(arguments: argparse.Namespace) -> None:
    checkpoint = open_checkpoint(arguments.model, encoder=False)
    config = checkpoint.config
    file = open_latents(
        arguments.latents,
        latent_channels=config.latent_channels,
        tensor=arguments.tensor,
        grid=arguments.grid,
        scale=config.scale,
    )
    shape = file.shape._replace(batch=1)
    tiling = _tiling(arguments, config.scale.video_grid(shape.grid))
    plan = plan_decode(
        decoder_spec(config),
        shape,
        this_machine(DTYPES[arguments.dtype or checkpoint.networks["decoder"].dtype]),
        memory_budget=arguments.memory_budget,
        holds_latents=False,
        mode="tiled" if tiling is not None and arguments.mode == "auto" else arguments.mode,
        order=arguments.order,
        tiling=tiling,
        tile_batch_size=arguments.tile_batch_size,
        chunk=arguments.chunk,
    )
    fps = arguments.fps or file.info.fps or DEFAULT_FPS
    outputs = name_outputs(arguments.output, file.shape.batch) if arguments.output else []
    for output in outputs:  # before the weights are read
        check_output(output, **_output_options(arguments), size=plan.frame_size, fps=fps)
    if arguments.dry_run:
        print(json.dumps({"plan": plan.as_dict()}) if arguments.json else plan)
        return
    statistics = checkpoint.read_statistics()
    latents = file.map(statistics=statistics, unnormalized=arguments.unnormalized)
    if looks_unnormalized(latents, *statistics):
        warnings.warn(
            f"{arguments.latents}: the channels have the statistics of unnormalized latents; if the picture is wrong, "
            "add --unnormalized.",
            stacklevel=2,
        )
    vae = VideoVAE.from_pretrained(checkpoint, dtype=arguments.dtype, encoder=False)
    report = Report(plan, fps)
    for item, output in enumerate(outputs):
        _decode_one(vae, latents.item(item), output, report, arguments)
    if arguments.json:
        print(json.dumps(report.as_dict()))
    elif not arguments.quiet:
        print(report, file=sys.stderr if arguments.output == "-" else sys.stdout)


def _tiling(arguments: argparse.Namespace, video_grid: Grid) -> TilingConfig | None:
    """The tiling that the arguments request, or None."""
    if arguments.preset:
        num_frames, height, width = video_grid
        return preset(arguments.preset, height, width, num_frames)
    if not (arguments.tile or arguments.tile_frames):
        return None
    return TilingConfig(
        spatial_config=SpatialTilingConfig(*arguments.tile) if arguments.tile else None,
        temporal_config=TemporalTilingConfig(*arguments.tile_frames) if arguments.tile_frames else None,
    )


def _output_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `open_sink` and `check_output` that the command line determines."""
    return {
        "audio": arguments.audio,
        "codec": arguments.codec,
        "crf": arguments.crf,
        "bit_depth": arguments.bit_depth,
        "fragmented": arguments.live,
    }


def _decode_one(
    vae: VideoVAE, latents: MappedLatents, output: str, report: Report, arguments: argparse.Namespace
) -> None:
    """Decode one batch item to one output."""
    start = time.perf_counter()
    chunks = vae.stream(
        latents,
        report.plan,
        timestep=arguments.timestep,
        seed=arguments.seed,
        noise_scale=arguments.noise_scale,
        like=arguments.like,
        bit_depth=arguments.bit_depth,
    )
    with open_sink(output, **_output_options(arguments), size=report.plan.frame_size, fps=report.fps) as sink:
        for chunk in with_progress(chunks, _count_frames, report.plan.num_frames, arguments):
            sink.write(chunk.to_uint8() if arguments.bit_depth == 8 else chunk.to_uint16())
            if not report.first_frame_seconds:
                report.first_frame_seconds = time.perf_counter() - start
            report.frames += _count_frames(chunk)
    report.seconds += time.perf_counter() - start
    report.outputs.append(output)


def _count_frames(chunk: FrameChunk) -> int:
    return chunk.frames.shape[1]


def name_outputs(output: str, batch: int) -> list[str]:
    """The output of each video of a batch: clip.mp4 -> clip-0.mp4; out/ -> out-0/; f/%05d.png -> f-0/%05d.png."""
    if batch == 1:
        return [output]
    if output == "-":
        raise LatentsError(f"the file has {batch} videos, and standard output takes one; name an output file.")
    path = Path(output)
    if output.endswith("/") or path.is_dir():
        return [f"{path}-{item}/" for item in range(batch)]
    if "%" in path.name:
        return [str(path.parent.with_name(f"{path.parent.name}-{item}") / path.name) for item in range(batch)]
    return [str(path.with_name(f"{path.stem}-{item}{path.suffix}")) for item in range(batch)]


if __name__ == "__main__":
    sys.exit(main())
