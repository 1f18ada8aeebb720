"""`python -m mlx_ltx_vae.decode`: decode latent files to videos."""

import argparse
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import chain
from math import ceil, prod
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from .. import demo
from ..backend.machine import Work
from ..checkpoint import Checkpoint, open_checkpoint
from ..errors import ItemsError, LatentsError, PlanError
from ..files import FileState, is_pipe, numbered_names
from ..frame_format import FrameOutput, frame_format
from ..latents import LatentsFile, LatentsInfo, open_latents
from ..latents.keyframes import Keyframes, KeyframesFile, describe_keyframes
from ..models.noise import check_takes_seed
from ..pipeline.decode import DecodeStream, write_files
from ..pipeline.frames import FrameChunk, HDROptions
from ..pipeline.progress import FrameBar
from ..pipeline.sources import check_values
from ..planning.film import Film, FilmPlan, Overlap, plan_window
from ..planning.plan import DecodePlan, parse_options
from ..planning.planner import plan_decode
from ..shapes import Grid, LatentShape, format_size
from ..tiling import TilingConfig
from ..units import DEFAULT_FPS, format_count, format_seconds
from ..video import add_metadata, check_output, check_output_options, is_sound, output_files, takes_sound
from ..video.audio import check_sound_length
from ..video.sink import SinkOptions
from ..video.sinks import files_of_all, find_still_ending, name_others
from .cli import CommandParser
from .jobs import (
    Item,
    Job,
    Task,
    agree_on_film,
    all_exist,
    are_many,
    describe_blending,
    find_keyframes,
    find_pattern,
    has_table,
    make_folder,
    name_outputs,
)
from .options import choose_frames, chosen_steps, pick, take
from .published_plan import print_published_plan, wants_published_plan, with_preset
from .running import run_command, write_line
from .sound import ClipSound, FilmSoundTask, SoundSettings, SoundTask, find_film_sound, find_sound


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if wants_published_plan(parser, arguments):
        with parser.wrong_usage():
            options = _plan_options(arguments)
        return print_published_plan(parser, arguments, options)
    missing: str | None = "-m VAE is missing: the checkpoint to decode with"
    if is_sound(arguments.output or ""):
        allowed_options = {"demo", "output", *(field.name for kind in (SoundSettings, Job) for field in fields(kind))}
        film_options = {"join", "carry", "fps", "list"}
        allowed_options = allowed_options | film_options if arguments.join else allowed_options - film_options
        parser.refuse_others(arguments, allowed_options, "a .wav file is the sound alone")
        missing = None if arguments.audio_model else "--audio-model AUDIO is missing: the checkpoint of the sound"
    complete_inputs(parser, arguments, demo.VAE, "demo.mp4", missing)
    with parser.wrong_usage():
        output_options = {"overwrite": arguments.overwrite, "metadata": dict(arguments.metadata), "sample_rate": None}
        output_options["hdr"] = None
        output_options["frames"] = FrameOutput(frame_format(arguments.bit_depth, PlanError), chosen_steps(arguments))
        sinks, plan = pick(SinkOptions, arguments, **output_options), _plan_options(arguments)
    return run_decode(
        parser,
        arguments,
        sinks,
        pick(SoundSettings, arguments),
        keyframes=arguments.keyframes,
        plan_options=plan,
        stream_options=take(arguments, "timestep", "noise_scale", "like") | {"seed": arguments.seed or 0},
    )


def complete_inputs(
    parser: CommandParser, arguments: argparse.Namespace, model: Path, output: str, missing: str | None
) -> None:
    """Replace --demo by the latents and the checkpoint of the package, and refuse arguments without either.

    `missing` is the error of a missing checkpoint. `None` means that none is needed.
    """
    if arguments.list:
        arguments.latents = [*arguments.latents, f"@{arguments.list}"]
    if not arguments.join and (arguments.carry is not None or arguments.blend is not None):
        parser.error("--carry and --blend are for a film of windows; add --join")
    if arguments.carry is not None and (arguments.blend or 0) > arguments.carry:
        parser.error(f"--blend {arguments.blend} is more than the --carry of {arguments.carry} frames")
    if arguments.demo:
        if arguments.latents or arguments.model:
            parser.error("--demo comes with latents and a VAE; leave out LATENTS and -m")
        arguments.latents, arguments.model = [str(demo.LATENTS)], str(model)
        if not arguments.output:
            arguments.output = output
            if arguments.overwrite is None and not arguments.skip_existing:
                arguments.output, arguments.overwrite = _free_name(output), False
    if not arguments.latents:
        parser.error("LATENTS is missing (or --demo)")
    if missing and not arguments.model:
        parser.error(missing)


def _free_name(name: str) -> str:
    """Return a default name. If the file exists, warn and return the name with the next free number."""
    path = Path(name)
    free_path = next(candidate for candidate in chain([path], numbered_names(path)) if not os.path.lexists(candidate))
    if free_path != path:
        write_line(f"warning: {name}: already exists, so the output is {free_path}; -y replaces it.", sys.stderr)
    return str(free_path)


def run_decode(
    parser: CommandParser,
    arguments: argparse.Namespace,
    sinks: SinkOptions,
    sound: SoundSettings | None = None,
    *,
    keyframes: str | None = None,
    stills: bool = False,
    **settings: object,
) -> int:
    """Decode the latents of complete arguments. `settings` are fields of a `DecodeJob` that are not arguments."""
    sources, audio = arguments.latents, sinks.audio
    if arguments.join:
        arguments.latents = [_FILM]
    sole_sound = sound if is_sound(arguments.output or "") else None
    is_exr = _choose_exr_output(arguments)
    if not arguments.output and not arguments.dry_run and not has_table(arguments.latents):
        parser.error("-o OUT is missing: where to write the video")
    if arguments.json and arguments.output == "-":
        parser.error("--json and -o - both write to standard output; choose one")
    with parser.wrong_usage():
        pattern = find_pattern(arguments.latents, arguments.output, ".mp4")
        if keyframes and are_many(sources):
            problem = "--keyframes goes with one input; decode each on its own, or store them in its latent file"
            raise ItemsError(problem)
        if sound:
            sound.check(audio, is_alone=sole_sound is not None, is_many=are_many(arguments.latents))
        for name in ("keyframes", "audio_latents") if arguments.join else ():
            if getattr(arguments, name, None):
                raise ItemsError(f"--{name.replace('_', '-')} goes with one window; store it in each window's file")
        if audio and arguments.frames and arguments.frames.start:
            raise ItemsError("--audio begins with the first frame; leave out --audio, or begin --frames with 0")
        sinks = _choose_hdr_frames(arguments, sinks, is_exr=is_exr)
        if pattern and not sole_sound:
            may_have_sound = sound and not audio and (sound.is_required or sinks.audio_codec)
            checked_sinks = replace(sinks, audio=(), sample_rate=1) if may_have_sound else sinks
            for file, options in output_files(pattern, checked_sinks).items():
                check_output_options(file, options, fps=arguments.fps)

    job = pick(
        DecodeJob,
        arguments,
        sources=sources,
        pattern=pattern,
        dtype=arguments.dtype or ("float32" if arguments.hdr else None),
        distributed=Work.OFF.value if sole_sound else arguments.distributed,
        sinks=sinks,
        sound=sound,
        sound_alone=sole_sound,
        keyframes=keyframes,
        stills=stills,
        **settings,
    )
    return run_command(lambda _: job.run(), arguments, computes=not job.dry_run)


def _choose_exr_output(arguments: argparse.Namespace) -> bool:
    """Return whether EXR images are the only output. If so, make `exr` the `output` of the arguments."""
    if arguments.output or not arguments.exr or has_table(arguments.latents):
        return False
    arguments.output, arguments.exr = _exr_folder(arguments), None
    return True


def _exr_folder(arguments: argparse.Namespace) -> str | None:
    """Return the folder of --exr, with a subfolder for each input if there are several."""
    if not arguments.exr or not are_many(arguments.latents) or "{name}" in arguments.exr:
        return arguments.exr and os.path.join(arguments.exr, "")
    return os.path.join(arguments.exr, "{name}", "")


def _choose_hdr_frames(arguments: argparse.Namespace, sinks: SinkOptions, *, is_exr: bool) -> SinkOptions:
    """Return the options of outputs with the frame format of HDR latents. `is_exr`: EXR is the only output."""
    if arguments.hdr is None:
        option_names = [
            name for name in ("hdr_output", "exposure", "exr", "exr_space") if getattr(arguments, name) is not None
        ]
        if option_names or is_exr:
            name = option_names[0] if option_names else "exr"
            raise ItemsError(f"--{name.replace('_', '-')} is for HDR latents; add --hdr acescct or logc3")
        return sinks
    hdr_options = {"signal": arguments.hdr_output, "exposure": arguments.exposure, "exr_space": arguments.exr_space}
    hdr_options = {name: value for name, value in hdr_options.items() if value is not None}
    return HDROptions(arguments.hdr, exr=_exr_folder(arguments), **hdr_options).choose_frames(sinks, is_exr=is_exr)


def _plan_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the checked options of `plan_decode`. The tiles of a preset are chosen later, for each video."""
    tiling, mode = None, arguments.mode
    options = take(arguments, "memory_budget", "order", "tile_batch_size", "chunk")
    options["denoising_steps"] = arguments.steps
    if arguments.tile or arguments.tile_frames:
        tiling = TilingConfig(arguments.tile, arguments.tile_frames)
    if tiling and arguments.preset:
        raise PlanError("--preset cannot be combined with --tile or --tile-frames")
    has_tiles = tiling or arguments.preset
    if has_tiles and mode not in ("auto", "tiled"):
        raise PlanError(f"tiles go with --mode tiled, not {mode}")
    parse_options(mode="tiled" if has_tiles else mode, tiling=tiling, **options)
    return options | {"mode": "tiled" if tiling else mode, "tiling": tiling}


_FILM = "film"  # name of the one input that the windows of a film are


@dataclass(eq=False)
class DecodeJob(Job):
    """Job of `decode` and `preview`, with the settings of all decodes."""

    network = "decoder"

    tensor: str | None
    grid: Grid | None
    unnormalized: bool | None  # this and `fps`: `None` means as the file states
    fps: Fraction | None
    frames: slice | None  # this and `first_seconds`: `None` means all frames
    first_seconds: Fraction | None
    seed: int | None  # `None` means the default, which every VAE takes
    keyframes: str | None  # a file; `None` means the keyframes in the latent file
    carry: int | None  # this and `blend`, of a film: `None` means the default
    blend: int | None
    workflow: bool  # whether ComfyUI's entries in the latent file go into the output
    preset: str | None  # tiles that may depend on the video's size; `None` means the tiles of `plan_options`
    plan_options: Mapping[str, Any]  # of `plan_decode`
    stream_options: Mapping[str, Any]  # of `VideoVAE.stream`
    sinks: SinkOptions
    sound: SoundSettings | None  # `None` if no sound is decoded
    sound_alone: SoundSettings | None  # `sound`, if it is the only output
    stills: bool  # whether one picture of each latent frame is enough

    def open(self) -> Checkpoint:
        if self.sound_alone:
            return self.sound_alone.open()
        checkpoint = open_checkpoint(self.model, encoder=False)
        return checkpoint.for_stills() if self.stills else checkpoint

    def make_task(self, item: Item) -> Task:
        if self.sound_alone:
            if self.join:
                return FilmSoundTask(self, item, self.sound_alone, fps=self.fps, carry=self.carry)
            return SoundTask(self, item, self.sound_alone)
        return FilmTask(self, item) if self.join else DecodeTask(self, item)


class DecodeTask(Task):
    """Decode of a latent file. Several ranks share the rows of one video, or each decodes some videos of the batch."""

    plan: DecodePlan
    _job: DecodeJob

    def __init__(self, job: DecodeJob, item: Item) -> None:
        super().__init__(job, item)
        config, ranks = job.checkpoint.config, job.ranks
        if job.skip_existing and item.output and ranks.size == 1:
            item.is_skipped = all_exist(list(output_files(item.output, job.sinks)))
            if item.is_skipped:  # before the latents are read
                item.outputs = [item.output]
                return
        self._file = self._open_input()
        if job.seed is not None:
            check_takes_seed(job.checkpoint.spec("decoder"))
        shape = self._file.shape
        self._work = ranks.choose(shape.batch)
        is_batch = self._work is Work.BATCH
        self._videos = range(ranks.rank, shape.batch, ranks.size) if is_batch else range(shape.batch)
        self._writes = is_batch or ranks.is_first
        # A decoder of previews may make fewer frames, which last as long as the video's.
        decoder_frames, video_frames = (
            self._num_frames(job.checkpoint.spec("decoder").out_grid),
            self._num_frames(config.scale.video_grid),
        )
        self._fps = Fraction(decoder_frames, video_frames) * (job.fps or self._file.info.fps or DEFAULT_FPS)
        self._sound = self._find_sound()
        self._keyframes = self._find_keyframes(self._file)
        item.inputs = [*self._sound_files(), *([job.keyframes] if job.keyframes else []), *item.windows]
        self.plan = self._make_plan()
        size, num_frames = self.plan.frame_size, self.plan.num_frames
        self._video: dict[str, Any] = {"size": size, "fps": self._fps, "num_frames": num_frames}
        sinks = self._sinks_with_sound()
        still = None if shape.frames > 1 or sinks.contact_sheet else find_still_ending(item.output, sinks)
        item.outputs = name_outputs(item.output, shape.batch, still) if item.output else []
        self._are_stills = len(item.outputs) > 1 and still is not None
        self._files = files_of_all(item.outputs, sinks)
        item.side_outputs = name_others(item.outputs, self._files)
        item.num_frames, item.cost = self.plan.num_frames * len(self._videos), prod(shape)
        self._copied: set[tuple[str, str]] = set()  # entries of the latent file that go into an output
        self._check_outputs()

    def _num_frames(self, out_grid: Callable[[Grid], Grid]) -> int:
        """Return the number of frames of the decoded input. `out_grid` maps a grid of latents to frames."""
        return out_grid(self._file.shape.grid)[0]

    def _open_input(self) -> LatentsFile:
        """Open the latents, or the first of several files."""
        return self._open_file(self._item.source)

    def _open_file(self, path: str) -> LatentsFile:
        job = self._job
        if (job.is_many or job.join) and (is_pipe(path) or path == "-"):
            raise ItemsError(f"{path}: is a pipe, which can be read only once; decode it alone, or save it.")
        config = job.checkpoint.config
        options: dict[str, Any] = {"tensor": job.tensor, "grid": job.grid, "scale": config.scale}
        file = open_latents(path, latent_channels=config.latent_channels, **options)
        if job.checkpoint.statistics is None and (job.unnormalized or file.normalized is False):
            raise LatentsError(
                f"{path}: these latents are unnormalized, and {job.checkpoint.name} has no statistics to normalize "
                "them; give normalized latents, without --unnormalized."
            )
        return file

    def check_values(self) -> None:
        self._check_latents()
        if self._sound is not None and self.plan.sound is not None:
            self._sound.check_values()

    def _check_latents(self) -> None:
        check_values(self._file.map(**self._read_options), self.plan.excerpt and self.plan.excerpt.latents)
        if self._keyframes is not None:
            self._keyframes.read(**self._read_options)

    def _find_keyframes(self, file: LatentsFile) -> KeyframesFile | None:
        decoder = self._job.checkpoint.spec("decoder")
        return find_keyframes(self._job.keyframes, file, decoder, is_dry_run=self._job.dry_run)

    def _headers(self) -> list[Any]:
        return _header(self._file)

    def describe(self) -> dict[str, Any]:
        return {
            "the latents": self._headers(),
            "the plans": [self.plan.as_dict(), str(self._fps), len(self._item.outputs)],
        }

    def networks(self) -> dict[str, dict[str, str]]:
        return super().networks() | ({} if self._sound is None else {"audio_vae": self._sound.used})

    def sample(self) -> dict[str, Any]:
        file, keyframes = self._file, self._keyframes
        digest = None if keyframes is None else [list(keyframes.frames), keyframes.digest()]
        return {"the values of the latents": file.digest(), "the keyframes": digest}

    def run(self, bar: FrameBar) -> None:
        ranks, decode = self._job.ranks, self._open_streams()
        self._job.load()  # before the clock starts
        for output in self._item.outputs if self._are_stills else ():
            make_folder(output)
        bar.enter("decoding")
        if self._work is Work.BATCH:
            ranks.work_alone()
            result = ranks.together(lambda: self._decode(decode, bar))
            results = [values for values in ranks.gather(result) if values[0]]  # there may be more ranks than videos
        else:
            results = [self._decode(decode, bar)]
        frame_counts, times, first_times, sent_bytes, are_one_color, new_names = zip(*results, strict=True)
        for names in new_names:
            self._item.rename(names)
        num_frames, seconds, first_seconds = sum(frame_counts), max(times), min(first_times)
        fps = float(self._fps)
        rate = None if self._sound is None else self._sound.sample_rate
        keyframe_numbers, length, batch = self.plan.keyframes, self.plan.num_frames, self._file.shape.batch
        videos = f"{batch} videos of " if batch > 1 else ""
        summary = f"{videos}{format_count(length, 'frame')} of {format_size(*self.plan.frame_size)}, "
        summary += f"{format_seconds(length / fps)} at {fps:.6g} fps"
        summary = f"{batch} stills of {format_size(*self.plan.frame_size)}" if self._are_stills else summary
        copied_keys = " and ".join(sorted(key for key, _ in self._copied))
        self._report(
            self._work,
            sum(sent_bytes),
            f"{summary}, {f'sound at {rate} Hz, ' if rate else ''}"
            f"{f'{describe_keyframes(keyframe_numbers)}, ' if keyframe_numbers else ''}{describe_blending(self.plan)}"
            f"in {format_seconds(seconds)} (first frame after {format_seconds(first_seconds)})"
            f"{copied_keys and f', with the {copied_keys} of ComfyUI (--no-workflow leaves them out)'}"
            f"{'; every frame is one color' if all(are_one_color) else ''}",
            frames=num_frames,
            width=self.plan.width,
            height=self.plan.height,
            fps=fps,
            sample_rate=rate,
            keyframes=list(keyframe_numbers),
            seconds=seconds,
            first_frame_seconds=first_seconds,
            one_color=all(are_one_color),
        )

    @property
    def _read_options(self) -> dict[str, Any]:
        """Options of the functions that read latents."""
        return {"statistics": self._job.statistics, "unnormalized": self._job.unnormalized}

    def _open_streams(self) -> Callable[[int, mx.distributed.Group | None], DecodeStream]:
        """Return a function that starts the decode of the video with an index, by a group of ranks."""
        read_options = self._read_options
        latents = self._file.map(**read_options)
        keyframes = None if self._keyframes is None else self._keyframes.read(**read_options)

        def decode(index: int, group: mx.distributed.Group | None) -> DecodeStream:
            clip_keyframes = None if keyframes is None else keyframes.item(index)
            options = {**self._job.stream_options, "keyframes": clip_keyframes}
            return self._job.load().stream(latents.item(index), self.plan, group=group, **options)

        return decode

    def _decode(
        self, decode: Callable[[int, mx.distributed.Group | None], DecodeStream], bar: FrameBar
    ) -> tuple[int, float, float, int, bool, dict[str, str]]:
        """Decode this rank's videos.

        Returns the number of frames, the seconds of the decode, the seconds until the first frame, the number of bytes
        that were sent, whether every frame is one color, and the new names of outputs by their old names.
        """
        frames, seconds, first_seconds, sent_bytes, is_one_color = 0, 0.0, 0.0, 0, True
        new_names: dict[str, str] = {}
        group = self._job.ranks.group if self._work is Work.ROWS else None

        def count_frames(chunk: FrameChunk) -> FrameChunk:
            bar.update(chunk.frames.shape[1])
            return chunk

        for index in self._videos:
            start = time.perf_counter()
            stream = decode(index, group)
            files = self._files[index] if self._writes else {}
            with_sound = {file: self._with_sound(options, index) for file, options in files.items()}
            written = write_files(map(count_frames, stream), with_sound, start, **self._video)
            frames, first_seconds = frames + written.frames, first_seconds or written.first_frame_seconds
            is_one_color = is_one_color and written.is_one_color
            new_names |= written.new_names
            seconds += time.perf_counter() - start
            sent_bytes += stream.sent_bytes
        return frames, seconds, first_seconds, sent_bytes, is_one_color, new_names

    def _find_sound(self) -> ClipSound | None:
        """Return the audio latents of the video, or `None` if a file replaces them or the output has no sound."""
        job, output = self._job, self._item.output or "out.mp4"
        sound = job.sound
        if job.sinks.audio is not None or sound is None:
            return None
        if not sound.is_required and not takes_sound(output, output_files(output, job.sinks)[output]):
            return None
        return self._find_latents_of(sound)

    def _find_latents_of(self, sound: SoundSettings) -> ClipSound | None:
        return find_sound(sound, self._file)

    def _sound_files(self) -> list[str | os.PathLike]:
        audio = self._job.sinks.audio
        audio_files = [audio] if isinstance(audio, (str, os.PathLike)) else []
        return [*audio_files, *(self._sound.files if self._sound else ())]

    def _sinks_with_sound(self) -> SinkOptions:
        """Return the options of the output, without samples. Warn if the sound is longer than the video."""
        sinks = self._job.sinks
        if self._sound is None:
            return sinks
        if self.plan.excerpt is None:
            length, video = Fraction(self._sound.num_samples, self._sound.sample_rate), self.plan.num_frames / self._fps
            check_sound_length(self._item.source, length, video, cuts=sinks.shortest)
        return replace(sinks, audio=(), sample_rate=self._sound.sample_rate)

    def _with_sound(self, options: SinkOptions, index: int) -> SinkOptions:
        """Return the options of one file, with the sound of the decoded frames if the file takes sound."""
        if self._sound is None or options.audio is None:
            return options
        return replace(options, audio=self._sound.stream(index, self.plan.sound))

    def _check_outputs(self) -> None:
        """Find out whether to skip the item, and raise the errors of `open_sink` before the weights are read."""
        job, outputs = self._job, self._item.outputs
        files_by_video = [self._files[index] for index in self._videos] if outputs and self._writes else []
        are_complete = not files_by_video or all_exist([file for files in files_by_video for file in files])
        self._item.is_skipped = job.skip_existing and bool(outputs) and are_complete
        workflow = self._file.info.workflow if self._job.workflow else {}
        for files in [] if self._item.is_skipped else files_by_video:
            for file in files:
                files[file] = options = add_metadata(file, files[file], workflow)
                self._copied |= workflow.items() & options.metadata.items()
                check_output(file, options=options, makes_folders=job.is_many or self._are_stills, **self._video)

    def _make_plan(self) -> DecodePlan:
        """Return the plan of one video. Files of one shape share it."""
        shape = self._file.shape._replace(batch=1)
        frames = self._choose_frames(self._job.checkpoint.spec("decoder").out_grid(shape.grid)[0])
        return self._plan(shape, frames, () if self._keyframes is None else self._keyframes.frames)

    def _choose_frames(self, num_frames: int) -> tuple[int, int] | None:
        """Return the first frame to decode and one more than the last, of `num_frames`. `None` means all."""
        frames, seconds = self._job.frames, self._job.first_seconds
        frames = frames if seconds is None else slice(0, ceil(seconds * self._fps))
        return choose_frames(frames, num_frames, self._item.source)

    def _plan(
        self,
        shape: LatentShape,
        frames: tuple[int, int] | None,
        keyframes: tuple[int, ...],
        held_frames: int | None = None,
    ) -> DecodePlan:
        """Return the plan of a video, or of a window of a film. Windows are held in memory, and have `held_frames`."""
        plans, spec, ranks = self._job.plans, self._job.checkpoint.spec("decoder"), self._job.ranks
        sound = [] if self._sound is None else self._sound.plans(self._job.machine, frames, self._fps)
        files = output_files(self._item.output or "out.mp4", self._job.sinks)
        outputs = tuple(options.frames for options in files.values())
        key = (shape, frames, keyframes, held_frames, outputs, *sound)
        if key not in plans:
            plans[key] = plan_decode(
                spec,
                shape,
                self._job.machine,
                holds_latents=held_frames is not None,
                outputs=outputs,
                frames=frames,
                held_frames=held_frames,
                sound=sound,
                ranks=ranks.size if self._work is Work.ROWS else 1,
                keyframes=keyframes,
                **with_preset(self._job.plan_options, self._job.preset, spec.out_grid(shape.grid)),
            )
        return plans[key]


def _header(file: LatentsFile) -> list[Any]:
    """Return the content of the header of a latent file, JSON-serializable."""
    return [list(file.info.stored_shape), file.stored_dtype, file.layout, file.normalized, str(file.info.fps)]


@dataclass(frozen=True)
class _Window:
    """Window of a film, whose file is closed."""

    path: str
    shape: LatentShape
    keyframes: tuple[int, ...]  # their frame numbers
    header: list[Any]
    state: FileState


class FilmTask(DecodeTask):
    """Decode of the windows of a film, whose files are opened one by one."""

    plan: FilmPlan  # type: ignore[assignment]

    def __init__(self, job: DecodeJob, item: Item) -> None:
        self._carry = job.carry
        self._windows: list[_Window] = []
        super().__init__(job, item)

    def _open_input(self) -> LatentsFile:
        files: list[LatentsInfo] = []
        for path in self._item.windows:
            file = self._open_file(path)
            keyframes = super()._find_keyframes(file)
            frames = () if keyframes is None else keyframes.frames
            self._windows.append(_Window(path, file.shape, frames, _header(file), file.file.state))
            files.append(file.info)
        spec, scale = self._job.checkpoint.spec("decoder"), self._job.checkpoint.config.scale
        _, self._carry = agree_on_film(files, self._job.fps, self._carry, scale)
        self._film = Film(Overlap.of(scale, spec, self._carry, self._job.blend))
        self._shared_latents = scale.covering_latent_grid((self._carry, 1, 1))[0] if self._carry else 0
        for window in self._windows:
            self._film.add(spec, window.shape, window.path)
        return self._open_window(self._windows[0])

    def _open_window(self, window: _Window) -> LatentsFile:
        """Open the file of a window again. Raises a `LatentsError` if it is not the file that was planned."""
        file = self._open_file(window.path)
        file.file.check_state(window.state)
        return file

    def _check_latents(self) -> None:
        for number, is_decoded in self._film.required_windows(self._excerpt):
            if is_decoded:
                check_values(self._open_window(self._windows[number]).map(**self._read_options))
            self._read_keyframes(self._windows[number], 0)

    def _num_frames(self, out_grid: Callable[[Grid], Grid]) -> int:
        shared = out_grid((self._shared_latents, 1, 1))[0] if self._shared_latents else 0
        return sum(out_grid(window.shape.grid)[0] - shared for window in self._windows) + shared

    def _find_keyframes(self, file: LatentsFile) -> None:
        return None  # each window has keyframes of its own

    @cached_property
    def _excerpt(self) -> tuple[int, int] | None:
        return self._choose_frames(self._film.num_frames)

    def _find_latents_of(self, sound: SoundSettings) -> ClipSound | None:
        return find_film_sound(
            sound,
            [partial(self._open_window, window) for window in self._windows],
            [part.frames.end for part in self._film.parts],
            frames=self._excerpt,
            fps=self._fps,
            machine=self._job.machine,
        )

    def _headers(self) -> list[Any]:
        return [window.header for window in self._windows]

    def sample(self) -> dict[str, Any]:
        digests: list[Any] = []
        for window in self._windows:
            file = self._open_window(window)
            keyframes = super()._find_keyframes(file)
            digests += [file.digest(), None if keyframes is None else keyframes.digest()]
        return {"the values of the latents": digests}

    def _make_plan(self) -> FilmPlan:  # type: ignore[override]
        spec, blend, plans = self._job.checkpoint.spec("decoder"), self._film.overlap.blend, {}
        keyframes = list(self._film.visible_keyframes(window.keyframes for window in self._windows))
        for number, frames in self._film.window_ranges(self._excerpt):
            window = self._windows[number]
            shape = window.shape._replace(batch=1)
            plan = partial(self._plan, shape, keyframes=keyframes[number], held_frames=blend)
            plans[number] = plan_window(plan, frames, spec.out_grid(shape.grid)[0])
        return FilmPlan(self._film, self._excerpt, plans, self._fps)

    def _open_streams(self) -> Callable[[int, mx.distributed.Group | None], DecodeStream]:
        if (statistics := self._job.statistics) is not None:
            mx.eval(*statistics)  # another thread uses them

        def make_plan(shape: LatentShape, **options: Any) -> DecodePlan:
            return self._plan(shape, *(options[name] for name in ("frames", "keyframes", "held_frames")))

        def decode(index: int, group: mx.distributed.Group | None) -> DecodeStream:
            return self._job.load().stream_joined(
                self._read_ahead(index),
                carry=self._carry or 0,
                blend=self._job.blend,
                frames=self._excerpt,
                plan=make_plan,
                group=group,
                **self._job.stream_options,
            )

        return decode

    def _read_ahead(self, index: int) -> Iterator[tuple[mx.array | np.ndarray, Keyframes | None]]:
        """Yield the latents and the keyframes of each window of one film, read while the previous window is decoded."""
        pending = deque(self._windows[number] for number in self.plan.windows)
        used_windows = dict(self._film.required_windows(self._excerpt))
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(self._read, pending.popleft(), index)
            for number, window in enumerate(self._windows):
                if number not in self.plan.windows:  # it is not decoded, but has a length and perhaps keyframes
                    keyframes = self._read_keyframes(window, index) if number in used_windows else None
                    yield np.broadcast_to(np.float32(0), window.shape._replace(batch=1)), keyframes
                    continue
                current = future
                if pending:
                    future = pool.submit(self._read, pending.popleft(), index)
                yield current.result()

    def _read(self, window: _Window, index: int) -> tuple[mx.array, Keyframes | None]:
        latents = self._open_window(window).map(**self._read_options).item(index)[()]
        return latents, self._read_keyframes(window, index)

    def _read_keyframes(self, window: _Window, index: int) -> Keyframes | None:
        file = super()._find_keyframes(self._open_window(window)) if window.keyframes else None
        if file is None:
            return None
        keyframes = file.read(**self._read_options).item(index)
        mx.eval(keyframes.latents)  # another thread uses them
        return keyframes
