"""`python -m mlx_ltx_vae.decode`: decodes latent files to videos."""

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
        known = {"demo", "output", *(field.name for kind in (SoundSettings, Job) for field in fields(kind))}
        of_film = {"join", "carry", "fps", "list"}
        known = known | of_film if arguments.join else known - of_film
        parser.refuse_others(arguments, known, "a .wav file is the sound alone")
        missing = None if arguments.audio_model else "--audio-model AUDIO is missing: the checkpoint of the sound"
    complete_inputs(parser, arguments, demo.VAE, "demo.mp4", missing)
    with parser.wrong_usage():
        given = {"overwrite": arguments.overwrite, "metadata": dict(arguments.metadata), "sample_rate": None}
        given["hdr"] = None
        given["frames"] = FrameOutput(frame_format(arguments.bit_depth, PlanError), chosen_steps(arguments))
        sinks, plan = pick(SinkOptions, arguments, **given), _plan_options(arguments)
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
    """Fill in what --demo means, and refuse arguments without latents or a checkpoint.

    `missing` says which checkpoint is needed; None if none is.
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
    """A default name, or the next free number if there is such a file, which is said."""
    path = Path(name)
    free = next(each for each in chain([path], numbered_names(path)) if not os.path.lexists(each))
    if free != path:
        write_line(f"warning: {name}: already exists, so the output is {free}; -y replaces it.", sys.stderr)
    return str(free)


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
    """Decode what complete arguments name. `settings` are fields of a `DecodeJob` that are not arguments."""
    sources, audio = arguments.latents, sinks.audio
    if arguments.join:
        arguments.latents = [_FILM]
    alone = sound if is_sound(arguments.output or "") else None
    is_exr = _choose_exr_output(arguments)
    if not arguments.output and not arguments.dry_run and not has_table(arguments.latents):
        parser.error("-o OUT is missing: where to write the video")
    if arguments.json and arguments.output == "-":
        parser.error("--json and -o - both write to standard output; choose one")
    with parser.wrong_usage():
        pattern = find_pattern(arguments.latents, arguments.output, ".mp4")
        if keyframes and are_many(sources):
            text = "--keyframes goes with one input; decode each on its own, or store them in its latent file"
            raise ItemsError(text)
        if sound:
            sound.check(audio, is_alone=alone is not None, is_many=are_many(arguments.latents))
        for name in ("keyframes", "audio_latents") if arguments.join else ():
            if getattr(arguments, name, None):
                raise ItemsError(f"--{name.replace('_', '-')} goes with one window; store it in each window's file")
        if audio and arguments.frames and arguments.frames.start:
            raise ItemsError("--audio begins with the first frame; leave out --audio, or begin --frames with 0")
        sinks = _choose_hdr_frames(arguments, sinks, is_exr=is_exr)
        if pattern and not alone:
            may_have_sound = sound and not audio and (sound.is_required or sinks.audio_codec)
            checked = replace(sinks, audio=(), sample_rate=1) if may_have_sound else sinks
            for file, options in output_files(pattern, checked).items():
                check_output_options(file, options, fps=arguments.fps)

    job = pick(
        DecodeJob,
        arguments,
        sources=sources,
        pattern=pattern,
        dtype=arguments.dtype or ("float32" if arguments.hdr else None),
        distributed=Work.OFF.value if alone else arguments.distributed,
        sinks=sinks,
        sound=sound,
        sound_alone=alone,
        keyframes=keyframes,
        stills=stills,
        **settings,
    )
    return run_command(lambda _: job.run(), arguments, computes=not job.dry_run)


def _choose_exr_output(arguments: argparse.Namespace) -> bool:
    """Return whether EXR images are the only output, which the arguments then have as theirs."""
    if arguments.output or not arguments.exr or has_table(arguments.latents):
        return False
    arguments.output, arguments.exr = _exr_folder(arguments), None
    return True


def _exr_folder(arguments: argparse.Namespace) -> str | None:
    """The folder of --exr, with one in it for each of several inputs."""
    if not arguments.exr or not are_many(arguments.latents) or "{name}" in arguments.exr:
        return arguments.exr and os.path.join(arguments.exr, "")
    return os.path.join(arguments.exr, "{name}", "")


def _choose_hdr_frames(arguments: argparse.Namespace, sinks: SinkOptions, *, is_exr: bool) -> SinkOptions:
    """The options of outputs with the frames that the arguments want of HDR, which may be EXR alone."""
    if arguments.hdr is None:
        given = [
            name for name in ("hdr_output", "exposure", "exr", "exr_space") if getattr(arguments, name) is not None
        ]
        if given or is_exr:
            name = given[0] if given else "exr"
            raise ItemsError(f"--{name.replace('_', '-')} is for HDR latents; add --hdr acescct or logc3")
        return sinks
    wanted = {"signal": arguments.hdr_output, "exposure": arguments.exposure, "exr_space": arguments.exr_space}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    return HDROptions(arguments.hdr, exr=_exr_folder(arguments), **wanted).choose_frames(sinks, is_exr=is_exr)


def _plan_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of `plan_decode`, checked. The tiles of a preset are chosen for each video."""
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


_FILM = "film"  # stands for the windows of a film, which are one input


@dataclass(eq=False)
class DecodeJob(Job):
    """Job of `decode` and `preview`, with the settings of all decodes."""

    network = "decoder"

    tensor: str | None
    grid: Grid | None
    unnormalized: bool | None  # as `fps`: None for what the file states
    fps: Fraction | None
    frames: slice | None  # this and `first_seconds`: None for all frames
    first_seconds: Fraction | None
    seed: int | None  # None for the default, which every VAE takes
    keyframes: str | None  # a file; None for those in the latent file
    carry: int | None  # this and `blend`, of a film: None for the default
    blend: int | None
    workflow: bool  # whether ComfyUI's entries in the latent file go into the output
    preset: str | None  # tiles that may depend on the video's size; None for the tiles of `plan_options`
    plan_options: Mapping[str, Any]  # of `plan_decode`
    stream_options: Mapping[str, Any]  # of `VideoVAE.stream`
    sinks: SinkOptions
    sound: SoundSettings | None  # None if no sound is decoded
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
    """A latent file. Several ranks share the rows of one video, or take whole videos of a file with several."""

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
        own, whole = (
            self._num_frames(job.checkpoint.spec("decoder").out_grid),
            self._num_frames(config.scale.video_grid),
        )
        self._fps = Fraction(own, whole) * (job.fps or self._file.info.fps or DEFAULT_FPS)
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
        item.beside = name_others(item.outputs, self._files)
        item.num_frames, item.cost = self.plan.num_frames * len(self._videos), prod(shape)
        self._copied: set[tuple[str, str]] = set()  # entries of the latent file that go into an output
        self._check_outputs()

    def _num_frames(self, out_grid: Callable[[Grid], Grid]) -> int:
        """Return the number of frames that latents of the input become, by the grid of what one clip becomes."""
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
        check_values(self._file.map(**self._stored), self.plan.excerpt and self.plan.excerpt.latents)
        if self._keyframes is not None:
            self._keyframes.read(**self._stored)

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
            own = ranks.together(lambda: self._decode(decode, bar))
            done = [each for each in ranks.gather(own) if each[0]]  # there may be more ranks than videos
        else:
            done = [self._decode(decode, bar)]
        counts, times, first_times, sent_bytes, plain, renamed = zip(*done, strict=True)
        for names in renamed:
            self._item.rename(names)
        frames, seconds, first, fps = sum(counts), max(times), min(first_times), float(self._fps)
        rate = None if self._sound is None else self._sound.sample_rate
        seen, length, batch = self.plan.keyframes, self.plan.num_frames, self._file.shape.batch
        videos = f"{batch} videos of " if batch > 1 else ""
        made = f"{videos}{format_count(length, 'frame')} of {format_size(*self.plan.frame_size)}, "
        made += f"{format_seconds(length / fps)} at {fps:.6g} fps"
        made = f"{batch} stills of {format_size(*self.plan.frame_size)}" if self._are_stills else made
        copied = " and ".join(sorted(key for key, _ in self._copied))
        self._report(
            self._work,
            sum(sent_bytes),
            f"{made}, {f'sound at {rate} Hz, ' if rate else ''}"
            f"{f'{describe_keyframes(seen)}, ' if seen else ''}{describe_blending(self.plan)}"
            f"in {format_seconds(seconds)} (first frame after {format_seconds(first)})"
            f"{copied and f', with the {copied} of ComfyUI (--no-workflow leaves them out)'}"
            f"{'; every frame is one color' if all(plain) else ''}",
            frames=frames,
            width=self.plan.width,
            height=self.plan.height,
            fps=fps,
            sample_rate=rate,
            keyframes=list(seen),
            seconds=seconds,
            first_frame_seconds=first,
            one_color=all(plain),
        )

    @property
    def _stored(self) -> dict[str, Any]:
        """How latents are stored, as arguments of what reads them."""
        return {"statistics": self._job.statistics, "unnormalized": self._job.unnormalized}

    def _open_streams(self) -> Callable[[int, mx.distributed.Group | None], DecodeStream]:
        """A function that starts the decode of a video, by its index and with a group of ranks."""
        stored = self._stored
        latents = self._file.map(**stored)
        keyframes = None if self._keyframes is None else self._keyframes.read(**stored)

        def decode(index: int, group: mx.distributed.Group | None) -> DecodeStream:
            own = None if keyframes is None else keyframes.item(index)
            options = {**self._job.stream_options, "keyframes": own}
            return self._job.load().stream(latents.item(index), self.plan, group=group, **options)

        return decode

    def _decode(
        self, decode: Callable[[int, mx.distributed.Group | None], DecodeStream], bar: FrameBar
    ) -> tuple[int, float, float, int, bool, dict[str, str]]:
        """Decode this rank's videos.

        Returns the frames, the seconds, those to the first frame, the bytes sent, whether each frame is one color, and
        changed names.
        """
        frames, seconds, first, sent, is_one_color = 0, 0.0, 0.0, 0, True
        new_names: dict[str, str] = {}
        group = self._job.ranks.group if self._work is Work.ROWS else None

        def shown(chunk: FrameChunk) -> FrameChunk:
            bar.update(chunk.frames.shape[1])
            return chunk

        for index in self._videos:
            start = time.perf_counter()
            stream = decode(index, group)
            files = self._files[index] if self._writes else {}
            with_sound = {file: self._with_sound(each, index) for file, each in files.items()}
            written = write_files(map(shown, stream), with_sound, start, **self._video)
            frames, first = frames + written.frames, first or written.first_frame_seconds
            is_one_color = is_one_color and written.is_one_color
            new_names |= written.new_names
            seconds += time.perf_counter() - start
            sent += stream.sent_bytes
        return frames, seconds, first, sent, is_one_color, new_names

    def _find_sound(self) -> ClipSound | None:
        """The sound of the video, unless a file has it, or the output takes none."""
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
        given = [audio] if isinstance(audio, (str, os.PathLike)) else []
        return [*given, *(self._sound.files if self._sound else ())]

    def _sinks_with_sound(self) -> SinkOptions:
        """The options of the output, with no samples yet; a warning if the sound is longer than the video."""
        sinks = self._job.sinks
        if self._sound is None:
            return sinks
        if self.plan.excerpt is None:
            length, video = Fraction(self._sound.num_samples, self._sound.sample_rate), self.plan.num_frames / self._fps
            check_sound_length(self._item.source, length, video, cuts=sinks.shortest)
        return replace(sinks, audio=(), sample_rate=self._sound.sample_rate)

    def _with_sound(self, options: SinkOptions, index: int) -> SinkOptions:
        """The options of one file, with the sound of the video or of its decoded frames, if it takes any."""
        if self._sound is None or options.audio is None:
            return options
        return replace(options, audio=self._sound.stream(index, self.plan.sound))

    def _check_outputs(self) -> None:
        """Find out whether to skip, and raise what `open_sink` would raise, before the weights are read."""
        job, outputs = self._job, self._item.outputs
        own = [self._files[index] for index in self._videos] if outputs and self._writes else []
        is_there = not own or all_exist([file for files in own for file in files])
        self._item.is_skipped = job.skip_existing and bool(outputs) and is_there
        workflow = self._file.info.workflow if self._job.workflow else {}
        for files in [] if self._item.is_skipped else own:
            for file in files:
                files[file] = options = add_metadata(file, files[file], workflow)
                self._copied |= workflow.items() & options.metadata.items()
                check_output(file, options=options, makes_folders=job.is_many or self._are_stills, **self._video)

    def _make_plan(self) -> DecodePlan:
        """The plan of one video. Files of one shape share it."""
        shape = self._file.shape._replace(batch=1)
        frames = self._choose_frames(self._job.checkpoint.spec("decoder").out_grid(shape.grid)[0])
        return self._plan(shape, frames, () if self._keyframes is None else self._keyframes.frames)

    def _choose_frames(self, num_frames: int) -> tuple[int, int] | None:
        """Return the frames to decode of a video with `num_frames`; None for all."""
        wanted, seconds = self._job.frames, self._job.first_seconds
        wanted = wanted if seconds is None else slice(0, ceil(seconds * self._fps))
        return choose_frames(wanted, num_frames, self._item.source)

    def _plan(
        self,
        shape: LatentShape,
        frames: tuple[int, int] | None,
        keyframes: tuple[int, ...],
        held_frames: int | None = None,
    ) -> DecodePlan:
        """The plan of a video, or of a window of a film, which is held in memory."""
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
    """A window of a film, whose file is closed."""

    path: str
    shape: LatentShape
    keyframes: tuple[int, ...]  # their frame numbers
    header: list[Any]
    state: FileState


class FilmTask(DecodeTask):
    """The windows of a film, whose files are opened one by one."""

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
                check_values(self._open_window(self._windows[number]).map(**self._stored))
            self._read_keyframes(self._windows[number], 0)

    def _num_frames(self, out_grid: Callable[[Grid], Grid]) -> int:
        shared = out_grid((self._shared_latents, 1, 1))[0] if self._shared_latents else 0
        return sum(out_grid(window.shape.grid)[0] - shared for window in self._windows) + shared

    def _find_keyframes(self, file: LatentsFile) -> None:
        return None  # windows have their own

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
        spec, held, plans = self._job.checkpoint.spec("decoder"), self._film.overlap.blend, {}
        keyframes = list(self._film.visible_keyframes(window.keyframes for window in self._windows))
        for number, frames in self._film.window_ranges(self._excerpt):
            window = self._windows[number]
            shape = window.shape._replace(batch=1)
            plan = partial(self._plan, shape, keyframes=keyframes[number], held_frames=held)
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
        """Yield the latents and the keyframes of each window of one film, read while the one before is decoded."""
        wanted = deque(self._windows[number] for number in self.plan.windows)
        used = dict(self._film.required_windows(self._excerpt))
        with ThreadPoolExecutor(1) as pool:
            ahead = pool.submit(self._read, wanted.popleft(), index)
            for number, window in enumerate(self._windows):
                if number not in self.plan.windows:  # it only has a place in the film, and perhaps keyframes to carry
                    keyframes = self._read_keyframes(window, index) if number in used else None
                    yield np.broadcast_to(np.float32(0), window.shape._replace(batch=1)), keyframes
                    continue
                current = ahead
                if wanted:
                    ahead = pool.submit(self._read, wanted.popleft(), index)
                yield current.result()

    def _read(self, window: _Window, index: int) -> tuple[mx.array, Keyframes | None]:
        latents = self._open_window(window).map(**self._stored).item(index)[()]
        return latents, self._read_keyframes(window, index)

    def _read_keyframes(self, window: _Window, index: int) -> Keyframes | None:
        file = super()._find_keyframes(self._open_window(window)) if window.keyframes else None
        if file is None:
            return None
        keyframes = file.read(**self._stored).item(index)
        mx.eval(keyframes.latents)  # another thread uses them
        return keyframes
