"""`python -m mlx_ltx_vae.encode`: encodes videos to latent files."""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from math import ceil, prod
from pathlib import Path
from typing import Any, get_args

import mlx.core as mx
import numpy as np

from .. import demo
from ..audio_vae import AudioVAE, plan_sound_encode
from ..backend.mlx_utils import DtypeName
from ..checkpoint import Checkpoint, open_checkpoint
from ..distributed import Work
from ..errors import CheckpointError
from ..files import sample_path
from ..latents import LatentsWriter, check_latents_name
from ..models.base import SOUND
from ..models.specs import LONG_CLIP
from ..pipeline.hdr_frames import HDRInput, to_encoder_pixels
from ..pipeline.progress import FrameBar
from ..pipeline.sound_plan import every_chunk
from ..planning.options import PlanOptions, parse_options
from ..planning.plan import AudioEncodePlan, EncodePlan, SoundPlan
from ..planning.planner import plan_encode
from ..shapes import LatentShape, Size, format_size
from ..tiling import TilingConfig
from ..units import format_count, format_seconds
from ..video import ExrReader, Fit, VideoReader
from ..video.reader import MATRIX_NAMES
from ..video.sound_probe import find_shift
from ..video.sound_reader import SoundReader
from ..video.source import source_files
from .cli import CommandParser, examples, frame_range, frame_rate, frame_size, positive, run_command, tile, write_line
from .items import Item, find_pattern, has_table
from .job import Job, LazyVAE, Task, run_job
from .options import add_job_options, add_network_options, pick, take


def build_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        first=("video", "output", "model", "size", "fit", "frames", "fps", "audio_model", "memory_budget", "dry_run"),
        prog="python -m mlx_ltx_vae.encode",
        usage="%(prog)s VIDEO... -m VAE -o LATENTS [options]",
        description="Encode videos to LTX latents, exactly, in memory that does not grow with the clip.",
        epilog=examples(
            "python -m mlx_ltx_vae.encode clip.mp4 -m vae.safetensors -o clip.safetensors",
            "python -m mlx_ltx_vae.encode clip.mov -m vae/ -o a.safetensors --size 768x512",
            "python -m mlx_ltx_vae.encode clips.csv -m vae/ -o latents/ --skip-existing",
        ),
    )
    videos = """videos or GIFs, folders of images, or patterns such as %%05d.png; - for standard input; @clips.txt for
        those that a list names, one a line; clips.csv for a table with a column path, and optionally output, width,
        height, frames, fps"""
    parser.add_argument("video", nargs="+", metavar="VIDEO", help=videos)
    output = """output file, .safetensors. For several inputs: folder/ for files named after them,
        folder/clip.safetensors; or a pattern such as folder/{name}-latents.safetensors"""
    parser.add_argument("-o", "--output", metavar="LATENTS", help=output)
    add_network_options(parser, demo="the small VAE that ships with the package")
    video = parser.add_argument_group("the video")
    video.add_argument("--size", type=frame_size, metavar="WxH", help="frame size to encode (default: the video's)")
    fit = video.add_mutually_exclusive_group()
    resize = "scale to --size, or to the nearest size that can be encoded"
    fit.add_argument("--resize", dest="fit", action="store_const", const=Fit.RESIZE, help=resize)
    crop = "fill --size and crop the rest, or crop to a size that can be encoded"
    fit.add_argument("--crop", dest="fit", action="store_const", const=Fit.CROP, help=crop)
    frames = """encode these frames only, at the rate of --fps: A is the first, counted from 0, and B is one more than
        the last; :121 for the first 121, 24: for those from 24 on (default: all)"""
    video.add_argument("--frames", type=_frames, metavar="A:B", help=frames)
    video.add_argument("--pad", action="store_true", help="repeat the last frame up to 1 + 8*k (default: drop frames)")
    rate = "drop or repeat frames to this rate, at unchanged speed; for images, their rate (default: the video's)"
    video.add_argument("--fps", type=frame_rate, metavar="RATE", help=rate)
    matrix = "the color matrix, in place of the one that the video states (default: its own, or bt601)"
    video.add_argument("--matrix", choices=sorted(MATRIX_NAMES), help=matrix)
    light = """the images are EXR, and their pixels light with the primaries of sRGB (srgb_linear) or of ACES
        (acescg), or codes (acescct): encode them as HDR, for LTX-2.5"""
    video.add_argument("--hdr", choices=get_args(HDRInput), help=light)
    model = "the audio VAE: encode the video's sound too, into the same file; file, folder, or hub repository id"
    video.add_argument("--audio-model", metavar="AUDIO", help=model)
    how = parser.add_argument_group("how to encode")
    how.add_argument("--tile", type=tile, metavar="SIZE:OVERLAP", help="encode in tiles, in pixels, such as 512:128")
    add_job_options(parser, how)
    return parser


def _frames(text: str) -> slice:
    """The type of `--frames 24:48`; also of `--frames 24` for the first 24, its old form."""
    if text.isdecimal():
        change = f"--frames {positive(text)} is written --frames :{text} now; the old form goes with the next release"
        write_line(f"warning: {change}.", sys.stderr)
        return slice(0, int(text))
    wanted = frame_range(text)
    if wanted.start < 0 or (wanted.stop or 0) < 0:
        raise argparse.ArgumentTypeError(f"{text} counts from the end, which is not known yet; count from the first")
    return wanted


def main(argv: list[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = build_parser()
    arguments = parser.parse_inputs(argv)
    if arguments.demo and arguments.model:
        parser.error("--demo comes with a VAE; leave out -m")
    if arguments.demo:
        arguments.model = str(demo.VAE)
    if not arguments.model:
        parser.error("-m VAE is missing: the checkpoint to encode with (or --demo)")
    if arguments.hdr and arguments.matrix:
        parser.error("--matrix is for videos, and --hdr for EXR images; choose one")
    if not arguments.output and not has_table(arguments.video):
        parser.error("-o LATENTS is missing: where to write the latents")
    with parser.wrong_usage():
        pattern = find_pattern(arguments.video, arguments.output, ".safetensors")
        if pattern:
            check_latents_name(pattern)
        tiling = TilingConfig(arguments.tile) if arguments.tile else None
        options = take(arguments, "memory_budget", "tile_batch_size")
        plan = parse_options(mode="tiled" if tiling else "auto", tiling=tiling, **options)
    model = partial(open_checkpoint, arguments.model, decoder=False)
    job = pick(Job, arguments, network="encoder", open=model, sources=arguments.video, pattern=pattern)
    settings = pick(EncodeSettings, arguments, plan=plan)
    return run_command(lambda _: run_job(job, partial(EncodeTask, settings)), arguments, computes=not job.dry_run)


@dataclass(frozen=True)
class EncodeSettings:
    """What is wanted of an encode. `size`, `frames` and `fps` override what a table says about an item."""

    size: Size | None
    fit: Fit | None
    frames: slice | None
    fps: Fraction | None
    matrix: str | None
    hdr: HDRInput | None  # None for what is no EXR
    pad: bool
    plan: PlanOptions
    audio_model: str | None
    dtype: DtypeName | None

    @cached_property
    def audio_checkpoint(self) -> Checkpoint | None:
        """That of the sound, opened once; None if no sound is wanted."""
        if self.audio_model is None:
            return None
        found = open_checkpoint(self.audio_model, decoder=False, medium=SOUND)
        if "encoder" not in found.networks:
            raise CheckpointError(f"{found.name}: it has no encoder of sound; give a file or folder that has one.")
        return found

    @cached_property
    def audio_vae(self) -> AudioVAE:
        """The audio VAE of a job that has one, loaded once."""
        assert self.audio_checkpoint is not None
        return AudioVAE.from_pretrained(self.audio_checkpoint, dtype=self.dtype, decoder=False)


class EncodeTask(Task):
    """A video. Several ranks share its rows. It is opened late, since that takes a process."""

    plan: EncodePlan

    def __init__(self, settings: EncodeSettings, vae: LazyVAE, item: Item) -> None:
        super().__init__(vae, item)
        self._settings = settings
        audio = settings.audio_checkpoint  # its errors, before anything is encoded
        item.inputs = [*source_files(Path(item.source)), *(audio.files if audio else [])]
        pixels = prod(item.size) * (item.max_frames or 0) if item.size else 0  # if a table states them
        item.cost = pixels or _bytes_on_disk(Path(item.source))
        if item.output is not None:
            check_latents_name(item.output)
            self._name_outputs([item.output])

    @contextmanager
    def open(self) -> Iterator[None]:
        settings, item = self._settings, self._item
        size = settings.size or item.size
        reader = partial(VideoReader, matrix=settings.matrix) if settings.hdr is None else ExrReader
        with reader(
            item.source,
            size=size,
            fit=settings.fit or (Fit.RESIZE if size else Fit.EXACT),
            multiple=self._vae.checkpoint.config.spatial_scale,
            first_frame=settings.frames.start if settings.frames else 0,
            max_frames=self._max_frames,
            fps=settings.fps or item.fps,
        ) as self._video:
            item.num_frames = self._video.num_frames
            self.plan = self._make_plan()
            yield

    def describe(self) -> dict[str, Any]:
        video = self._video
        return super().describe() | {"the videos": [video.size, video.num_frames, str(video.fps)]}

    def networks(self) -> dict[str, dict[str, str]]:
        audio = self._settings.audio_checkpoint
        return super().networks() | ({} if audio is None else {"audio_vae": audio.used("encoder")})

    def sample(self) -> dict[str, Any]:
        return {"the contents of the videos": sample_path(self._video.path)}

    def run(self, bar: FrameBar) -> None:
        video, ranks, (output,), hdr = self._video, self._vae.ranks, self._item.outputs, self._settings.hdr
        with ExitStack() as stack:
            # Opened at once: an error if it cannot be written.
            overwrite = not self._vae.job.no_overwrite
            writer = stack.enter_context(LatentsWriter(output, overwrite=overwrite)) if ranks.is_first else None
            vae = self._vae.load()
            bar.enter("encoding")
            start = time.perf_counter()
            frames = _Counted(video, bar)
            pixels = frames if hdr is None else (to_encoder_pixels(each, hdr) for each in frames)
            stream = vae.encode_stream(pixels, self.plan, pad=self._settings.pad, group=ranks.group)
            shape = _write_all(stack.enter_context(stream), writer)
            num_frames, height, width = vae.config.scale.video_grid(shape.grid)
            audio = None
            if writer is not None:
                audio = self._encode_sound(num_frames)
                writer.complete(fps=video.fps, num_frames=num_frames, height=height, width=width, audio=audio)
        seconds = time.perf_counter() - start
        self._warn_of_missing(frames.count)
        self._report(
            Work.ROWS,
            stream.sent_bytes,
            f"{format_count(shape.frames, 'latent frame')}{_describe_sound(audio)} from "
            f"{format_count(num_frames, 'frame')} of {format_size(*video.size)}"
            f"{_describe_change(video.source_fps, video.fps)}, in {format_seconds(seconds)}",
            frames=num_frames,
            width=self.plan.width,
            height=self.plan.height,
            fps=None if video.fps is None else float(video.fps),
            source_fps=None if video.source_fps is None else float(video.source_fps),
            seconds=seconds,
            latent_shape=shape,
            audio_latent_shape=None if audio is None else audio.shape,
        )

    def _warn_of_missing(self, num_frames: int) -> None:
        wanted = self._max_frames
        if wanted is not None and num_frames < wanted:
            found = f"the video has {format_count(num_frames, 'frame')}, and not the {wanted} that were to be encoded"
            warnings.warn(f"{self._item.source}: {found}.", stacklevel=2)

    def _plan_sound(self) -> list[SoundPlan]:
        """The possible plans of the sound; none if none is wanted, or with a warning if there is none."""
        settings, source = self._settings, self._video.path
        checkpoint = settings.audio_checkpoint
        if checkpoint is None:
            return []
        fps = self._video.fps
        if fps is not None and os.path.isfile(source):
            with SoundReader(source) as sound:
                if sound.sample_rate:
                    seconds = float(self._num_frames / fps)
                    spec, machine = checkpoint.spec("encoder"), checkpoint.machine("encoder", settings.dtype)
                    return every_chunk(partial(plan_sound_encode, spec, seconds, machine))
        warnings.warn(f"{self._video.name}: has no sound, so only its pictures are encoded.", stacklevel=2)
        return []

    def _encode_sound(self, num_frames: int) -> mx.array | None:
        """The latents of the sound of so many frames; None if none are wanted, or there is none."""
        plan, fps = self.plan.sound, self._video.fps
        if not isinstance(plan, AudioEncodePlan) or fps is None:
            return None
        audio_vae = self._settings.audio_vae
        per_second = Fraction(audio_vae.config.latents_per_second)
        num_latents = max(1, round(num_frames / fps * per_second))
        with SoundReader(self._video.path) as sound:
            rate = sound.sample_rate
            length = max(round(num_frames * rate / fps), ceil(rate / per_second))
            start = self._video.start + find_shift(self._video.path, "0:V:0")
            pieces = sound.cut(max(0, round(start * rate)), length)
            return audio_vae.encode(pieces, rate, plan)[:, :, :num_latents]

    @property
    def _max_frames(self) -> int | None:
        """The frames that are wanted; None for all."""
        wanted = self._settings.frames
        if wanted is None:
            return self._item.max_frames
        return None if wanted.stop is None else wanted.stop - wanted.start

    @property
    def _num_frames(self) -> int:
        """Those of the video, or of a long one if their number is not known until all of them are read."""
        return self._video.num_frames or 1 + LONG_CLIP * self._vae.checkpoint.spec("encoder").scale.time

    def _make_plan(self) -> EncodePlan:
        (width, height), spec, ranks = self._video.size, self._vae.checkpoint.spec("encoder"), self._vae.ranks
        options = replace(self._settings.plan, ranks=ranks.size if ranks.choose(1) is Work.ROWS else 1)
        return plan_encode(
            spec,
            (self._num_frames, height, width, 3),
            self._vae.machine,
            pad=self._settings.pad,
            sound=self._plan_sound(),
            **vars(options),
        )


def _write_all(stream: Iterable[mx.array], writer: LatentsWriter | None) -> LatentShape:
    """Write the latents, on the rank that has a writer, as they come. Returns the shape of all together."""
    num_latents = 0
    for latents in stream:
        batch, channels, count, height, width = latents.shape
        num_latents += count
        if writer is not None:
            writer.write(latents)
    return LatentShape(batch, channels, num_latents, height, width)


def _describe_sound(audio: mx.array | None) -> str:
    return "" if audio is None else f" and {format_count(audio.shape[2], 'audio latent')}"


def _describe_change(before: Fraction | None, after: Fraction | None) -> str:
    """What is said of another frame rate."""
    if not before or not after or before == after:
        return ""
    change = "repeating" if after > before else "dropping"
    return f" ({float(before):.6g} to {float(after):.6g} fps, {change} frames)"


class _Counted:
    """The frames of a video, counted as they are taken."""

    def __init__(self, video: Iterable[np.ndarray], bar: FrameBar) -> None:
        self._video, self._bar = video, bar
        self.count = 0

    def __iter__(self) -> Iterator[np.ndarray]:
        for frames in self._video:
            yield frames
            self.count += len(frames)
            self._bar.update(len(frames))


def _bytes_on_disk(source: Path) -> int:
    """Of a file, or of the files of a folder; 0 if there is none, which is an error when the item runs."""
    with suppress(OSError):
        files = source.iterdir() if os.path.isdir(source) else [source]
        return sum(file.stat().st_size for file in files)
    return 0
