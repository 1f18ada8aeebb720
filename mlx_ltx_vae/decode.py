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
    add_common_options,
    add_plan_options,
    add_report_options,
    frame_rate,
    grid,
    positive,
    run_command,
    tile,
    with_progress,
)
from .device import this_machine
from .dtypes import DTYPES
from .errors import LatentsError
from .frame_rate import DEFAULT_FPS
from .latents import MappedLatents, looks_unnormalized, open_latents
from .models.noise import CONVENTIONS, DEFAULT_CONVENTION
from .models.video_vae.specs import decoder_spec
from .pipeline.postprocess import FrameChunk
from .planning.plan import DecodePlan
from .planning.planner import plan_decode
from .shapes import Grid
from .tiling import PRESETS, SpatialTilingConfig, TemporalTilingConfig, TilingConfig, preset
from .units import GB
from .vae import VideoVAE
from .video import check_output, open_sink

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
            f"Peak memory: {mx.get_peak_memory() / GB:.3f} GB"
        )


def build_parser() -> argparse.ArgumentParser:
    """Build the command-line parser."""
    parser = argparse.ArgumentParser(
        prog="python -m mlx_ltx_vae.decode",
        description="Decode LTX video latents to a video, exactly, in memory that does not grow with the clip.",
    )
    parser.add_argument("latents", nargs="?", metavar="LATENTS", help="latent file: .safetensors, .latent, .npy, .npz")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="format by extension: .mp4 .mov .mkv .webm .gif, folder/ or %%05d.png for stills, .npy; - for raw frames",
    )
    parser.add_argument("-m", "--model", metavar="VAE", help="checkpoint file, folder, or hub repository id")
    parser.add_argument(
        "--demo", action="store_true", help="use the small VAE and the latents that ship with the package"
    )
    parser.add_argument(
        "--fps", type=frame_rate, metavar="RATE", help="24, 23.976, 30000/1001 (default: the file's, else 24)"
    )
    parser.add_argument("--tensor", metavar="NAME", help="which tensor of a latent file that has several")
    parser.add_argument("--grid", type=grid, metavar="FxHxW", help="of packed latents (B, tokens, C), such as 16x22x40")
    parser.add_argument(
        "--unnormalized",
        action="store_true",
        default=None,  # use what the file states
        help="the latents are unnormalized, as diffusers' LTX-2 pipelines return them",
    )

    how = parser.add_argument_group("how to decode")
    modes = ["auto", "exact", "single", "tiled"]
    how.add_argument("--mode", choices=modes, default="auto", help="default: auto, which is exact if it fits")
    how.add_argument("--order", choices=["auto", "time", "rows", "columns"], default="auto", help="default: auto")
    how.add_argument("--chunk", type=positive, metavar="N", help="latent frames (rows, columns) per piece")
    how.add_argument("--tile", type=tile, metavar="SIZE:OVERLAP", help="tiles in pixels, such as 512:64 (mode tiled)")
    how.add_argument("--tile-frames", type=tile, metavar="SIZE:OVERLAP", help="tiles in frames, such as 64:24")
    how.add_argument("--preset", choices=list(PRESETS), help="named tile sizes (mode tiled)")
    add_plan_options(how)
    how.add_argument("--timestep", type=float, metavar="T", help="decode timestep of 0.9.1 to 0.9.8 (default: 0.05)")
    how.add_argument("--seed", type=int, default=0, metavar="N", help="noise seed of 0.9.1 to 0.9.8 (default: 0)")
    how.add_argument(
        "--noise-scale",
        type=float,
        metavar="S",
        help="share of noise in the latents of 0.9.1 to 0.9.8 (default: 0.025)",
    )
    how.add_argument(
        "--like",
        choices=list(CONVENTIONS),
        default=DEFAULT_CONVENTION,
        help="whose defaults 0.9.1 to 0.9.8 follow: diffusers has timestep 0 and no noise (default: ltx-video)",
    )

    video = parser.add_argument_group("the video")
    video.add_argument("--audio", metavar="FILE", help="audio file to add, in full length")
    video.add_argument("--codec", help="h264, hevc or h265, prores, ffv1 (lossless), vp9, av1 (default: by extension)")
    video.add_argument("--crf", type=int, metavar="N", help="quality, 0 is best (default: the codec's)")
    video.add_argument(
        "--live",
        action="store_true",
        help="an .mp4 or .mov that plays while it grows, or with -o - an mp4 on standard output; the file appears "
        "under its name at once, and is removed if the decode fails",
    )
    video.add_argument("--bit-depth", type=int, choices=[8, 10], default=8, help="default: 8")

    add_report_options(parser)
    add_common_options(parser)
    return parser


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
    if (arguments.preset or arguments.tile or arguments.tile_frames) and arguments.mode not in ("auto", "tiled"):
        parser.error(f"tiles go with --mode tiled, not {arguments.mode}")
    return run_command(_decode, arguments)


def _decode(arguments: argparse.Namespace) -> None:
    checkpoint = open_checkpoint(arguments.model, encoder=False)
    config = checkpoint.config
    file = open_latents(
        arguments.latents, latent_channels=config.latent_channels, tensor=arguments.tensor, grid=arguments.grid
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
        check_output(output, **_output_options(arguments, plan, fps))
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


def _output_options(arguments: argparse.Namespace, plan: DecodePlan, fps: Fraction) -> dict[str, Any]:
    """The arguments of `open_sink` and `check_output`."""
    return {
        "size": plan.frame_size,
        "fps": fps,
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
    with open_sink(output, **_output_options(arguments, report.plan, report.fps)) as sink:
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
