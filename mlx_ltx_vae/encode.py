"""`python -m mlx_ltx_vae.encode`: a video to a latent file."""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mlx.core as mx

from . import demo
from .checkpoint import read_headers
from .cli import (
    add_common_options,
    add_report_options,
    frame_rate,
    frame_size,
    positive,
    run_command,
    tile,
    with_progress,
)
from .latents import LatentsWriter, to_numpy
from .models.video_vae.config import VAEConfig
from .tiling import SpatialTilingConfig, TilingConfig
from .vae import DTYPES, VideoVAE
from .video import Fit, VideoReader

_GB = 1e9


@dataclass(frozen=True)
class Report:
    """What a run tells at its end. `frames` are those that the latents stand for."""

    frames: int
    size: tuple[int, int]
    fps: Fraction | None
    seconds: float
    latent_shape: tuple[int, ...]
    output: str

    def as_dict(self) -> dict[str, Any]:
        """The report in JSON's terms. `fps` is null for images."""
        return {
            "frames": self.frames,
            "width": self.size[0],
            "height": self.size[1],
            "fps": None if self.fps is None else float(self.fps),
            "seconds": self.seconds,
            "peak_memory_bytes": mx.get_peak_memory(),
            "latent_shape": self.latent_shape,
            "output": self.output,
        }

    def __str__(self) -> str:
        return (
            f"Frames: {self.frames}, {self.frames / self.seconds:.3f} frames-per-sec, latents {self.latent_shape}\n"
            f"Peak memory: {mx.get_peak_memory() / _GB:.3f} GB"
        )


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m mlx_ltx_vae.encode",
        description="Encode a video to LTX latents, exactly, in memory that does not grow with the clip.",
    )
    parser.add_argument(
        "video", metavar="VIDEO", help="video or GIF, a folder of images, or a pattern such as %%05d.png"
    )
    parser.add_argument("-o", "--output", metavar="LATENTS", required=True, help="where to: a .safetensors file")
    parser.add_argument("-m", "--model", metavar="VAE", help="checkpoint file, folder, or hub repository id")
    parser.add_argument("--demo", action="store_true", help="use the small VAE that ships with the package")

    video = parser.add_argument_group("the video")
    video.add_argument(
        "--size", type=frame_size, metavar="WxH", help="make the frames this large (default: as they are)"
    )
    fit = video.add_mutually_exclusive_group()
    fit.add_argument(
        "--resize", action="store_true", help="scale to --size, or to the nearest size that can be encoded"
    )
    fit.add_argument(
        "--crop", action="store_true", help="cover --size and cut off the rest, or cut to what can be encoded"
    )
    video.add_argument("--frames", type=positive, metavar="N", help="encode the first N (default: all)")
    video.add_argument("--pad", action="store_true", help="repeat the last frame up to 1 + 8*k (default: leave out)")
    video.add_argument("--fps", type=frame_rate, metavar="RATE", help="to note in LATENTS (default: the video's)")

    how = parser.add_argument_group("how to encode")
    how.add_argument("--tile", type=tile, metavar="SIZE:OVERLAP", help="in tiles, in pixels, such as 512:128")
    how.add_argument("--tile-batch-size", type=positive, default=1, metavar="N", help="tiles together (default: 1)")
    how.add_argument("--dtype", choices=list(DTYPES), help="compute in this precision (default: the checkpoint's)")

    add_report_options(parser)
    add_common_options(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.demo and arguments.model:
        parser.error("--demo brings its own VAE; leave out -m")
    if arguments.demo:
        arguments.model = str(demo.VAE)
    if not arguments.model:
        parser.error("-m VAE is missing: the checkpoint to encode with (or --demo)")
    return run_command(_encode, arguments)


def _encode(arguments: argparse.Namespace) -> None:
    config = read_headers(arguments.model, ["encoder"]).config
    with VideoReader(
        arguments.video,
        size=arguments.size,
        fit=_fit(arguments),
        multiple=config.spatial_scale,
        max_frames=arguments.frames,
    ) as video:
        report = _encode_video(video, config, arguments)
    if arguments.json:
        print(json.dumps(report.as_dict()))
    elif not arguments.quiet:
        print(report)


def _fit(arguments: argparse.Namespace) -> Fit:
    if arguments.crop:
        return Fit.CROP
    return Fit.RESIZE if arguments.resize or arguments.size else Fit.EXACT


def _encode_video(video: VideoReader, config: VAEConfig, arguments: argparse.Namespace) -> Report:
    width, height = video.size
    fps = arguments.fps or video.fps
    tiling = TilingConfig(SpatialTilingConfig(*arguments.tile)) if arguments.tile else None
    options = {"tiling": tiling, "tile_batch_size": arguments.tile_batch_size, "pad": arguments.pad}
    with LatentsWriter(arguments.output, fps=fps, height=height, width=width) as out:
        vae = VideoVAE.from_pretrained(arguments.model, dtype=arguments.dtype, decoder=False)
        start = time.perf_counter()
        for latents in vae.encode_stream(with_progress(video, len, video.num_frames, arguments), **options):
            out.write(to_numpy(latents))
        out.num_frames = config.num_frames(out.shape[2])
    seconds = time.perf_counter() - start
    return Report(out.num_frames, video.size, fps, seconds, out.shape, arguments.output)


if __name__ == "__main__":
    sys.exit(main())
