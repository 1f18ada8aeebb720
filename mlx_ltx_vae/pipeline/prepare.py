"""Decodes to files that are decided before they run: their input, audio, outputs and plan."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from math import ceil, floor
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..backend.mlx_utils import to_mlx
from ..errors import LatentsError, LTXVAEError, PlanError, option, takes_options, warn
from ..files import check_folder
from ..frame_format import common_format
from ..latents.keyframes import Keyframes
from ..latents.writer import rescue_latents
from ..networks.noise import check_takes_seed
from ..options import DECODE_DEFAULTS, OUTPUT_DEFAULTS, PLAN_DEFAULTS, DecodeOptions, OutputOptions, PlanOptions
from ..planning.film import MakePlan
from ..planning.plan import DecodePlan
from ..shapes import Grid
from ..tiling import preset
from ..units import DEFAULT_FPS, format_are, format_count, format_range
from ..video import takes_audio
from ..video.audio import check_audio_length
from ..video.sink_table import OutputFile
from .clip_audio import AudioSettings, ClipAudio, clip_audio, film_audio, find_audio
from .decode import DecodePipeline, check_shape
from .execution import ExecutionState, arrays_released
from .inputs import ClipInput, DecodeInput, FilmInput, MemoryInput, open_without_vae
from .output import DecodeOutput, DecodeReport, join_reports
from .progress import FrameBar, Progress
from .sources import check_values


@dataclass(frozen=True)
class DecodeSettings:
    """Settings of a decode to files.

    Attributes:
        output: options of the outputs.
        plan, options: options of its plan and of its network.
        fps: frames per second. `None` means what the input states, or 24.
        frames: the frames to decode, of the frames of the video; a bound that is a `Fraction` counts seconds. `None`
            means all.
        all_frames: also decodes the frames that pad the source of the latents to whole latent frames.
        preset: the name of tiles, which may depend on the size of the video.
        audio: `None` if no audio latents are decoded.
        files: files of an output, if it was named and checked before, see `find_outputs`.
        plans: plans that have been made, by shape and options, which decodes with the same settings share.
    """

    output: OutputOptions = OUTPUT_DEFAULTS
    plan: PlanOptions = PLAN_DEFAULTS
    options: DecodeOptions = DECODE_DEFAULTS
    fps: Fraction | None = None
    frames: slice | None = None
    all_frames: bool = False
    preset: str | None = None
    audio: AudioSettings | None = None
    files: Mapping[str, OutputFile] = field(default_factory=dict)
    plans: dict[Any, DecodePlan] = field(default_factory=dict, compare=False)

    def make_once(self, make_plan: MakePlan, shape: Sequence[int], options: PlanOptions) -> DecodePlan:
        """Return the plan of latents of a shape, which is made once."""
        key = tuple(shape), options
        if key not in self.plans:
            self.plans[key] = make_plan(shape, options)
        return self.plans[key]


@dataclass(frozen=True)
class PreparedDecode:
    """Decode to files that is decided. `run` does it.

    Attributes:
        plan: `None` if latents arrive without a plan, which is then made when the first of them are there.
        audio: audio latents that are decoded with the video, if there are any.
        videos: the videos of the batch that are decoded.
        padding: frames at the end that are left out, since they only pad the source of the latents.
    """

    plan: DecodePlan | None
    latents: DecodeInput
    audio: ClipAudio | None
    output: DecodeOutput
    videos: Sequence[int]
    _pipeline: DecodePipeline
    padding: int = 0

    @property
    def outputs(self) -> list[str]:
        """Output of each video."""
        return self.output.names

    @property
    def files(self) -> list[str]:
        """Files that are written."""
        return [file for index in self.videos for file in self.output.files[index]]

    @property
    def inputs(self) -> list[str | os.PathLike]:
        """Files that are read, except the input itself."""
        return [*self.latents.files, *(self.audio.files if self.audio else ()), *self.output.audio_files]

    @property
    def num_frames(self) -> int | None:
        """Number of frames of all videos, or `None` if latents arrive in parts."""
        return None if self.plan is None else self.plan.num_frames * len(self.videos)

    def check_outputs(
        self, *, entries: Mapping[str, str] | None = None, makes_folders: bool = False, overwrite: bool | None = None
    ) -> set[tuple[str, str]]:
        """Raise the errors of writing, as `DecodeOutput.check`, and return the metadata `entries` that are kept."""
        if self.plan is None or not self.latents.is_whole:
            return set()
        return self.output.check(
            self.plan, self.videos, entries=entries, makes_folders=makes_folders, overwrite=overwrite
        )

    def check_values(self) -> None:
        """Read all latents that are decoded; raise a `LatentsError` for values that are not finite."""
        if self.plan is not None:
            self.latents.check_values(self.plan)
            if self.audio is not None and self.plan.audio is not None:
                self.audio.check_values()

    def run(self, progress: Progress = False) -> DecodeReport:
        """Decode and write the files. Returns the report. Each file appears under its name when it is whole.

        `progress` is True for a progress bar on standard error, or a function `(done, total)` of frames.

        Raises:
            LTXVAEError: the errors of `VideoVAE.stream`, and a `WriterError` for a file that cannot be written.
        """
        open_video, reports = self.latents.open(), []
        if self.latents.is_whole:
            self._pipeline.decoder.get()  # before the clock starts
        if isinstance(progress, FrameBar):
            progress.enter("decoding")
        if (audio := self.audio) is not None:
            self.output.audio = lambda index: audio.stream(index, self.plan and self.plan.audio)
        for index in self.videos:
            latents, keyframes = open_video(index)
            options = replace(self._pipeline.options, keyframes=keyframes)
            pipeline = replace(self._pipeline, options=options, state=ExecutionState(outputs=self.output.frames))
            rescued = _rescued(latents, keyframes, self.output, index)
            with rescued, arrays_released(), pipeline.stream(latents, self.plan) as stream:
                report = self.output.write(
                    stream, self.plan, index, is_checked=self.latents.is_whole, progress=progress
                )
                reports.append(report)
        return join_reports(reports)


def prepare_decode(
    pipeline: DecodePipeline, latents: DecodeInput, path: str, settings: DecodeSettings, plan: DecodePlan | None = None
) -> PreparedDecode:
    """Decide a decode to files. Its outputs and values have not been checked.

    Raises:
        LatentsError, PlanError, WriterError: the errors of `VideoVAE.prepare` that need no look at existing files.
    """
    if isinstance(latents, MemoryInput):
        return _prepare(pipeline, latents, path, settings, settings.fps or DEFAULT_FPS, None, plan)
    assert isinstance(latents, (ClipInput, FilmInput))
    spec = pipeline.decoder.spec
    # The latents are normalized as they are read.
    network_options = replace(pipeline.options, unnormalized=False, keyframes=None)
    make_plan = partial(settings.make_once, pipeline.make_plan)
    pipeline = replace(pipeline, options=network_options, make_plan=make_plan)
    if pipeline.options.seed:
        check_takes_seed(spec)
    # A decoder of previews may make fewer frames, which last as long as the video's.
    decoder_frames = latents.num_frames(spec.out_grid)
    video_frames = latents.num_frames(pipeline.config.scale.video_grid)
    fps = Fraction(decoder_frames, video_frames) * (settings.fps or latents.fps or DEFAULT_FPS)
    assert latents.info is not None
    has_frames = settings.all_frames or pipeline.plan_options.frames or plan is not None
    padding = 0 if has_frames else latents.num_padding()
    requested_frames = choose_frames(settings.frames, fps, decoder_frames - padding, latents.info.source)
    requested_frames = requested_frames or pipeline.plan_options.frames
    frame_range = requested_frames or ((0, decoder_frames - padding) if padding else None)
    if plan is not None and plan.excerpt is not None:
        requested_frames = frame_range = plan.excerpt.frames.start, plan.excerpt.frames.end
    audio = _find_audio(pipeline, latents, path, settings, frame_range, fps)
    if plan is None:
        plan_options = with_preset(pipeline.plan_options, settings.preset, spec.out_grid(latents.shape.grid))
        plan_options = replace(plan_options, frames=frame_range, audio=tuple(audio.plans) if audio else ())
        pipeline = replace(pipeline, plan_options=plan_options)
    elif audio is not None and plan.audio is None and (audio_plans := audio.plans):
        plan = replace(plan, audio=audio_plans[-1])  # the one with the least memory
    if audio is not None:
        settings = replace(settings, output=replace(settings.output, audio=(), sample_rate=audio.vae.sample_rate))
    prepared = _prepare(pipeline, latents, path, settings, fps, audio, plan)
    if audio is not None and requested_frames is None:
        length = Fraction(audio.num_samples, audio.vae.sample_rate)
        shortest, longest = (decoder_frames - padding) / fps, decoder_frames / fps
        seconds = min(max(shortest, length), longest)  # audio may go with the padding or not
        check_audio_length(latents.info.source, length, seconds, cuts=settings.output.shortest)
    return replace(prepared, padding=0 if requested_frames else padding)


def _prepare(
    pipeline: DecodePipeline,
    latents: DecodeInput,
    path: str,
    settings: DecodeSettings,
    fps: Fraction,
    audio: ClipAudio | None,
    plan: DecodePlan | None,
) -> PreparedDecode:
    """Name the outputs, and plan the decode for them unless there is a plan."""
    output = DecodeOutput(path, settings.output, fps, settings.files, latents.shape)
    levels = None if latents.is_film else common_format(output.frames)  # a film is crossfaded as floats
    planned = replace(pipeline, format=levels, state=ExecutionState(outputs=output.frames))
    if plan is not None:
        pipeline.check_plan(plan)
        if latents.shape is not None and plan.batch == 1:
            check_shape(plan, latents.shape._replace(batch=1))
        if plan.format not in (None, levels):
            raise PlanError(f"{path}: the plan was made for other frames; plan with outputs=, or leave it out.")
    elif (plan := latents.plan(planned, fps)) is not None:
        planned = replace(planned, plan_options=PLAN_DEFAULTS)
    if plan is not None and latents.is_whole and plan.batch > 1:
        raise LatentsError(f"{path}: is one video, and the plan is for {plan.batch}; plan one of them.")
    return PreparedDecode(plan, latents, audio, output, range(len(output.names)), planned)


def _find_audio(
    pipeline: DecodePipeline,
    latents: ClipInput | FilmInput,
    path: str,
    settings: DecodeSettings,
    frames: tuple[int, int] | None,
    fps: Fraction,
) -> ClipAudio | None:
    """Return the audio latents of the video, or `None` if a file replaces them or the output has no audio."""
    audio, options, generations = settings.audio, settings.output, pipeline.source.generations
    if options.audio is not None or audio is None:
        return None
    file = settings.files.get(path)
    if not audio.is_required and not (file.kind.is_video if file else takes_audio(path, options)):
        return None
    if isinstance(latents, FilmInput):
        return film_audio(audio, latents.openers, latents.ends, frames, fps, generations)
    audio_latents = find_audio(audio, latents.file, generations)
    if audio_latents is None or audio.vae is None:
        return None
    return clip_audio(audio, audio.vae, audio_latents, frames, fps)


class DecodeChecks:
    """Checks of latent files and of the output of their decode that need no VAE.

    Attributes:
        output: `None` if nothing is written.
    """

    def __init__(
        self,
        paths: Sequence[str],
        path: str | None,
        options: OutputOptions,
        *,
        tensor: str | None = None,
        grid: Grid | None = None,
    ) -> None:
        """Open a latent file, or the windows of a film, and name the output. Raises the errors of both."""
        files = [open_without_vae(path, tensor=tensor, grid=grid) for path in paths]
        self._files = [file for file in files if file is not None]
        shape = None if files[0] is None else files[0].shape
        self.output = None if path is None else DecodeOutput(path, options, DEFAULT_FPS, {}, shape)

    def check_folder(self, output: str, *, makes_folders: bool) -> None:
        """Raise a `WriterError` if an output cannot be written in its folder."""
        if output != "-":
            target = Path(output).parent if "%" in Path(output).name else Path(output)
            check_folder(output, target, makes_folders=makes_folders)

    def check_values(self, *, unnormalized: bool | None = None) -> None:
        """Raise the errors of reading all values."""
        for file in self._files:
            ones = mx.ones((file.shape.channels,))
            check_values(file.map(statistics=(0 * ones, ones), unnormalized=unnormalized))


def with_preset(options: PlanOptions, name: str | None, video: Grid) -> PlanOptions:
    """Return the options of a plan with the tiles of a preset, which may depend on the size. `None` means no preset."""
    num_frames, height, width = video
    tiling = preset(name, height, width, num_frames) if name else None
    return replace(options, mode="tiled", tiling=tiling) if tiling else options


def has_seconds(frames: slice | None) -> bool:
    """Return whether a bound of a range counts seconds."""
    return frames is not None and any(isinstance(bound, Fraction) for bound in (frames.start, frames.stop))


def count_frames(frames: slice, fps: Fraction | None, source: str) -> slice:
    """Return a range whose bounds may be seconds, `Fraction`s, as a range of the frames that begin within it.

    Raises a `PlanError` for seconds without a frame rate.
    """
    if not has_seconds(frames):
        return frames
    if fps is None:
        raise PlanError(f"{source}: has no frame rate, so {option('frames=', '--frames')} cannot count seconds.")

    def count(bound: int | Fraction | None) -> int | None:
        if not isinstance(bound, Fraction):
            return bound
        return ceil(bound * fps) if bound >= 0 else floor(bound * fps)

    return slice(count(frames.start), count(frames.stop))


def choose_frames(frames: slice | None, fps: Fraction | None, num_frames: int, source: str) -> tuple[int, int] | None:
    """Return the first frame of a range and one more than the last, as `plan_decode` takes them. `None` means all.

    Bounds may be seconds, as for `count_frames`. Like a slice, the range ends with the video. Warns if it would end
    later, and raises a `PlanError` if it is empty.
    """
    if frames is None:
        return None
    frames = count_frames(frames, fps, source)
    _, end, _ = frames.indices(num_frames)
    start = frames.start if frames.start >= 0 else max(0, num_frames + frames.start)
    range_text, length = format_range(frames), format_count(num_frames, "frame")
    if start >= end:
        raise PlanError(
            f"{source}: the video has {length}, and none of {range_text}; choose frames within 0:{num_frames}."
        )
    if end < (frames.stop or end):
        problem = f"the video has {length}, so of the frames {range_text} only {format_are(end - start)} decoded"
        warn(f"{source}: {problem}.")
    return start, end


@contextmanager
def _rescued(latents: Any, keyframes: Keyframes | None, output: DecodeOutput, index: int) -> Iterator[None]:
    """Save normalized latents in memory, with keyframes, if their decode fails; say where in the error's text."""
    try:
        yield
    except LTXVAEError as error:
        # `integrations` saves the latents of an app's call, which may be in a file already.
        if takes_options() and isinstance(latents, (mx.array, np.ndarray)):
            text = str(error).rstrip(".")
            array = to_mlx(latents, "latents")
            error.args = (f"{text}; {rescue_latents(array, output.names[index], output.fps, keyframes)}.",)
        raise
