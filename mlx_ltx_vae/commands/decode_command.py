"""`python -m mlx_ltx_vae.decode`: decode latent files to videos."""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, prod
from pathlib import Path
from typing import Any

from .. import demo
from ..backend.machine import Work
from ..checkpoint import Checkpoint, open_checkpoint
from ..codec_table import CODECS
from ..errors import ItemsError, LatentsError, PlanError, warn
from ..files import is_pipe
from ..frame_format import FrameOutput, frame_format
from ..latents import LatentsFile, open_latents
from ..latents.files import MappedLatents
from ..latents.keyframes import Keyframes, KeyframesFile, describe_keyframes
from ..model_table import Kind, list_names, models_for
from ..models.base import Statistics
from ..models.noise import check_takes_seed
from ..models.specs import NetworkSpec
from ..options import DECODE_DEFAULTS, PLAN_DEFAULTS, DecodeOptions, OutputOptions, PlanOptions
from ..pipeline.film import Film
from ..pipeline.hdr_frames import HDROptions
from ..pipeline.output import DecodeOutput, DecodeReport, join_reports
from ..pipeline.progress import FrameBar
from ..pipeline.sources import Latents
from ..planning.plan import DecodePlan
from ..planning.planner import plan_decode
from ..shapes import format_size
from ..tiling import TilingConfig, preset
from ..units import DEFAULT_FPS, format_count, format_seconds
from ..vae import describe_whole_vae
from ..video import check_output_options, is_sound, output_files, takes_sound
from ..video.audio import check_sound_length
from .cli import CommandParser
from .inputs import ClipInput, FilmInput
from .items import Item, Result, all_exist, are_many, find_pattern, has_table, mark_folders
from .jobs import Job, Task, describe_blending
from .models import CHOICES, choose_by_environment, choose_by_latents
from .options import choose_frames, chosen_steps, read_options
from .running import run_command
from .sound import ClipSound, SoundSettings, SoundTask, clip_sound, film_sound, find_sound

# Destinations of `add_job_options`, which go with any output.
_JOB_OPTIONS = {
    "dtype",
    "distributed",
    "rank_timeout",
    "dry_run",
    "skip_existing",
    "overwrite",
    "json",
    "quiet",
    "debug",
}


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    missing: str | None = f"-m VAE is missing, the checkpoint to decode with: {CHOICES}"
    if is_sound(arguments.output or ""):
        allowed_options = {"demo", "output", *_JOB_OPTIONS, *(field.name for field in fields(SoundSettings))}
        film_options = {"join", "carry", "fps", "list"}
        allowed_options = allowed_options | film_options if arguments.join else allowed_options - film_options
        parser.refuse_others(arguments, allowed_options, "a .wav file is the sound alone")
        audio_names = list_names([Kind.SOUND])
        missing = f"--audio-model AUDIO is missing, the checkpoint of the sound: give one of {audio_names}, or a file"
        missing = None if arguments.audio_model else missing
    elif not arguments.demo:
        choose_by_environment(arguments)
    kind = Kind.SOUND if is_sound(arguments.output or "") else Kind.VIDEO
    complete_inputs(parser, arguments, demo.VAE, missing, kind=kind)
    with parser.wrong_usage():
        frames = FrameOutput(frame_format(arguments.bit_depth, PlanError), chosen_steps(arguments))
        output_options = read_options(
            OutputOptions,
            arguments,
            metadata=dict(arguments.metadata),
            frames=frames,
            overwrite=arguments.overwrite,
        )
        plan = _plan_options(arguments)
        decode_options = read_options(DecodeOptions, arguments)  # the latents are normalized as they are read
    sound = SoundSettings(
        model=arguments.model,
        audio_model=arguments.audio_model,
        audio_latents=arguments.audio_latents,
        audio_tensor=arguments.audio_tensor,
        unnormalized=arguments.unnormalized,
        dtype=arguments.dtype,
        memory_budget=arguments.memory_budget,
    )
    settings = DecodeSettings(output_options, plan, arguments.preset, decode_options, arguments.keyframes, sound)
    default = _DEMO_NAME if arguments.demo else f"{{name}}{_default_ending(arguments)}"
    return run_decode(parser, arguments, settings, default)


def _default_ending(arguments: argparse.Namespace) -> str:
    """Return the ending of an output without a name: .mp4, or another container that takes the codec."""
    codec = CODECS.get(arguments.codec or "")
    return ".mp4" if codec is None or ".mp4" in codec.endings else codec.endings[0]


def complete_inputs(
    parser: CommandParser,
    arguments: argparse.Namespace,
    model: Path,
    missing: str | None,
    *,
    kind: Kind = Kind.VIDEO,
) -> None:
    """Replace --demo by the latents and the checkpoint of the package, and refuse arguments without either.

    A missing checkpoint is a model of this kind for the latents, if they state their VAE. `missing` is the error
    without one. `None` means that none is needed.
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
    if not arguments.latents:
        parser.error("LATENTS is missing (or --demo)")
    sources = mark_folders(arguments.latents, of_videos=False)
    if missing and not arguments.model:
        problem = choose_by_latents(arguments, sources, kind)
        if not (arguments.model or (kind is Kind.SOUND and arguments.audio_model)):
            parser.error(problem or missing)
    if not arguments.join:
        arguments.latents = sources


@dataclass(frozen=True)
class DecodeSettings:
    """Options of all decodes of a command.

    Attributes:
        preset: the name of tiles, which may depend on the video's size. `None` means the tiles of the `plan`.
        keyframes: a file. `None` means the keyframes in the latent file.
        sound: `None` if no sound is decoded.
        are_stills: whether one picture of each latent frame is enough.
        kind: the kind of model that is expected.
    """

    output: OutputOptions
    plan: PlanOptions = PLAN_DEFAULTS
    preset: str | None = None
    options: DecodeOptions = DECODE_DEFAULTS
    keyframes: str | None = None
    sound: SoundSettings | None = None
    are_stills: bool = False
    kind: Kind = Kind.VIDEO


def run_decode(
    parser: CommandParser,
    arguments: argparse.Namespace,
    settings: DecodeSettings,
    default: str,
    make_job: "Callable[[argparse.Namespace, Sequence[str], str | None, DecodeSettings], DecodeJob] | None" = None,
) -> int:
    """Decode the latents of complete arguments, as the job that `make_job` makes.

    `default` is the output without -o.
    """
    sources, sound, audio = arguments.latents, settings.sound, settings.output.audio
    inputs = [_FILM] if arguments.join else sources
    has_only_sound = sound is not None and is_sound(arguments.output or "")
    is_exr = bool(arguments.exr) and not arguments.output and not has_table(inputs)
    if arguments.json and arguments.output == "-":
        parser.error("--json and -o - both write to standard output; choose one")
    with parser.wrong_usage():
        pattern = _find_output(arguments, inputs, default, is_exr=is_exr)
        if settings.keyframes and are_many(sources):
            problem = "--keyframes goes with one input; decode each on its own, or store them in its latent file"
            raise ItemsError(problem)
        if sound:
            sound.check(audio, is_alone=has_only_sound, is_many=are_many(inputs))
        for name, path in (("keyframes", settings.keyframes), ("audio-latents", sound and sound.audio_latents)):
            if arguments.join and path:
                raise ItemsError(f"--{name} goes with one window; store it in each window's file")
        if audio and arguments.frames and arguments.frames.start:
            raise ItemsError("--audio begins with the first frame; leave out --audio, or begin --frames with 0")
        output_options = _choose_hdr_frames(arguments, inputs, settings.output, is_exr=is_exr)
        if pattern and not has_only_sound:
            may_have_sound = sound and not audio and (sound.is_required or output_options.audio_codec)
            checked_options = replace(output_options, audio=(), sample_rate=1) if may_have_sound else output_options
            for file, options in output_files(pattern, checked_options).items():
                check_output_options(file, options, fps=arguments.fps)
    if has_only_sound:
        arguments.distributed = Work.OFF.value
    job = (make_job or DecodeJob)(arguments, sources, pattern, replace(settings, output=output_options))
    return run_command(lambda _: job.run(), arguments, computes=not arguments.dry_run)


def _find_output(arguments: argparse.Namespace, inputs: Sequence[str], default: str, *, is_exr: bool) -> str | None:
    """Return the pattern of outputs. `is_exr`: EXR images are the only output, and -o need not name them."""
    output, is_still = arguments.output, getattr(arguments, "stills", False)
    if is_exr:
        arguments.output, arguments.exr = _stills_folder(arguments.exr, inputs), None
        return arguments.output
    if not is_still:
        pattern = find_pattern(inputs, output, Path(default).suffix)
        return default if pattern is None and not arguments.dry_run and not has_table(inputs) else pattern
    if output and not output.endswith(("/", os.sep)) and Path(output).suffix:
        raise ItemsError(f"--stills makes numbered pictures; name a folder for them: {Path(output).stem}/")
    return _stills_folder(output, inputs) if output else os.path.join("{name}", "")


def _stills_folder(folder: str, inputs: Sequence[str]) -> str:
    """Return a folder of stills, with a subfolder for each input if there are several."""
    names = ["{name}"] if are_many(inputs) and "{name}" not in folder else []
    return os.path.join(folder, *names, "")


def _choose_hdr_frames(
    arguments: argparse.Namespace, inputs: Sequence[str], options: OutputOptions, *, is_exr: bool
) -> OutputOptions:
    """Return the options of outputs with the frame format of HDR latents. `is_exr`: EXR is the only output."""
    if arguments.hdr is None:
        option_names = [
            name for name in ("hdr_output", "exposure", "exr", "exr_space") if getattr(arguments, name) is not None
        ]
        if option_names or is_exr:
            name = option_names[0] if option_names else "exr"
            raise ItemsError(f"--{name.replace('_', '-')} is for HDR latents; add --hdr acescct or logc3")
        return options
    hdr = HDROptions(
        arguments.hdr,
        signal=arguments.hdr_output or HDROptions.signal,
        exposure=arguments.exposure or HDROptions.exposure,
        exr=arguments.exr and _stills_folder(arguments.exr, inputs),
        exr_space=arguments.exr_space or HDROptions.exr_space,
    )
    return hdr.choose_frames(options, is_exr=is_exr)


def _plan_options(arguments: argparse.Namespace) -> PlanOptions:
    """Return the options of plans. The tiles of a preset are chosen later, for each video."""
    tiling, mode = None, arguments.mode
    if arguments.tile or arguments.tile_frames:
        tiling = TilingConfig(arguments.tile, arguments.tile_frames)
    if tiling and arguments.preset:
        raise PlanError("--preset cannot be combined with --tile or --tile-frames")
    has_tiles = tiling or arguments.preset
    if has_tiles and mode not in ("auto", "tiled"):
        raise PlanError(f"tiles go with --mode tiled, not {mode}")
    checked = read_options(PlanOptions, arguments, mode="tiled" if has_tiles else mode, tiling=tiling)
    return replace(checked, mode="tiled" if tiling else mode)


_UNNAMED = "out.mp4"  # stands for the output of a dry run without one
_DEMO_NAME = "demo.mp4"
_FILM = "film"  # name of the one input that the windows of a film are


class DecodeJob(Job):
    """Job of `decode` and `preview`."""

    network = "decoder"

    def __init__(
        self, arguments: argparse.Namespace, sources: Sequence[str], pattern: str | None, settings: DecodeSettings
    ) -> None:
        super().__init__(arguments, sources, pattern, is_film=arguments.join)
        self.settings = settings
        self._sound_alone = settings.sound if is_sound(pattern or "") else None  # if it is the only output
        self.dtype = arguments.dtype or ("float32" if arguments.hdr else None)
        self._plans: dict[Any, DecodePlan] = {}
        self._checked: set[str] = set()  # files whose latent space has been compared

    def open(self) -> Checkpoint:
        if self._sound_alone is not None:
            return self._sound_alone.open()
        checkpoint = open_checkpoint(self.arguments.model, encoder=False)
        if self.settings.kind is Kind.PREVIEW and checkpoint.statistics is not None:
            warn(f"{checkpoint.name}: {describe_whole_vae(checkpoint.config)}.")
        return checkpoint.for_stills() if self.settings.are_stills else checkpoint

    def make_task(self, item: Item) -> Task:
        sound = self._sound_alone
        return DecodeTask(self, item) if sound is None else SoundTask(self, item, sound)

    @property
    def spec(self) -> NetworkSpec:
        """Layers of the decoder."""
        return self.checkpoint.spec("decoder")

    @cached_property
    def statistics(self) -> Statistics | None:
        return self.checkpoint.read_statistics()

    def map(self, file: LatentsFile) -> MappedLatents:
        """Return the normalized latents of a file, which are read as they are needed."""
        return file.map(statistics=self.statistics, unnormalized=self.arguments.unnormalized)

    def read(self, file: KeyframesFile) -> Keyframes:
        """Read keyframes, normalized."""
        return file.read(statistics=self.statistics, unnormalized=self.arguments.unnormalized)

    def open_latents(self, path: str) -> LatentsFile:
        """Open a latent file, without reading values."""
        arguments, config = self.arguments, self.checkpoint.config
        if (self.is_many or self.is_film) and (is_pipe(path) or path == "-"):
            raise ItemsError(f"{path}: is a pipe, which can be read only once; decode it alone, or save it.")
        file = open_latents(
            path,
            latent_channels=config.latent_channels,
            tensor=arguments.tensor,
            grid=arguments.grid,
            scale=config.scale,
            vae=self.checkpoint.title,
        )
        self._check_space(file)
        if self.checkpoint.statistics is None and (arguments.unnormalized or file.normalized is False):
            raise LatentsError(
                f"{path}: these latents are unnormalized, and {self.checkpoint.name} has no statistics to normalize "
                "them; give normalized latents, without --unnormalized."
            )
        return file

    def _check_space(self, file: LatentsFile) -> None:
        """Warn, once for a file, if its latents belong to another VAE than the one that decodes them."""
        source, space = file.info.source, file.info.space
        if source in self._checked or (problem := self.checkpoint.describe_mismatch(space)) is None:
            return
        self._checked.add(source)
        is_fitting = space.generation in self.checkpoint.latents_taken  # and only the statistics differ
        models = [] if is_fitting else models_for(space.generation, self.settings.kind)
        remedy = (
            f"decode them with -m {models[0].name}" if models else "decode them with the VAE that they were made for"
        )
        warn(f"{source}: its latents are {problem}, so the frames will be wrong; {remedy}.")

    def make_plan(self, shape: Sequence[int], options: PlanOptions) -> DecodePlan:
        """Return the plan of a video. Files of one shape share it."""
        key = tuple(shape), options
        if key not in self._plans:
            self._plans[key] = plan_decode(self.spec, shape, self.machine, options)
        return self._plans[key]


class DecodeTask(Task):
    """Decode of a latent file or a film. Several ranks share the rows of one video, or each decodes some videos."""

    plan: DecodePlan
    _job: DecodeJob

    def __init__(self, job: DecodeJob, item: Item) -> None:
        super().__init__(job, item)
        arguments, ranks, options = job.arguments, job.ranks, job.settings.output
        can_skip = arguments.skip_existing and ranks.size == 1  # before the latents are read
        if can_skip and item.output and all_exist(list(output_files(item.output, options))):
            self.result = Result(outputs=[item.output], is_skipped=True)
            return
        self._input = FilmInput(job, item.windows) if job.is_film else ClipInput(job, item.source)
        if job.settings.options.seed:
            check_takes_seed(job.spec)
        shape = self._input.shape
        self._work = ranks.choose(shape.batch)
        self._videos: Sequence[int] = range(shape.batch)
        if self._work is Work.BATCH:
            self._videos = range(ranks.rank, shape.batch, ranks.size)
        # A decoder of previews may make fewer frames, which last as long as the video's.
        decoder_frames = self._input.num_frames(job.spec.out_grid)
        video_frames = self._input.num_frames(job.checkpoint.config.scale.video_grid)
        self._fps = Fraction(decoder_frames, video_frames) * (arguments.fps or self._input.fps or DEFAULT_FPS)
        frames = self._choose_frames(decoder_frames)
        self._sound = self._find_sound(frames)
        self.plan = self._input.plan(self._plan_options(frames), self._fps)
        if self._sound is not None:
            if frames is None:
                length = Fraction(self._sound.num_samples, self._sound.sample_rate)
                check_sound_length(item.source, length, self.plan.num_frames / self._fps, cuts=options.shortest)
            options = replace(options, audio=(), sample_rate=self._sound.sample_rate)
        self._output = DecodeOutput(
            item.output or _UNNAMED, options, self._fps, batch=shape.batch, is_still=shape.frames == 1
        )
        inputs = [*self._sound_files(), *([job.settings.keyframes] if job.settings.keyframes else []), *item.windows]
        outputs, extras = (self._output.names, self._output.other_names) if item.output else ([], {})
        num_frames = self.plan.num_frames * len(self._videos)
        self.result = Result(inputs, outputs, extras, num_frames, cost=prod(shape))

    def _choose_frames(self, num_frames: int) -> tuple[int, int] | None:
        """Return the first frame to decode and one more than the last, of `num_frames`. `None` means all."""
        frames, seconds = self._job.arguments.frames, self._job.arguments.first_seconds
        frames = frames if seconds is None else slice(0, ceil(seconds * self._fps))
        return choose_frames(frames, num_frames, self._item.source)

    def _find_sound(self, frames: tuple[int, int] | None) -> ClipSound | None:
        """Return the audio latents of the video, or `None` if a file replaces them or the output has no sound."""
        job, output = self._job, self._item.output or _UNNAMED
        sound, output_options = job.settings.sound, job.settings.output
        if output_options.audio is not None or sound is None:
            return None
        if not sound.is_required and not takes_sound(output, output_files(output, output_options)[output]):
            return None
        if isinstance(self._input, FilmInput):
            openers, ends = self._input.openers, self._input.ends
            return film_sound(sound, job.machine, openers, ends, frames, self._fps, job.checkpoint.latents_taken)
        file = find_sound(sound, self._input.file, job.checkpoint.latents_taken)
        return None if file is None else clip_sound(sound, file, job.machine, frames, self._fps)

    def _sound_files(self) -> list[str | os.PathLike]:
        audio = self._job.settings.output.audio
        audio_files = [audio] if isinstance(audio, (str, os.PathLike)) else []
        return [*audio_files, *(self._sound.files if self._sound else ())]

    def _plan_options(self, frames: tuple[int, int] | None) -> PlanOptions:
        job, settings = self._job, self._job.settings
        files = output_files(self._item.output or _UNNAMED, settings.output)
        num_frames, height, width = job.spec.out_grid(self._input.shape.grid)
        tiling = preset(settings.preset, height, width, num_frames) if settings.preset else None
        return replace(
            replace(settings.plan, mode="tiled", tiling=tiling) if tiling else settings.plan,
            frames=frames,
            outputs=tuple(file_options.frames for file_options in files.values()),
            sound=tuple(self._sound.plans) if self._sound else (),
            ranks=job.ranks.size if self._work is Work.ROWS else 1,
        )

    def check_outputs(self) -> None:
        """Find out whether to skip the item, and raise the errors of writing before the weights are read."""
        if self.result.is_skipped or not self._item.output:
            return
        arguments, output = self._job.arguments, self._output
        if arguments.skip_existing and self._job.ranks.size == 1:
            self._leave_out_existing()
        videos = self._videos if self._writes else ()
        files = [file for index in videos for file in output.files[index]]
        is_skipped = arguments.skip_existing and (not files or all_exist(files))
        self.result = replace(self.result, is_skipped=is_skipped)
        self._copied: set[tuple[str, str]] = set()  # entries of the latent file that go into an output
        if not is_skipped:
            entries = self._input.info.workflow if arguments.workflow else {}
            overwrite, makes_folders = self._job.may_replace(files), self._job.makes_folders
            self._copied = output.check(
                self.plan, videos, entries=entries, makes_folders=makes_folders, overwrite=overwrite
            )

    def _leave_out_existing(self) -> None:
        """Leave out files that exist, and videos that have no others."""
        files = self._output.files
        for index in self._videos:
            files[index] = {file: options for file, options in files[index].items() if not all_exist([file])}
        self._videos = [index for index in self._videos if files[index]]
        self.result = replace(self.result, num_frames=self.plan.num_frames * len(self._videos))

    @property
    def _writes(self) -> bool:
        """Flag: this rank writes the videos that it decodes."""
        return self._work is Work.BATCH or self._job.ranks.is_first

    def check_values(self) -> None:
        self._input.check_values(self.plan)
        if self._sound is not None and self.plan.sound is not None:
            self._sound.check_values()

    def describe(self) -> dict[str, Any]:
        plans = [self.plan.as_dict(), str(self._fps), len(self.result.outputs)]
        return {"the latents": self._input.headers(), "the plans": plans}

    def networks(self) -> dict[str, dict[str, str]]:
        return super().networks() | ({} if self._sound is None else {"audio_vae": self._sound.used})

    def sample(self) -> dict[str, Any]:
        return self._input.sample()

    def run(self, bar: FrameBar) -> tuple[dict[str, Any], str]:
        ranks, open_video = self._job.ranks, self._input.open()
        self._job.load()  # before the clock starts
        if (sound := self._sound) is not None:
            self._output.sound = lambda index: sound.stream(index, self.plan.sound)
        bar.enter("decoding")
        if self._work is Work.BATCH:
            ranks.work_alone()
            reports = ranks.together(lambda: self._decode(open_video, bar))
        else:
            reports = self._decode(open_video, bar)
        report = self._join(reports)
        self.result = replace(self.result, outputs=self._output.names, extras=self._output.other_names)
        return self._report(self._describe(report), report.as_dict(), work=self._work, sent_bytes=report.sent_bytes)

    def _decode(
        self, open_video: Callable[[int], tuple[Latents | Film, Keyframes | None]], bar: FrameBar
    ) -> list[DecodeReport]:
        """Decode this rank's videos, and return their reports."""
        group, reports = self._job.ranks.group if self._work is Work.ROWS else None, []
        for index in self._videos:
            latents, keyframes = open_video(index)
            options = replace(self._job.settings.options, keyframes=keyframes)
            stream = self._job.load().stream(latents, self.plan, group=group, **vars(options))
            reports.append(self._output.write(stream, self.plan, index, progress=bar, is_written=self._writes))
        return reports

    def _join(self, reports: Sequence[DecodeReport]) -> DecodeReport:
        """Return the report of the videos of all ranks."""
        if self._work is not Work.BATCH:
            return join_reports(reports)
        names = ("frames", "seconds", "first_frame_seconds", "one_color", "sent_bytes")
        plan, output = self.plan, self._output
        report = join_reports(reports) if reports else output.report(plan, plan.frame_size)  # more ranks than videos
        values = {name: getattr(report, name) for name in names}
        gathered = self._job.ranks.gather([values, output.new_names])
        for _, new_names in gathered:
            output.rename(new_names)
        return join_reports(
            [replace(report, **rank_values) for rank_values, _ in gathered if rank_values["frames"]], is_parallel=True
        )

    def _describe(self, report: DecodeReport) -> str:
        """Describe the decode in a line."""
        plan, batch = self.plan, self._input.shape.batch
        fps, rate = float(self._fps), report.sample_rate
        size = format_size(*plan.frame_size)
        videos = f"{batch} videos of " if batch > 1 else ""
        summary = f"{videos}{format_count(plan.num_frames, 'frame')} of {size}, "
        summary += f"{format_seconds(plan.num_frames / fps)} at {fps:.6g} fps"
        if self._output.are_stills:
            summary = f"{batch} stills of {size}"
        copied_keys = " and ".join(sorted(key for key, _ in self._copied))
        return (
            f"{summary}, {f'sound at {rate} Hz, ' if rate else ''}"
            f"{f'{describe_keyframes(plan.keyframes)}, ' if plan.keyframes else ''}{describe_blending(plan)}"
            f"in {format_seconds(report.seconds)} (first frame after {format_seconds(report.first_frame_seconds)})"
            f"{copied_keys and f', with the {copied_keys} of ComfyUI (--no-workflow leaves them out)'}"
            f"{'; every frame is one color' if report.one_color else ''}"
        )
