"""`mlx_ltx_vae encode`: encode videos to latent files."""

import argparse
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

from .. import AudioVAE, Fit, VideoReader, VideoVAE, demo, tiling
from ..latents import LAYOUTS, check_latents_name, is_for_comfyui
from ..options import PlanOptions
from ..pipeline.inputs import open_without_vae
from ..pipeline.latent_video import is_latent_file
from ..pipeline.prepare import has_seconds
from ..pipeline.prepare_encode import EncodeReport, EncodeSettings
from ..pipeline.progress import FrameBar
from ..shapes import format_size
from ..units import format_count, format_seconds
from ..video import ExrReader
from ..video.reader import source_files
from .cli import CommandParser
from .items import Item, Result, are_many, check_inputs, find_pattern, has_table, mark_folders, names_folder
from .jobs import Job, Task, describe_blending
from .model_choice import CHOICES, choose_by_environment
from .options import read_options
from .terminal import run_command


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if arguments.demo and arguments.model:
        parser.error("--demo comes with a VAE; leave out -m")
    if arguments.demo:
        arguments.model = str(demo.VAE)
    with parser.wrong_usage():
        check_inputs(arguments.video, arguments.output, ".safetensors")
    choose_by_environment(arguments)
    if not arguments.model:
        parser.error(f"-m VAE is missing, the checkpoint to encode with: {CHOICES}")
    for option, is_given, content in (
        ("--matrix", arguments.matrix, "videos"),
        ("--as-stored", arguments.as_stored, "videos"),
        ("--compress", arguments.compress is not None, "pictures with 8 bits per color"),
    ):
        if arguments.hdr and is_given:
            parser.error(f"{option} is for {content}, and --hdr for EXR images; choose one")
    frames = arguments.frames
    if "-" in arguments.video and frames and (has_seconds(frames) or min(frames.start, frames.stop or 0) < 0):
        parser.error("standard input is read once, so --frames counts frames from its first; correct --frames")
    arguments.video = mark_folders(arguments.video, of_videos=True)
    if arguments.carry is not None and not arguments.windows:
        parser.error("--carry is for --windows; add it")
    if arguments.windows:
        if are_many(arguments.video):
            parser.error("--windows goes with one video; encode each on its own")
        output = arguments.output or "windows"
        if not names_folder(output):
            parser.error(f"--windows makes several files; name a folder for them: -o {output}/")
    layout = None if arguments.layout is None else LAYOUTS[arguments.layout]
    with parser.wrong_usage():
        pattern = arguments.output
        if not arguments.windows:
            ending = ".safetensors" if layout is None else layout.file_ending(arguments.frames, arguments.size)
            pattern = find_pattern(arguments.video, pattern, ending, f"{{name}}{ending}")
            if pattern:
                check_latents_name(pattern, layout)
                if arguments.audio_model and is_for_comfyui(pattern):
                    parser.error(
                        f"{pattern}: ComfyUI reads no audio from it; leave out --audio-model, or use .safetensors"
                    )
        tiles = tiling.TilingConfig(arguments.tile) if arguments.tile else None
        options = read_options(PlanOptions, arguments, mode="tiled" if tiles else "auto", tiling=tiles)
        settings = EncodeSettings(
            options,
            arguments.pad,
            arguments.windows,
            arguments.carry,
            arguments.size,
            None if arguments.fit is None else Fit[arguments.fit],
            arguments.fps,
            arguments.matrix,
            arguments.as_stored,
            arguments.frames,
            compress=arguments.compress,
            hdr=arguments.hdr,
            layout=layout,
        )
    job = EncodeJob(arguments, pattern, settings)
    return run_command(lambda _: job.run(), arguments, computes=not arguments.dry_run)


class EncodeJob(Job):
    """Job of `encode`. The size, frames and rate in its arguments override what a table says about an item."""

    network = "encoder"
    vae: VideoVAE
    _has_latents = False  # among the inputs, which are decoded

    def __init__(self, arguments: argparse.Namespace, pattern: str | None, settings: EncodeSettings) -> None:
        super().__init__(arguments, arguments.video, pattern)
        self.settings = settings

    def open(self) -> VideoVAE:
        if (name := self.arguments.audio_model) is not None:
            audio = AudioVAE.from_pretrained(name, dtype=self.dtype, decoder=False)
            self.settings = replace(self.settings, audio=audio)
        return VideoVAE.from_pretrained(self.arguments.model, dtype=self.dtype, decoder=self._has_latents)

    def open_without_download(self) -> VideoVAE | None:
        if (name := self.arguments.audio_model) is not None:
            audio = AudioVAE.before_download(name, dtype=self.dtype, decoder=False)
            self.settings = replace(self.settings, audio=audio)
        return VideoVAE.before_download(self.arguments.model, dtype=self.dtype, decoder=self._has_latents)

    def make_task(self, item: Item) -> "EncodeTask":
        return EncodeTask(self, item)

    def read_items(self) -> list[Item]:
        items, layout, output = super().read_items(), self.settings.layout, self.arguments.output
        self._has_latents = any(is_latent_file(item.source) for item in items)
        names_file = output is not None and not names_folder(output)
        if layout is None or not layout.numbers or names_file or has_table(self.sources):
            return items
        names = layout.number([item.source for item in items])
        return [replace(item, name=name) for item, name in zip(items, names, strict=True)]


class EncodeTask(Task):
    """Encode of a video. It is opened late, since an open video has a process, and checked as it is read."""

    _job: EncodeJob

    def __init__(self, job: EncodeJob, item: Item) -> None:
        super().__init__(job, item)
        settings = job.settings
        audio_files = () if settings.audio is None else settings.audio.source.files
        pixels = prod(item.size) * (item.max_frames or 0) if item.size else 0  # if a table states them
        outputs = [] if item.output is None else [item.output]
        video_files = [] if item.source == "-" else source_files(Path(item.source))
        inputs = [*video_files, *audio_files]
        self.result = Result(inputs, outputs, cost=pixels or _bytes_on_disk(Path(item.source)))
        if job.has_vae:
            settings.check(job.vae.spec("encoder").scale)

    def check_outputs(self) -> None:
        """Find out whether to skip the item. Raise the errors of writing before the video is opened."""
        super().check_outputs()
        settings = replace(self._job.settings, overwrite=self.overwrite)
        for output in self.missing_outputs:
            settings.check_output(output, makes_folders=self._job.makes_folders)

    @contextmanager
    def open(self) -> Iterator[None]:
        settings, item = self._job.settings, self._item
        if not self._job.has_vae:
            with self._open_without_vae():
                yield
            return
        settings = replace(
            settings,
            size=settings.size or item.size,
            fps=settings.fps or item.fps,
            max_frames=item.max_frames,
            overwrite=self.overwrite,
        )
        with self._job.vae.decide_encode(item.source, item.output, settings) as self._encode:
            self.plan = self._encode.plan
            self.result = replace(self.result, num_frames=self._encode.num_frames)
            yield

    def _open_without_vae(self) -> AbstractContextManager[object]:
        """Open the input alone, for the errors that come before a VAE is known."""
        path, hdr = self._item.source, self._job.settings.hdr
        if is_latent_file(path):
            return nullcontext(open_without_vae(path))
        return VideoReader(path, multiple=1) if hdr is None else ExrReader(path, space=hdr, multiple=1)

    def networks(self) -> dict[str, dict[str, str]]:
        audio = self._job.settings.audio
        return super().networks() | ({} if audio is None else {"audio_vae": audio.source.networks["encoder"]})

    def run(self, bar: FrameBar) -> tuple[dict[str, Any], str]:
        report = self._encode.run(bar)
        self.result = replace(self.result, outputs=[report.output])
        return self._report(_describe(report), report.as_dict())


def _describe(report: EncodeReport) -> str:
    """Describe an encode in a line."""
    audio = f" and {format_count(report.audio_latents, 'audio latent')}" if report.audio_latents else ""
    windows = f" in {report.windows} windows with a carry of {report.carry}" if report.windows else ""
    padding = f" ({report.source_frames} and padding)" if report.source_frames < report.frames else ""
    return (
        f"{format_count(report.latent_frames, 'latent frame')}{audio} from "
        f"{format_count(report.frames, 'frame')}{padding} of {format_size(report.width, report.height)}"
        f"{_describe_fit(report)}{_describe_change(report.source_fps, report.fps)}{windows}"
        f"{f', through H.264 at CRF {report.compress}' if report.compress else ''}, {describe_blending(report.plan)}"
        f"in {format_seconds(report.seconds)}"
    )


def _describe_fit(report: EncodeReport) -> str:
    """Describe a change of the frame size."""
    size = format_size(report.source_width, report.source_height)
    return f" ({' and '.join(report.size_steps)} from {size})" if report.size_steps else ""


def _describe_change(before: Fraction | None, after: Fraction | None) -> str:
    """Describe a change of the frame rate."""
    if not before or not after or before == after:
        return ""
    change = "repeating" if after > before else "dropping"
    return f" ({float(before):.6g} to {float(after):.6g} fps, {change} frames)"


def _bytes_on_disk(source: Path) -> int:
    """Return the size of a file, or of the files of a folder. A missing file has 0; it fails when the item runs."""
    with suppress(OSError):
        files = source.iterdir() if os.path.isdir(source) else [source]
        return sum(file.stat().st_size for file in files)
    return 0
