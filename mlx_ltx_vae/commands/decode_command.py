"""`python -m mlx_ltx_vae.decode`: decodes latent files to videos."""

import argparse
import time
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import ceil, prod
from pathlib import Path
from typing import Any

from .. import demo
from ..distributed.ranks import Work
from ..errors import ItemsError, LatentsError, PlanError
from ..files.atomic import check_absent
from ..frame_rate import DEFAULT_FPS
from ..latents import looks_normalized_twice, looks_unnormalized, open_latents
from ..latents.mapped import MappedLatents
from ..models.noise import CONVENTIONS, DEFAULT_CONVENTION
from ..planning.options import PlanOptions, parse_options
from ..planning.plan import DecodePlan, Mode
from ..planning.planner import plan_decode
from ..shapes import Grid, format_size
from ..tiling import PRESETS, TilingConfig, preset
from ..units import format_count, format_seconds
from ..video import add_metadata, check_output, check_output_options, open_sink
from ..video.metadata import parse_entry
from ..video.sink import SinkOptions
from .cli import (
    CommandParser,
    argument_type,
    duration,
    examples,
    frame_range,
    frame_rate,
    positive,
    run_command,
    share,
    tile,
    tile_frames,
)
from .items import Item, all_exist, are_many, checkable, find_pattern, has_table, name_outputs
from .job import Job, LazyVAE, Task, run_job
from .options import add_job_options, add_latents_options, add_network_options, pick, take
from .progress import FrameBar


def build_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae.decode",
        usage="%(prog)s LATENTS... -m VAE -o OUT [options]\n       %(prog)s --demo [options]",
        description="Decode LTX video latents to videos, exactly, in memory that does not grow with the clip.",
        epilog=examples(
            "python -m mlx_ltx_vae.decode --demo",
            "python -m mlx_ltx_vae.decode clip.safetensors -m vae.safetensors -o clip.mp4",
            "python -m mlx_ltx_vae.decode a.npy b.npy @more.txt -m vae/ -o videos/",
        ),
    )
    _add_input_options(parser)
    how = parser.add_argument_group("how to decode")
    _add_mode_options(how)
    add_job_options(parser, how)
    _add_noise_options(how)
    _add_video_options(parser.add_argument_group("the video"))
    return parser


def _add_input_options(parser: CommandParser) -> None:
    files = """latent files: .safetensors, .latent, .npy, .npz; - for standard input; @clips.txt for those that a list
        names, one a line; clips.csv for a table with a column path, and optionally output"""
    parser.add_argument("latents", nargs="*", metavar="LATENTS", help=files)
    output = """the format is that of the ending: .mp4 .mov .mkv .webm .gif .npy; folder/ or %%05d.png for stills; - for
        raw frames on standard output (default with --demo: demo.mp4). For several inputs: folder/ for videos named
        after them, folder/clip.mp4; or a pattern such as folder/{name}.mkv, or folder/{name}/ for stills"""
    parser.add_argument("-o", "--output", metavar="OUT", help=output)
    add_network_options(parser, demo="the small VAE and the latents that ship with the package")
    rate = "frames per second: 24, 23.976, 30000/1001 (default: the file's, else 24)"
    parser.add_argument("--fps", type=frame_rate, metavar="RATE", help=rate)
    some = parser.add_mutually_exclusive_group()
    frames = """decode these frames only, as they are in the whole video: A is the first, counted from 0, and B is one
        more than the last; :48 for the first 48, 24: for those from 24 on"""
    some.add_argument("--frames", type=frame_range, metavar="A:B", help=frames)
    some.add_argument("--first-seconds", type=duration, metavar="S", help="decode only the first S seconds, at --fps")
    add_latents_options(parser)
    unnormalized = "the latents are unnormalized, as diffusers' LTX-2 pipelines return them"
    # None: what the file states.
    parser.add_argument("--unnormalized", action="store_true", default=None, help=unnormalized)


def _add_mode_options(how: argparse._ArgumentGroup) -> None:
    mode = """exact: in pieces, with the same frames as a single pass. single: the whole clip at once, in memory that
        grows with it. tiled: in overlapping tiles that are blended, so not exact. auto (default): exact, and tiles only
        if nothing exact fits the memory budget"""
    how.add_argument("--mode", choices=["auto", "exact", "single", "tiled"], default="auto", help=mode)
    order = """which way the exact mode goes through the clip. This does not reorder the video, whose frames are the
        same; it changes memory, and when the first frame is written. time: one latent frame after the other; frames are
        written early, and memory grows with the size of a frame. rows, columns: strips of all frames, from top to
        bottom or from left to right; less memory for a short clip of large frames, which are all written at the end.
        auto (default): the first of the three that fits the memory budget"""
    how.add_argument("--order", choices=["auto", "time", "rows", "columns"], default="auto", help=order)
    chunk = """how many latent frames (or rows, columns) the exact mode takes at a time. This does not split the video;
        a larger N takes more memory, and may be faster (default: 1 or 2, by device and memory)"""
    how.add_argument("--chunk", type=positive, metavar="N", help=chunk)
    space = "decode in tiles of SIZE pixels that share OVERLAP pixels with their neighbors, such as 512:64; not exact"
    how.add_argument("--tile", type=tile, metavar="SIZE:OVERLAP", help=space)
    time = """decode in tiles of SIZE frames of the video that share OVERLAP frames with the next, such as 64:24; the
        shared frames are blended, so not exact. Without --tile the frames stay whole"""
    how.add_argument("--tile-frames", type=tile_frames, metavar="SIZE:OVERLAP", help=time)
    presets = """tiles by name: default is --tile 512:64 --tile-frames 64:24, aggressive 256:64 and 32:8 (least memory),
        conservative 768:64 and 96:24 (fewest seams); spatial_only and temporal_only are one half of default; auto is
        default, along axes of more than 512 pixels or 65 frames"""
    how.add_argument("--preset", choices=list(PRESETS), help=presets)


def _add_noise_options(how: argparse._ArgumentGroup) -> None:
    timestep = "for VAEs 0.9.1 to 0.9.8: how noisy the latents are taken to be, 0 to 1 (default: 0.05)"
    how.add_argument("--timestep", type=share, metavar="T", help=timestep)
    seed = "for VAEs that add noise: the same number gives the same frames (default: 0)"
    how.add_argument("--seed", type=int, default=0, metavar="N", help=seed)
    scale = "for VAEs 0.9.1 to 0.9.8: the share of the latents that is replaced by noise, 0 to 1 (default: 0.025)"
    how.add_argument("--noise-scale", type=share, metavar="S", help=scale)
    convention = """for VAEs 0.9.1 to 0.9.8: whose convention. ltx-video (default): the values above. diffusers:
        timestep 0 and no noise by default, and noise is mixed into denormalized latents"""
    for name, text in (("--convention", convention), ("--like", argparse.SUPPRESS)):  # the second is its old name
        how.add_argument(name, dest="like", choices=list(CONVENTIONS), default=DEFAULT_CONVENTION, help=text)


def _add_video_options(video: argparse._ArgumentGroup) -> None:
    video.add_argument("--audio", metavar="FILE", help="audio file to add, in full length even if the video is shorter")
    shortest = "cut audio that is longer at the end of the video; all frames are kept"
    video.add_argument("--shortest", action="store_true", help=shortest)
    codec = """h264, hevc (or h265), prores, ffv1 (lossless), vp9 or av1 (default: h264, or vp9 for .webm); on a Mac
        also h264_videotoolbox and hevc_videotoolbox"""
    video.add_argument("--codec", metavar="NAME", help=codec)
    crf = "constant quality: 0 is best, 51 worst, or 63 for vp9 and av1 (default: h264 18, hevc 20, vp9 and av1 24)"
    video.add_argument("--crf", type=int, metavar="N", help=crf)
    preset = "for h264 and hevc: ultrafast to veryslow; slower ones make smaller files (default: medium)"
    video.add_argument("--encoder-preset", metavar="NAME", help=preset)
    formats = "a pixel format of ffmpeg's encoder, such as yuv444p (default: 4:2:0, 4:2:2 for prores, RGB for ffv1)"
    video.add_argument("--pix-fmt", metavar="FORMAT", help=formats)
    live = """an .mp4 or .mov that plays while it grows, or with -o - an mp4 on standard output; the file appears under
        its name at once, and is removed if the decode fails"""
    video.add_argument("--live", dest="fragmented", action="store_true", help=live)
    entry = """an entry of text in an .mp4, .mov, .mkv or .webm, or in stills; may be given more than once. ComfyUI's
        prompt and workflow go from the latent file to the video by themselves"""
    video.add_argument(
        "--metadata", action="append", type=argument_type(parse_entry), default=[], metavar="KEY=VALUE", help=entry
    )
    depth = "bits per color and pixel (default: 8)"
    video.add_argument("--bit-depth", type=int, choices=[8, 10], default=8, help=depth)


def main(argv: list[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = build_parser()
    arguments = parser.parse_inputs(argv)
    if arguments.demo:
        if arguments.latents or arguments.model:
            parser.error("--demo comes with latents and a VAE; leave out LATENTS and -m")
        arguments.latents, arguments.model = [str(demo.LATENTS)], str(demo.VAE)
        arguments.output = arguments.output or "demo.mp4"
    if not arguments.latents:
        parser.error("LATENTS is missing (or --demo)")
    if not arguments.model:
        parser.error("-m VAE is missing: the checkpoint to decode with")
    if not arguments.output and not arguments.dry_run and not has_table(arguments.latents):
        parser.error("-o OUT is missing: where to write the video")
    if arguments.json and arguments.output == "-":
        parser.error("--json and -o - both write to standard output; choose one")
    if arguments.preset and (arguments.tile or arguments.tile_frames):
        parser.error("--preset cannot be combined with --tile or --tile-frames")
    with parser.wrong_usage():
        pattern = find_pattern(arguments.latents, arguments.output, ".mp4")
        if are_many(arguments.latents) and arguments.audio:
            raise ItemsError("--audio goes with one input; add it to each video on its own")
        if arguments.audio and arguments.frames and arguments.frames.start:
            raise ItemsError("--audio begins with the first frame; leave out --audio, or begin --frames with 0")
        plan = _plan_options(arguments)
        given = {"overwrite": not arguments.no_overwrite, "metadata": dict(arguments.metadata)}
        sinks = pick(SinkOptions, arguments, **given)
        if pattern:
            check_output_options(pattern, sinks, fps=arguments.fps)
    job = pick(Job, arguments, network="decoder", sources=arguments.latents, pattern=pattern)
    stream = take(arguments, "timestep", "seed", "noise_scale", "like", "bit_depth")
    settings = pick(DecodeSettings, arguments, plan=plan, sinks=sinks, stream=stream)
    return run_command(lambda _: run_job(job, partial(DecodeTask, settings)), arguments, computes=not job.dry_run)


def _plan_options(arguments: argparse.Namespace) -> PlanOptions:
    """The options of plans. The tiles of a preset are chosen for each video."""
    tiling, mode = None, arguments.mode
    options = take(arguments, "memory_budget", "order", "tile_batch_size", "chunk")
    if arguments.tile or arguments.tile_frames:
        tiling = TilingConfig(arguments.tile, arguments.tile_frames)
    if tiling or arguments.preset:
        if mode not in ("auto", "tiled"):
            raise PlanError(f"tiles go with --mode tiled, not {mode}")
        parse_options(mode="tiled", **options)
    return parse_options(mode="tiled" if tiling else mode, tiling=tiling, **options)


@dataclass(frozen=True)
class DecodeSettings:
    """What is wanted of a decode."""

    tensor: str | None
    grid: Grid | None
    unnormalized: bool | None  # as `fps`: None for what the file states
    fps: Fraction | None
    frames: slice | None  # this and `first_seconds`: None for all frames
    first_seconds: Fraction | None
    preset: str | None  # tiles that may depend on the video's size; None for those of `plan`
    plan: PlanOptions
    stream: Mapping[str, Any]  # options of `VideoVAE.stream`
    sinks: SinkOptions


class DecodeTask(Task):
    """A latent file. Several ranks share the rows of one video, or take whole videos of a file with several."""

    plan: DecodePlan

    def __init__(self, settings: DecodeSettings, vae: LazyVAE, item: Item) -> None:
        super().__init__(vae, item)
        self._settings = settings
        config, ranks = vae.checkpoint.config, vae.ranks
        if vae.job.is_many and Path(item.source).is_fifo():
            raise ItemsError(f"{item.source}: is a pipe, which can be read only once; decode it alone.")
        self._file = open_latents(
            item.source,
            latent_channels=config.latent_channels,
            tensor=settings.tensor,
            grid=settings.grid,
            scale=config.scale,
        )
        if vae.checkpoint.statistics is None and (settings.unnormalized or self._file.normalized is False):
            raise LatentsError(
                f"{item.source}: these latents are unnormalized, and {vae.checkpoint.name} has no statistics to "
                "normalize them; give normalized latents, without --unnormalized."
            )
        shape = self._file.shape
        self._work = ranks.choose(shape.batch)
        is_batch = self._work is Work.BATCH
        self._videos = range(ranks.rank, shape.batch, ranks.size) if is_batch else range(shape.batch)
        self._writes = is_batch or ranks.is_first
        self._fps = settings.fps or self._file.info.fps or DEFAULT_FPS
        self.plan = self._make_plan()
        size, num_frames = self.plan.frame_size, self.plan.num_frames
        self._video: dict[str, Any] = {"size": size, "fps": self._fps, "num_frames": num_frames}
        item.outputs = name_outputs(item.output, shape.batch) if item.output else []
        item.num_frames, item.cost = self.plan.num_frames * len(self._videos), prod(shape)
        self._check_outputs()

    def describe(self) -> dict[str, Any]:
        file = self._file
        header = [list(file.info.stored_shape), file.stored_dtype, file.layout, file.normalized, str(file.info.fps)]
        return {"the latents": header, "the plans": [self.plan.as_dict(), str(self._fps), len(self._item.outputs)]}

    def sample(self) -> dict[str, Any]:
        return {"the values of the latents": self._file.digest()}

    def run(self, bar: FrameBar) -> None:
        ranks = self._vae.ranks
        latents = self._file.map(statistics=self._vae.statistics, unnormalized=self._settings.unnormalized)
        self._check_statistics(latents)
        self._vae.loaded  # noqa: B018  (before the clock starts)
        bar.enter("decoding")
        if self._work is Work.BATCH:
            ranks.work_alone()
            own = ranks.together(lambda: self._decode(latents, bar))
            done = [each for each in ranks.gather(own) if each[0]]  # there may be more ranks than videos
        else:
            done = [self._decode(latents, bar)]
        counts, times, first_times, sent_bytes = zip(*done, strict=True)
        frames, seconds, first, fps = sum(counts), max(times), min(first_times), float(self._fps)
        self._report(
            self._work,
            sum(sent_bytes),
            f"{format_count(frames, 'frame')} of {format_size(*self.plan.frame_size)}, "
            f"{format_seconds(frames / fps)} at {fps:.6g} fps, "
            f"in {format_seconds(seconds)} (first frame after {format_seconds(first)})",
            frames=frames,
            fps=fps,
            seconds=seconds,
            first_frame_seconds=first,
        )

    def _decode(self, latents: MappedLatents, bar: FrameBar) -> tuple[int, float, float, int]:
        """Decode this rank's videos: the frames, the seconds, those to the first frame, and the bytes sent."""
        frames, seconds, first, sent = 0, 0.0, 0.0, 0
        options = self._settings.stream
        group = self._vae.ranks.group if self._work is Work.ROWS else None
        for index in self._videos:
            start = time.perf_counter()
            chunks = self._vae.loaded.stream(latents.item(index), self.plan, group=group, **options)
            with (
                open_sink(self._item.outputs[index], options=self._sinks, **self._video)
                if self._writes
                else nullcontext() as sink
            ):
                for chunk in chunks:
                    levels = chunk.to_uint8() if options["bit_depth"] == 8 else chunk.to_uint16()
                    if sink is not None:
                        sink.write(levels)
                    first = first or time.perf_counter() - start
                    frames += len(levels)
                    bar.update(len(levels))
            seconds += time.perf_counter() - start
            sent += chunks.sent_bytes
        return frames, seconds, first, sent

    def _check_outputs(self) -> None:
        """Find out whether to skip, and raise what `open_sink` would raise, before the weights are read."""
        job, outputs = self._vae.job, self._item.outputs
        own = [outputs[index] for index in self._videos] if outputs and self._writes else []
        self._item.is_skipped = job.skip_existing and bool(outputs) and (not own or all_exist(own))
        self._sinks = self._settings.sinks
        if own and not self._item.is_skipped:
            self._sinks = add_metadata(own[0], self._sinks, self._file.info.workflow)
        for output in [] if self._item.is_skipped else own:
            if job.no_overwrite:
                check_absent(output)
            checked = checkable(output) if job.is_many else output
            check_output(checked, options=self._sinks, **self._video)

    def _check_statistics(self, latents: MappedLatents) -> None:
        """Warn if the channels look otherwise normalized than said."""
        statistics = self._vae.statistics
        if statistics is None:
            return
        if self._settings.unnormalized and looks_normalized_twice(latents, *statistics):
            looks, remedy = "normalized", "leave out --unnormalized"
        elif looks_unnormalized(latents, *statistics):
            looks, remedy = "unnormalized", "add --unnormalized"
        else:
            return
        text = f"the channels have the statistics of {looks} latents; if the picture is wrong, {remedy}."
        warnings.warn(f"{self._file.info.source}: {text}", stacklevel=2)

    def _make_plan(self) -> DecodePlan:
        """The plan of one video. Files of one shape share it."""
        shape = self._file.shape._replace(batch=1)
        plans, spec, ranks = self._vae.plans, self._vae.checkpoint.spec("decoder"), self._vae.ranks
        frames = self._choose_frames(spec.out_grid(shape.grid)[0])
        if (shape, frames) not in plans:
            options = replace(self._settings.plan, ranks=ranks.size if self._work is Work.ROWS else 1)
            if self._settings.preset:
                num_frames, height, width = spec.out_grid(shape.grid)
                if tiling := preset(self._settings.preset, height, width, num_frames):
                    options = replace(options, mode=Mode.TILED, tiling=tiling)
            stored = {"holds_latents": False, "bit_depth": self._settings.stream["bit_depth"], "frames": frames}
            plans[shape, frames] = plan_decode(spec, shape, self._vae.machine, **stored, **vars(options))
        return plans[shape, frames]

    def _choose_frames(self, num_frames: int) -> tuple[int, int] | None:
        """The frames that are wanted of a video, as `plan_decode` takes them. Like a slice, they end with the video."""
        wanted = self._settings.frames
        if self._settings.first_seconds is not None:
            wanted = slice(0, ceil(self._settings.first_seconds * self._fps))
        if wanted is None:
            return None
        end = num_frames if wanted.stop is None else min(wanted.stop, num_frames)
        return wanted.start, max(wanted.start, end)
