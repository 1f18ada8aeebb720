"""`mlx_ltx_vae decode`: decode latent files to videos."""

import argparse
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from .. import (
    AudioVAE,
    CheckpointError,
    DecodePlan,
    DecodeReport,
    HDROptions,
    PlanError,
    PreviewVAE,
    VideoVAE,
    demo,
    tiling,
)
from ..audio_vae import find_audio_decoder
from ..codec_table import CODECS
from ..errors import ItemsError
from ..files import is_pipe
from ..latents.keyframes import describe_keyframes
from ..model_table import Kind, list_names
from ..options import DecodeOptions, OutputOptions, PlanOptions
from ..pipeline.clip_audio import AudioSettings
from ..pipeline.inputs import ClipInput, FilmInput
from ..pipeline.prepare import DecodeChecks, DecodeSettings
from ..pipeline.progress import FrameBar
from ..shapes import format_size
from ..units import format_count, format_seconds
from ..video import find_outputs, is_audio, output_files
from .audio import AudioInputTask, AudioTask
from .cli import CommandParser
from .items import Item, Result, all_exist, are_many, check_inputs, find_pattern, has_table, mark_folders
from .jobs import Job, Task, describe_blending
from .model_choice import CHOICES, choose_by_environment, choose_by_latents
from .options import chosen_steps, read_options
from .terminal import run_command

# Destinations of `add_job_options`, which go with any output.
_JOB_OPTIONS = {
    "dtype", "distributed", "rank_timeout", "dry_run", "skip_existing", "overwrite", "json", "quiet", "debug",
}  # fmt: skip
# Destinations of options of the audio alone.
_AUDIO_OPTIONS = {"model", "audio_model", "audio_latents", "audio_tensor", "unnormalized", "memory_budget"}


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    missing: str | None = f"-m VAE is missing, the checkpoint to decode with: {CHOICES}"
    kind = Kind.AUDIO if is_audio(arguments.output or "") else Kind.VIDEO
    if kind is Kind.AUDIO:
        allowed_options = {"demo", "output", *_JOB_OPTIONS, *_AUDIO_OPTIONS}
        film_options = {"join", "carry", "fps", "list"}
        allowed_options = allowed_options | film_options if arguments.join else allowed_options - film_options
        parser.refuse_others(arguments, allowed_options, "a .wav file is the audio alone")
        audio_names = list_names([Kind.AUDIO])
        missing = f"--audio-model AUDIO is missing, the checkpoint of the audio: give one of {audio_names}, or a file"
        missing = None if arguments.audio_model else missing
    elif not arguments.demo:
        choose_by_environment(arguments)
    complete_inputs(parser, arguments, demo.VAE, missing, kind=kind)
    with parser.wrong_usage():
        output = read_options(
            OutputOptions,
            arguments,
            metadata=dict(arguments.metadata),
            bit_depth=arguments.bit_depth,
            overwrite=arguments.overwrite,
        )
        output = replace(output, frames=replace(output.frames, steps=chosen_steps(arguments)))
        plan = _plan_options(arguments)
        decode_options = read_options(DecodeOptions, arguments)  # the latents are normalized as they are read
    is_required = (arguments.audio_model, arguments.audio_latents, arguments.audio_tensor) != (None, None, None)
    audio = AudioSettings(
        partial(find_audio_decoder, arguments.audio_model, arguments.model, arguments.dtype),
        arguments.audio_latents,
        arguments.audio_tensor,
        arguments.unnormalized,
        is_required,
    )
    settings = DecodeSettings(output, plan, decode_options, preset=arguments.preset, audio=audio)
    endings = CODECS[arguments.codec].endings if arguments.codec in CODECS else (".mp4",)
    ending = ".mp4" if ".mp4" in endings else endings[0]
    return run_decode(parser, arguments, settings, "demo.mp4" if arguments.demo else f"{{name}}{ending}", DecodeJob)


def complete_inputs(
    parser: CommandParser, arguments: argparse.Namespace, model: Path, missing: str | None, *, kind: Kind = Kind.VIDEO
) -> None:
    """Replace --demo by the latents and the checkpoint of the package, and refuse arguments without either.

    A missing checkpoint is a model of this kind for the latents, if they state their VAE. `missing` is the error
    without one. `None` means that none is needed.
    """
    with parser.wrong_usage():
        check_inputs(arguments.latents, arguments.output, ".mp4")
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
        if not (arguments.model or (kind is Kind.AUDIO and arguments.audio_model)):
            parser.error(problem or missing)
    if not arguments.join:
        arguments.latents = sources


def run_decode(
    parser: CommandParser,
    arguments: argparse.Namespace,
    settings: DecodeSettings,
    default: str,
    make_job: "Callable[[argparse.Namespace, Sequence[str], str | None, DecodeSettings], DecodeJob]",
) -> int:
    """Decode the latents of complete arguments, as the job that `make_job` makes.

    `default` is the output without -o.
    """
    sources, audio_settings = arguments.latents, settings.audio
    inputs = [_FILM] if arguments.join else sources
    has_only_audio = audio_settings is not None and is_audio(arguments.output or "")
    is_exr = bool(arguments.exr) and not arguments.output and not has_table(inputs)
    if arguments.json and arguments.output == "-":
        parser.error("--json and -o - both write to standard output; choose one")
    with parser.wrong_usage():
        pattern = _find_output(arguments, inputs, default, is_exr=is_exr)
        _check_combination(arguments, settings, sources, inputs)
        output_options, files = _choose_hdr_frames(arguments, inputs, settings.output, is_exr=is_exr), {}
        if pattern and not has_only_audio:
            files = find_outputs(pattern, _with_possible_audio(output_options, audio_settings), fps=arguments.fps)
    settings = replace(
        settings,
        output=output_options,
        files=files,
        fps=arguments.fps,
        frames=arguments.frames,
        all_frames=arguments.all_frames,
    )
    job = make_job(arguments, sources, pattern, settings)
    return run_command(lambda _: job.run(), arguments, computes=not arguments.dry_run)


def _check_combination(
    arguments: argparse.Namespace, settings: DecodeSettings, sources: Sequence[str], inputs: Sequence[str]
) -> None:
    """Raise an `ItemsError` for options that contradict each other, or do not go with so many inputs."""
    audio, file, keyframes = settings.audio, settings.output.audio, getattr(arguments, "keyframes", None)
    latents, is_required = (None, False) if audio is None else (audio.latents, audio.is_required)
    is_many, start = are_many(inputs), arguments.frames and arguments.frames.start
    many_keyframes = "--keyframes goes with one input; decode each on its own, or store them in its latent file"
    required = "--audio is the audio of the video; leave out --audio-model and other options of latents"
    for is_wrong, rule in (
        (keyframes and are_many(sources), many_keyframes),
        (file and is_many, "--audio goes with one input; add it to each video on its own"),
        (latents and is_many, "--audio-latents goes with one input; add it to each video on its own"),
        (is_audio(arguments.output or "") and is_many, "a .wav file is the audio of one input; decode each on its own"),
        (is_required and file, required),
        (arguments.join and keyframes, "--keyframes goes with one window; store it in each window's file"),
        (arguments.join and latents, "--audio-latents goes with one window; store it in each window's file"),
        (file and start, "--audio begins with the first frame; leave out --audio, or begin --frames with 0"),
    ):
        if is_wrong:
            raise ItemsError(rule)


def _with_possible_audio(options: OutputOptions, audio: AudioSettings | None) -> OutputOptions:
    """Return the options of outputs that may have the audio of audio latents, which are not known yet."""
    may_have_audio = audio and not options.audio and (audio.is_required or options.audio_codec)
    return replace(options, audio=(), sample_rate=48_000) if may_have_audio else options


def _find_output(arguments: argparse.Namespace, inputs: Sequence[str], default: str, *, is_exr: bool) -> str | None:
    """Return the pattern of outputs. `is_exr`: EXR images are the only output, and -o need not name them."""
    output, is_still = arguments.output, getattr(arguments, "stills", False)
    if is_exr:
        arguments.output, arguments.exr = _stills_folder(arguments.exr, inputs), None
        return arguments.output
    if not is_still:
        return find_pattern(inputs, output, Path(default).suffix, None if arguments.dry_run else default)
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
    tiles, mode = None, arguments.mode
    if arguments.tile or arguments.tile_frames:
        tiles = tiling.TilingConfig(arguments.tile, arguments.tile_frames)
    if tiles and arguments.preset:
        raise PlanError("--preset cannot be combined with --tile or --tile-frames")
    has_tiles = tiles or arguments.preset
    if has_tiles and mode not in ("auto", "tiled"):
        raise PlanError(f"tiles go with --mode tiled, not {mode}")
    checked = read_options(PlanOptions, arguments, mode="tiled" if has_tiles else mode, tiling=tiles)
    return replace(checked, mode="tiled" if tiles else mode)


_UNNAMED = "out.mp4"  # stands for the output of a dry run without one
_FILM = "film"  # name of the one input that the windows of a film are


class DecodeJob(Job):
    """Job of `decode`."""

    network = "decoder"

    def __init__(
        self, arguments: argparse.Namespace, sources: Sequence[str], pattern: str | None, settings: DecodeSettings
    ) -> None:
        super().__init__(arguments, sources, pattern, is_film=arguments.join)
        self.settings = settings
        self.decided = settings  # until the VAE is downloaded, without audio
        self._has_only_audio = is_audio(pattern or "")
        self.dtype = arguments.dtype or ("float32" if arguments.hdr else None)

    def open(self) -> VideoVAE | AudioVAE:
        self.decided = self.settings
        if self._has_only_audio:
            audio_vae = self.settings.audio and self.settings.audio.vae
            if not isinstance(audio_vae, AudioVAE):
                names = f"give --audio-model {list_names([Kind.AUDIO])}, or a file"
                raise CheckpointError(f"{self.arguments.model}: audio latents need an audio VAE; {names}.")
            return audio_vae
        vae = self.open_pictures()
        self._open_reader(vae)
        return vae

    def open_without_download(self) -> VideoVAE | AudioVAE | None:
        audio, self.decided = self.settings.audio, replace(self.settings, plans={})
        if audio is not None and self.arguments.audio_model is not None:
            audio_vae = AudioVAE.before_download(self.arguments.audio_model, dtype=self.dtype, encoder=False)
            audio = replace(audio, find_vae=lambda: audio_vae)
            self.decided = replace(self.decided, audio=audio)
            if audio_vae is None and not self._has_only_audio:
                options = _with_possible_audio(self.settings.output, audio)
                self.decided = replace(self.decided, output=options, audio=None)
        if self._has_only_audio:
            return audio.vae if audio is not None and isinstance(audio.vae, AudioVAE) else None
        vae = VideoVAE.before_download(self.arguments.model, dtype=self.dtype, encoder=False)
        if vae is not None:
            self._open_reader(vae)
        return vae

    def _open_reader(self, vae: VideoVAE) -> None:
        arguments = self.arguments
        self.reader = replace(
            vae.reader(),
            tensor=arguments.tensor,
            grid=arguments.grid,
            unnormalized=arguments.unnormalized,
            keyframes=getattr(arguments, "keyframes", None),
            is_dry_run=arguments.dry_run,
        )

    def open_pictures(self) -> VideoVAE:
        return VideoVAE.from_pretrained(self.arguments.model, dtype=self.dtype, encoder=False)

    def make_task(self, item: Item) -> Task:
        audio = self.decided.audio
        if not self._has_only_audio or audio is None:
            return DecodeTask(self, item) if self.has_vae else InputTask(self, item)
        return AudioTask(self, item, audio) if self.has_vae else AudioInputTask(self, item, audio)


class PreviewJob(DecodeJob):
    """Job of `preview`."""

    def open_without_download(self) -> VideoVAE | AudioVAE | None:
        is_sheet = self.settings.output.contact_sheet and VideoVAE.is_remote(self.arguments.model)
        return None if is_sheet else super().open_without_download()

    def open_pictures(self) -> VideoVAE:
        vae = PreviewVAE.from_pretrained(self.arguments.model, dtype=self.dtype, encoder=False)
        return vae.for_stills() if self.settings.output.contact_sheet else vae


class _LatentsTask(Task):
    """Task of a latent file or a film."""

    _job: "DecodeJob"

    def __init__(self, job: "DecodeJob", item: Item) -> None:
        super().__init__(job, item)
        # Before the latents are read.
        files = output_files(item.output, job.settings.output) if item.output and job.arguments.skip_existing else {}
        if item.output and all_exist(list(files)):
            self.result = Result(outputs=[item.output], is_skipped=True)
            return
        for path in item.windows or [item.source]:
            if (job.is_many or job.is_film) and (is_pipe(path) or path == "-"):
                raise ItemsError(f"{path}: is a pipe, which can be read only once; decode it alone, or save it.")
        self.read_headers()

    @abstractmethod
    def read_headers(self) -> None:
        """Open the inputs of an item that is not skipped."""


class InputTask(_LatentsTask):
    """Checks of an item and its outputs that need no VAE, before one is downloaded. It never runs."""

    def read_headers(self) -> None:
        arguments, settings, item = self._job.arguments, self._job.settings, self._item
        options = _with_possible_audio(settings.output, settings.audio)
        paths = item.windows or [item.source]
        self._checks = DecodeChecks(paths, item.output, options, tensor=arguments.tensor, grid=arguments.grid)
        if (output := self._checks.output) is not None:
            self.result = Result(paths, output.names, output.other_names, cost=1)

    def check_outputs(self) -> None:
        super().check_outputs()
        for output in self.missing_outputs:
            self._checks.check_folder(output, makes_folders=self._job.makes_folders)

    def check_values(self) -> None:
        settings = self._job.settings
        if settings.frames is None:
            self._checks.check_values(unnormalized=self._job.arguments.unnormalized)


class DecodeTask(_LatentsTask):
    """Decode of a latent file or a film."""

    plan: DecodePlan
    _copied: Set[tuple[str, str]] = frozenset()  # entries of the latent file that go into an output

    def read_headers(self) -> None:
        job, item, arguments = self._job, self._item, self._job.arguments
        assert isinstance(job.vae, VideoVAE)
        latents: ClipInput | FilmInput
        if job.is_film:
            fps, carry, blend = arguments.fps, arguments.carry, arguments.blend
            latents = FilmInput(job.reader, item.windows, fps=fps, carry=carry, blend=blend)
        else:
            latents = ClipInput(job.reader, job.reader.open(item.source))
        self._decode = decode = job.vae.decide(latents, item.output or _UNNAMED, job.decided)
        shape = decode.latents.shape
        assert decode.plan is not None and shape is not None
        self.plan = decode.plan
        outputs, extras = (decode.outputs, decode.output.other_names) if item.output else ([], {})
        self.result = Result(decode.inputs, outputs, extras, decode.num_frames, cost=prod(shape))

    def check_outputs(self) -> None:
        """Find out whether to skip the item, and raise the errors of writing before the weights are read."""
        if self.result.is_skipped or not self._item.output:
            return
        arguments = self._job.arguments
        if arguments.skip_existing:
            self._leave_out_existing()
        decode = self._decode
        is_skipped = arguments.skip_existing and (not decode.files or all_exist(decode.files))
        self.result = replace(self.result, is_skipped=is_skipped)
        if not is_skipped:
            entries = decode.latents.info.workflow if decode.latents.info and arguments.workflow else {}
            overwrite = self._job.may_replace(decode.files)
            makes_folders = self._job.makes_folders
            self._copied = decode.check_outputs(entries=entries, makes_folders=makes_folders, overwrite=overwrite)

    def _leave_out_existing(self) -> None:
        """Leave out files that exist, and videos that have no others."""
        files = self._decode.output.files
        for index in self._decode.videos:
            files[index] = {name: file for name, file in files[index].items() if not all_exist([name])}
        self._decode = replace(self._decode, videos=[index for index in self._decode.videos if files[index]])
        self.result = replace(self.result, num_frames=self._decode.num_frames)

    def check_values(self) -> None:
        self._decode.check_values()

    def networks(self) -> dict[str, dict[str, str]]:
        audio = self._decode.audio
        return super().networks() | ({} if audio is None else {"audio_vae": audio.vae.source.networks["decoder"]})

    def run(self, bar: FrameBar) -> tuple[dict[str, Any], str]:
        report = self._decode.run(bar)
        output = self._decode.output
        self.result = replace(self.result, outputs=output.names, extras=output.other_names)
        return self._report(self._describe(report), report.as_dict())

    def _describe(self, report: DecodeReport) -> str:
        """Describe the decode in a line."""
        plan, output = self.plan, self._decode.output
        fps, rate, batch = float(report.fps), report.sample_rate, len(output.names)
        size = format_size(report.width, report.height)
        videos = f"{batch} videos of " if batch > 1 else ""
        summary = f"{videos}{format_count(plan.num_frames, 'frame')} of {size}, "
        summary += f"{format_seconds(plan.num_frames / fps)} at {fps:.6g} fps"
        if output.are_stills:
            summary = f"{batch} stills of {size}"
        padding = ""
        if self._decode.padding:
            count = format_count(self._decode.padding, "frame")
            padding = f"without {count} of padding (--all-frames decodes them), "
        copied_keys = " and ".join(sorted(key for key, _ in self._copied))
        return (
            f"{summary}, {padding}{f'audio at {rate} Hz, ' if rate else ''}"
            f"{f'{describe_keyframes(plan.keyframes)}, ' if plan.keyframes else ''}{describe_blending(plan)}"
            f"in {format_seconds(report.seconds)} (first frame after {format_seconds(report.first_frame_seconds)})"
            f"{copied_keys and f', with the {copied_keys} of ComfyUI (--no-workflow leaves them out)'}"
            f"{'; every frame is one color' if report.one_color else ''}"
        )
