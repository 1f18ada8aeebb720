"""`python -m mlx_ltx_vae.encode`: encode videos to latent files."""

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial
from math import ceil, prod
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from .. import demo
from ..audio_vae import AudioVAE, plan_sound_encode
from ..backend.machine import Work
from ..checkpoint import Checkpoint, open_checkpoint
from ..codec_table import LATER_STILL_CRF, STILL_CRF
from ..errors import CheckpointError, PlanError, ReaderError, warn
from ..files import PartFolder, part_folder, sample_path
from ..latents import LatentsWriter, check_latents_name, is_for_comfyui
from ..models.base import SOUND
from ..models.specs import LONG_CLIP
from ..options import PlanOptions
from ..pipeline.audio import every_chunk
from ..pipeline.encode import cut_windows
from ..pipeline.hdr_frames import to_encoder_pixels
from ..pipeline.progress import FrameBar
from ..planning.film import DEFAULT_CARRY, check_carry
from ..planning.plan import EncodePlan, Plan
from ..planning.planner import plan_encode
from ..shapes import LatentShape, format_size
from ..tiling import TilingConfig
from ..units import format_are, format_count, format_seconds
from ..video import ExrReader, Fit, VideoReader
from ..video.reader import source_files
from ..video.sound_files import SoundReader
from .cli import CommandParser, format_range
from .items import Item, Result, are_many, find_pattern, has_table, mark_folders
from .jobs import Job, Task, describe_blending
from .models import CHOICES, choose_by_environment
from .options import read_options
from .running import run_command


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if arguments.demo and arguments.model:
        parser.error("--demo comes with a VAE; leave out -m")
    if arguments.demo:
        arguments.model = str(demo.VAE)
    choose_by_environment(arguments)
    if not arguments.model:
        parser.error(f"-m VAE is missing, the checkpoint to encode with: {CHOICES}")
    if arguments.hdr and arguments.matrix:
        parser.error("--matrix is for videos, and --hdr for EXR images; choose one")
    if arguments.hdr and arguments.as_stored:
        parser.error("--as-stored is for videos, and --hdr for EXR images; choose one")
    if arguments.hdr and arguments.compress is not None:
        parser.error("--compress is for pictures with 8 bits per color, and --hdr for EXR images; choose one")
    if "-" in arguments.video and arguments.frames and min(arguments.frames.start, arguments.frames.stop or 0) < 0:
        parser.error("standard input is read once, so --frames cannot count from its end; count from the first")
    arguments.video = mark_folders(arguments.video, of_videos=True)
    if arguments.carry is not None and not arguments.windows:
        parser.error("--carry is for --windows; add it")
    if arguments.windows:
        if are_many(arguments.video):
            parser.error("--windows goes with one video; encode each on its own")
        output = arguments.output or "windows"
        if not output.endswith(("/", os.sep)) and not os.path.isdir(output):
            parser.error(f"--windows makes several files; name a folder for them: -o {output}/")
    with parser.wrong_usage():
        pattern = arguments.output
        if not arguments.windows:
            pattern = find_pattern(arguments.video, pattern, ".safetensors")
            if pattern is None and not has_table(arguments.video):
                pattern = "{name}.safetensors"
            if pattern:
                check_latents_name(pattern)
                if arguments.audio_model and is_for_comfyui(pattern):
                    parser.error(
                        f"{pattern}: ComfyUI reads no sound from it; leave out --audio-model, or use .safetensors"
                    )
        tiling = TilingConfig(arguments.tile) if arguments.tile else None
        options = read_options(PlanOptions, arguments, mode="tiled" if tiling else "auto", tiling=tiling)
    job = EncodeJob(arguments, pattern, options)
    return run_command(lambda _: job.run(), arguments, computes=not arguments.dry_run)


class EncodeJob(Job):
    """Job of `encode`. The size, frames and rate in its arguments override what a table says about an item."""

    network = "encoder"

    def __init__(self, arguments: argparse.Namespace, pattern: str | None, plan_options: PlanOptions) -> None:
        super().__init__(arguments, arguments.video, pattern)
        self.plan_options = plan_options

    def open(self) -> Checkpoint:
        return open_checkpoint(self.arguments.model, decoder=False)

    def make_task(self, item: Item) -> "EncodeTask":
        return EncodeTask(self, item)

    @cached_property
    def audio_checkpoint(self) -> Checkpoint | None:
        """Checkpoint of the audio VAE, opened once. `None` if no sound is encoded."""
        if self.arguments.audio_model is None:
            return None
        checkpoint = open_checkpoint(self.arguments.audio_model, decoder=False, medium=SOUND)
        if "encoder" not in checkpoint.networks:
            raise CheckpointError(f"{checkpoint.name}: it has no encoder of sound; give a file or folder that has one.")
        return checkpoint

    @cached_property
    def audio_vae(self) -> AudioVAE:
        """Audio VAE of a job that has one, loaded once."""
        assert self.audio_checkpoint is not None
        return AudioVAE.from_pretrained(self.audio_checkpoint, dtype=self.dtype, decoder=False)


class EncodeTask(Task):
    """Encode of a video. Several ranks share its rows. It is opened late, since an open video has a process."""

    plan: EncodePlan
    _job: EncodeJob

    def __init__(self, job: EncodeJob, item: Item) -> None:
        super().__init__(job, item)
        self._carry = 0
        arguments, audio = job.arguments, job.audio_checkpoint  # raises its errors before anything is encoded
        inputs = [*source_files(Path(item.source)), *(audio.files if audio else [])]
        pixels = prod(item.size) * (item.max_frames or 0) if item.size else 0  # if a table states them
        outputs = [] if item.output is None else [item.output]
        self.result = Result(inputs, outputs, cost=pixels or _bytes_on_disk(Path(item.source)))
        if arguments.windows is not None:
            scale = job.checkpoint.config.scale
            self._carry = DEFAULT_CARRY if arguments.carry is None else arguments.carry
            check_carry(scale, self._carry)
            if (arguments.windows - 1) % scale.time or arguments.windows <= self._carry:
                expected = f"1 + {scale.time}*k frames, more than the {self._carry} that they share"
                raise PlanError(f"windows have {expected}, not {arguments.windows}; correct --windows.")
        if item.output is not None and arguments.windows is None:
            check_latents_name(item.output)

    def check_values(self) -> None:
        """Do nothing: a video is checked as it is read."""

    @contextmanager
    def open(self) -> Iterator[None]:
        arguments, item = self._job.arguments, self._item
        size, fit = arguments.size or item.size, None if arguments.fit is None else Fit[arguments.fit]
        self._crf = _still_crf(self._job.checkpoint) if arguments.compress == "auto" else arguments.compress or 0
        reader = partial(
            partial(VideoReader, matrix=arguments.matrix, as_stored=arguments.as_stored, crf=self._crf)
            if arguments.hdr is None
            else partial(ExrReader, space=arguments.hdr),
            item.source,
            size=size,
            fit=fit or (Fit.CROP if size else Fit.EXACT),
            multiple=self._job.checkpoint.config.spatial_scale,
            fps=arguments.fps or item.fps,
        )
        self._frames = self._choose_frames(reader)
        first = self._frames.start if self._frames else 0
        with reader(first_frame=first, max_frames=self._max_frames) as self._video:
            self.result = replace(self.result, num_frames=self._video.num_frames)
            self.plan = self._make_plan()
            yield

    def _choose_frames(self, reader: Callable[[], VideoReader | ExrReader]) -> slice | None:
        """Return the frames to encode, counted from the first. A range from the end reads the video twice."""
        frames = self._job.arguments.frames
        if frames is None or min(frames.start, frames.stop or 0) >= 0:
            return frames
        with warnings.catch_warnings(), reader() as video:
            warnings.simplefilter("ignore")  # the second reading repeats them
            count = sum(map(len, video))
        start, end, _ = frames.indices(count)
        if start >= end:
            problem = f"has {format_count(count, 'frame')}, and none of {format_range(frames)}"
            raise ReaderError(f"{self._item.source}: {problem}; choose frames within 0:{count}.")
        return slice(start, end)

    def describe(self) -> dict[str, Any]:
        video = self._video
        return super().describe() | {"the videos": [video.size, video.num_frames, str(video.fps)]}

    def networks(self) -> dict[str, dict[str, str]]:
        audio = self._job.audio_checkpoint
        return super().networks() | ({} if audio is None else {"audio_vae": audio.used("encoder")})

    def sample(self) -> dict[str, Any]:
        return {"the contents of the videos": sample_path(self._video.path)}

    def run(self, bar: FrameBar) -> tuple[dict[str, Any], str]:
        video, ranks, (output,), arguments = self._video, self._job.ranks, self.result.outputs, self._job.arguments
        to_pixels = None if arguments.hdr is None else partial(to_encoder_pixels, meaning=arguments.hdr)
        num_read = 0

        def count_frames(frames: np.ndarray) -> np.ndarray:
            nonlocal num_read
            num_read += len(frames)
            bar.update(len(frames))
            return frames

        encoded: list[LatentShape] = []
        sounds: list[mx.array] = []
        num_frames = sent_bytes = 0
        with ExitStack() as stack:
            open_file = self._open_output(stack, output)
            vae = self._job.load()
            bar.enter("encoding")
            start = time.perf_counter()
            for window in self._cut(map(count_frames, video)):
                pixels = window if to_pixels is None else map(to_pixels, window)
                stream = vae.encode_stream(pixels, self.plan, pad=arguments.pad, group=ranks.group)
                bar.watch(stream.state if arguments.windows is None else None)
                with stream, open_file(len(encoded)) as writer:
                    encoded.append(shape := _write_all(stream, writer))
                    count, height, width = vae.config.scale.video_grid(shape.grid)
                    first = max(0, num_frames - self._carry)
                    num_frames = first + count
                    if writer is not None:
                        audio = self._encode_sound(count, first)
                        sounds += [] if audio is None else [audio]
                        sizes: dict[str, int | None] = {"num_frames": count, "height": height, "width": width}
                        if arguments.windows is not None and self._carry < count:  # a single window shares no frames
                            sizes["carry"] = self._carry
                        new_path = writer.complete(fps=video.fps, sizes=sizes, audio=audio, space=vae.latent_space)
                        if new_path is not None and arguments.windows is None:  # their folder is the output
                            self._rename({output: str(new_path)})
                sent_bytes += stream.sent_bytes
        seconds = time.perf_counter() - start
        sound = f" and {format_count(sum(latents.shape[2] for latents in sounds), 'audio latent')}" if sounds else ""
        windows = f" in {len(encoded)} windows with a carry of {self._carry}" if arguments.windows else ""
        self._warn_of_missing(num_read)
        summary = (
            f"{format_count(sum(shape.frames for shape in encoded), 'latent frame')}{sound} from "
            f"{format_count(num_frames, 'frame')} of {format_size(*video.size)}{_describe_fit(video)}"
            f"{_describe_change(video.source_fps, video.fps)}{windows}"
            f"{f', through H.264 at CRF {self._crf}' if self._crf else ''}, {describe_blending(self.plan)}"
            f"in {format_seconds(seconds)}"
        )
        values = {
            "frames": num_frames,
            "width": self.plan.width,
            "height": self.plan.height,
            "source_width": video.source_size[0],
            "source_height": video.source_size[1],
            "fps": None if video.fps is None else float(video.fps),
            "source_fps": None if video.source_fps is None else float(video.source_fps),
            "compress": self._crf or None,
            "seconds": seconds,
            "latent_shape": encoded[0],
            "audio_latent_shape": sounds[0].shape if sounds else None,
        }
        if windows:
            values |= {"windows": len(encoded), "carry": self._carry}
        return self._report(summary, values, work=Work.ROWS, sent_bytes=sent_bytes)

    def _open_output(
        self, stack: ExitStack, output: str
    ) -> Callable[[int], AbstractContextManager[LatentsWriter | None]]:
        """Open the output, and return a function that opens the file of each window, by its number from 0 on.

        The folder of windows appears when all windows are complete.
        """
        windows = self._job.arguments.windows
        if not self._job.ranks.is_first:
            return lambda _: nullcontext()
        if windows is None:
            # Opened here, so that its errors come first.
            writer = stack.enter_context(LatentsWriter(output, overwrite=self.overwrite))
            return lambda _: nullcontext(writer)
        folder = stack.enter_context(self._open_folder(output))
        return lambda number: LatentsWriter(folder.path / f"{number + 1:05d}.safetensors")

    @contextmanager
    def _open_folder(self, output: str) -> Iterator[PartFolder]:
        """Yield the folder of windows, and then complete the item with the name that it has got."""
        with part_folder(Path(output)) as folder:
            yield folder
        if folder.target != Path(output):
            self._rename({output: os.path.join(folder.target, "")})

    def _cut(self, frames: Iterator[np.ndarray]) -> Iterator[Iterator[np.ndarray]]:
        """Return the frames of each window. Without windows, return all frames as one."""
        windows, scale = self._job.arguments.windows, self._job.checkpoint.config.scale
        if windows is None:
            return iter([frames])
        can_add_less = self._job.arguments.pad or not self._carry  # than one latent frame
        return cut_windows(frames, windows, self._carry, least=1 if can_add_less else scale.time)

    def _warn_of_missing(self, num_frames: int) -> None:
        requested_frames = self._max_frames
        if requested_frames is not None and num_frames < requested_frames:
            first = self._frames.start if self._frames else 0
            text = f"the video has {format_count(first + num_frames, 'frame')}"
            if self._frames and first:
                text += f", so of the frames {format_range(self._frames)} only {format_are(num_frames)} there"
            else:
                text += f", not the {requested_frames} that were asked for"
            warn(f"{self._item.source}: {text}.")

    def _plan_sound(self) -> list[Plan]:
        """Return the possible plans of the sound. Without an audio VAE, there is none. Warn if there is no sound."""
        job, source = self._job, self._video.path
        checkpoint = job.audio_checkpoint
        if checkpoint is None:
            return []
        fps = self._video.fps
        if fps is not None and os.path.isfile(source):
            with SoundReader(source) as sound:
                if sound.sample_rate:
                    seconds = float(self._planned_frames / fps)
                    spec, machine = checkpoint.spec("encoder"), checkpoint.machine("encoder", job.dtype)
                    return every_chunk(partial(plan_sound_encode, spec, seconds, machine))
        warn(f"{self._video.name}: has no sound, so only its pictures are encoded.")
        return []

    def _encode_sound(self, num_frames: int, first: int) -> mx.array | None:
        """Return the latents of the sound of `num_frames` frames from `first` on, or `None` if no sound is encoded."""
        plan, fps = self.plan.sound, self._video.fps
        if not isinstance(plan, EncodePlan) or fps is None:
            return None
        audio_vae = self._job.audio_vae
        per_second = Fraction(audio_vae.config.latents_per_second)
        num_latents = max(1, round(num_frames / fps * per_second))
        with SoundReader(self._video.path) as sound:
            rate = sound.sample_rate
            length = max(round(num_frames * rate / fps), ceil(rate / per_second))
            pieces = sound.cut(max(0, round((self._video.start + first / fps) * rate)), length)
            return audio_vae.encode(pieces, rate, plan)[:, :, :num_latents]

    @property
    def _max_frames(self) -> int | None:
        """Number of frames to encode at most. `None` means all."""
        frames = self._frames
        if frames is None:
            return self._item.max_frames
        return None if frames.stop is None else frames.stop - frames.start

    @property
    def _num_frames(self) -> int:
        """Number of frames of the video, or of a long clip if the number is not known until all frames are read."""
        return self._video.num_frames or 1 + LONG_CLIP * self._job.checkpoint.spec("encoder").scale.time

    @property
    def _planned_frames(self) -> int:
        """Number of frames that are encoded as one clip, the video or a window."""
        return min(self._num_frames, self._job.arguments.windows or self._num_frames)

    def _make_plan(self) -> EncodePlan:
        (width, height), spec, ranks = self._video.size, self._job.checkpoint.spec("encoder"), self._job.ranks
        num_ranks = ranks.size if ranks.choose(1) is Work.ROWS else 1
        options = replace(self._job.plan_options, sound=tuple(self._plan_sound()), ranks=num_ranks)
        shape = (self._planned_frames, height, width, 3)
        return plan_encode(spec, shape, self._job.machine, options, pad=self._job.arguments.pad)


def _still_crf(checkpoint: Checkpoint) -> int:
    """Return the CRF at which pipelines of this version compress stills."""
    return LATER_STILL_CRF if (checkpoint.version or (0, 0)) >= (2, 4) else STILL_CRF


def _write_all(stream: Iterable[mx.array], writer: LatentsWriter | None) -> LatentShape:
    """Write the latents of a stream, on the rank that has a writer. Returns the shape of all latents together."""
    num_latents = 0
    for latents in stream:
        batch, channels, count, height, width = latents.shape
        num_latents += count
        if writer is not None:
            writer.write(latents)
    return LatentShape(batch, channels, num_latents, height, width)


def _describe_fit(video: VideoReader | ExrReader) -> str:
    """Describe a change of the frame size."""
    steps = [
        *["scaled"] * (video.scaled_size != video.source_size),
        *["cropped"] * (video.size != video.scaled_size),
    ]
    return f" ({' and '.join(steps)} from {format_size(*video.source_size)})" if steps else ""


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
