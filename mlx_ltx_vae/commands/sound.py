"""Sound of a decode: its latents, networks and plan."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, cast

import mlx.core as mx

from ..audio_vae import AudioVAE, find_sound_decoder, plan_checkpoint
from ..backend.machine import Machine
from ..backend.mlx_utils import DtypeName
from ..checkpoint import Checkpoint
from ..errors import CheckpointError, ItemsError, LatentsError, excerpt, warn
from ..files import FileState
from ..latents import AudioLatentsFile, LatentsFile, open_audio_latents, open_latents
from ..model_table import Kind, list_names, models_for
from ..models.base import SoundConfig, Statistics
from ..options import PlanOptions
from ..pipeline.audio import AudioStream, every_chunk, join_sound
from ..pipeline.output import name_outputs
from ..pipeline.progress import FrameBar
from ..planning.film import Part, sound_parts
from ..planning.plan import DecodePlan, Mode, Plan
from ..shapes import DEFAULT_SCALE, Interval
from ..units import DEFAULT_FPS, format_count, format_seconds
from ..video.audio import Sound, write_wav
from .inputs import agree_on_film
from .items import Item, Result
from .jobs import Job, Task


@dataclass(frozen=True)
class SoundSettings:
    """Settings of the sound. If `audio_model` or `audio_latents` is `None`, the files of the video are used."""

    model: str | None  # the checkpoint of the pictures
    audio_model: str | None
    audio_latents: str | None
    audio_tensor: str | None  # name of the audio latents; None means a usual name
    unnormalized: bool | None
    dtype: DtypeName | None
    memory_budget: str | int | None  # if sound is the only output

    @property
    def is_required(self) -> bool:
        """Flag: missing sound is an error."""
        return (self.audio_model, self.audio_latents, self.audio_tensor) != (None, None, None)

    def check(self, audio: object, *, is_alone: bool, is_many: bool) -> None:
        """Raise an `ItemsError` if an `audio` file, sound as the only output or many inputs contradict them."""
        for name, value in (("audio", audio), ("audio-latents", self.audio_latents)):
            if value and is_many:
                raise ItemsError(f"--{name} goes with one input; add it to each video on its own")
        if is_alone and is_many:
            raise ItemsError("a .wav file is the sound of one input; decode each on its own")
        if self.is_required and audio:
            raise ItemsError("--audio is the sound of the video; leave out --audio-model and other options of latents")

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        """Audio checkpoint, opened once. `None` if no file is named and the video checkpoint has no audio networks."""
        return find_sound_decoder(self.audio_model, self.model)

    def open(self) -> Checkpoint:
        """Return `checkpoint`; raise a `CheckpointError` if it is `None`."""
        if self.checkpoint is None:
            names = f"give --audio-model {list_names([Kind.SOUND])}, or a file"
            raise CheckpointError(f"{self.model}: audio latents need an audio VAE; {names}.")
        return self.checkpoint

    @property
    def config(self) -> SoundConfig:
        return cast(SoundConfig, self.open().config)

    @cached_property
    def statistics(self) -> Statistics | None:
        return self.open().read_statistics()

    @cached_property
    def loaded(self) -> AudioVAE:
        """Audio networks, loaded once."""
        return AudioVAE.from_pretrained(self.open(), dtype=self.dtype, encoder=False)


@dataclass(frozen=True)
class ClipSound:
    """Audio latents that belong to a latent file, or to the windows of a film.

    Attributes:
        batch: the number of videos.
        lengths: of the latents of each window; a clip is one window.
        parts: of the sound that each window makes.
        samples: the first sample to decode, and one more than the last; `None` means all.
        open_window: opens the audio latents of a window.
    """

    settings: SoundSettings
    machine: Machine
    batch: int
    lengths: Sequence[int]
    parts: Sequence[Part]
    samples: tuple[int, int] | None
    open_window: Callable[[int], AudioLatentsFile]

    @property
    def files(self) -> list[str | os.PathLike]:
        """Files that are read for the sound, except the latent file of the video."""
        latents = self.settings.audio_latents
        return [*([latents] if latents else []), *self.settings.open().files]

    @property
    def used(self) -> dict[str, str]:
        """Report of the networks, as in `Checkpoint.used`."""
        return self.settings.open().used("decoder")

    @property
    def sample_rate(self) -> int:
        return self.settings.config.sample_rate

    @property
    def num_samples(self) -> int:
        """Number of samples of the sound of one video."""
        return self.parts[-1].frames.end

    @property
    def plans(self) -> list[Plan]:
        """Possible plans of the window with the most sound, the fastest first. Without sound, there are none."""
        ranges = [(part.window_range(self.samples), number) for number, part in enumerate(self.parts)]
        decoded = [(samples, number) for samples, number in ranges if samples is not None]
        if not decoded:
            return []
        samples, number = max(decoded, key=lambda window: window[0][1] - window[0][0])
        return every_chunk(lambda options: self._plan(number, samples, options))

    def plan(self, options: PlanOptions) -> DecodePlan:
        """Plan the sound of one video, or of the longest window of a film."""
        longest = max(range(len(self.lengths)), key=lambda number: self.lengths[number])
        return self._plan(longest, None, options)

    def check_values(self) -> None:
        """Raise the errors of reading all latents that are decoded."""
        for number, part in enumerate(self.parts):
            if part.window_range(self.samples):
                self._read(number, self.settings.statistics)

    def stream(self, index: int, plan: Plan | None) -> Sound:
        """Return the sound of the video with this index. Without a plan, it is silent."""
        if not isinstance(plan, DecodePlan):
            return ()
        vae, chunk = self.settings.loaded, plan.chunk if plan.mode is Mode.EXACT else None

        def decode(number: int, samples: tuple[int, int]) -> AudioStream:
            latents = self._read(number, (vae.mean, vae.std))
            return vae.stream(latents[index : index + 1], self._plan(number, samples, PlanOptions(chunk=chunk)))

        parts = ((part, partial(decode, number)) for number, part in enumerate(self.parts))
        first, end = self.samples or (0, self.num_samples)
        return join_sound(parts, self.sample_rate, samples=self.samples, num_samples=end - first)

    def _plan(self, number: int, samples: tuple[int, int] | None, options: PlanOptions) -> DecodePlan:
        settings, length = self.settings, self.lengths[number]
        if samples == (0, settings.config.num_samples(length)):
            samples = None
        machine = replace(self.machine, itemsize=mx.float32.size)
        return plan_checkpoint(settings.open(), length, machine, settings.dtype, replace(options, frames=samples))

    def _read(self, number: int, statistics: Any) -> mx.array:
        return self.open_window(number).read(statistics=statistics, unnormalized=self.settings.unnormalized)


def clip_sound(
    settings: SoundSettings,
    file: AudioLatentsFile,
    machine: Machine,
    frames: tuple[int, int] | None = None,
    fps: Fraction = DEFAULT_FPS,
) -> ClipSound:
    """Return the sound of a clip, or of some frames of it."""
    num_samples = settings.config.num_samples(file.length)
    parts = [Part(0, Interval(0, num_samples), Interval(0, 0))]
    samples = None if frames is None else to_samples(frames, settings.config.sample_rate, fps, num_samples)
    return ClipSound(settings, machine, file.batch, [file.length], parts, samples, lambda _: file)


def film_sound(
    settings: SoundSettings,
    machine: Machine,
    files: Sequence[Callable[[], LatentsFile]],
    ends: Sequence[int],
    frames: tuple[int, int] | None,
    fps: Fraction,
    latents: Sequence[str] = (),
) -> ClipSound | None:
    """Return the sound of a film, or `None` as `find_sound`. `files` open its windows, which end before `ends`.

    If the first window has sound, and another has none, a `LatentsError` names it.
    """
    first = find_sound(settings, files[0](), latents)
    if first is None:
        return None

    states: dict[int, FileState] = {}  # of each window when it was first opened

    def open_window(number: int) -> AudioLatentsFile:
        clip = files[number]()
        clip.file.check_state(states.setdefault(number, clip.file.state))
        if (file := find_sound(settings, clip)) is None:
            raise LatentsError(f"{clip.info.source}: has no audio latents, and the first window has; give all or none.")
        return file

    lengths = [open_window(number).length for number in range(len(files))]
    config = settings.config
    parts = list(sound_parts(ends, map(config.num_samples, lengths), config.sample_rate, fps))
    samples = None
    if frames is not None:
        samples = to_samples(frames, config.sample_rate, fps, parts[-1].frames.end)
    return ClipSound(settings, machine, first.batch, lengths, parts, samples, open_window)


def to_samples(frames: tuple[int, int], sample_rate: int, fps: Fraction, num_samples: int) -> tuple[int, int]:
    """Return the first sample of some frames and one more than the last, in sound with `num_samples`."""
    start, end = (min(num_samples, round(frame * sample_rate / fps)) for frame in frames)
    return start, end


def find_sound(settings: SoundSettings, clip: LatentsFile, latents: Sequence[str] = ()) -> AudioLatentsFile | None:
    """Return the audio latents that belong to the videos of a latent file, or `None` if there is none to decode.

    If sound is not required, audio latents that cannot be decoded are a warning. Otherwise they are an error, and also
    missing ones. They name the audio VAE that fits, by the generation that the file states, or else by the first of
    `latents`, the generations whose latents the video VAE takes.
    """
    source = clip.info.source
    try:
        audio_path, name = settings.audio_latents, settings.audio_tensor
        file = (
            clip.find_audio(name) if audio_path is None else open_audio_latents(audio_path, is_alone=True, tensor=name)
        )
    except LatentsError as error:
        if settings.is_required:
            raise
        warn(f"{str(error).rstrip('.')}; the video has no sound.")
        return None
    path = audio_path or source
    if file is None:
        if settings.is_required:
            raise _no_sound(path, audio_path)
        return None
    if settings.checkpoint is None:
        model = next(iter(models_for(clip.info.space.generation or next(iter(latents), None), Kind.SOUND)), None)
        if settings.is_required:
            name = "AUDIO" if model is None else f"{model.name} ({model.terms})"
            raise CheckpointError(f"{path}: these audio latents need an audio VAE; name it with --audio-model {name}.")
        name = f"AUDIO ({list_names([Kind.SOUND])}, or a file)" if model is None else f"{model.name} ({model.terms})"
        text = f"has audio latents ({excerpt(file.tensor)}) too; --audio-model {name} decodes them into the video."
        warn(f"{source}: {text}")
        return None
    if file.batch != clip.shape.batch:
        videos = format_count(file.batch, "video")
        raise LatentsError(
            f"{path}: has the sound of {videos}, and there are {clip.shape.batch}; give the sound of each."
        )
    return file


def _no_sound(path: str | os.PathLike, audio_path: str | None) -> LatentsError:
    """Return the error for a file without audio latents, which is `audio_path`, or the file of the video."""
    alternative = "" if audio_path else ", or their file with --audio-latents"
    return LatentsError(f"{path}: has no audio latents by a usual name; name them with --audio-tensor{alternative}.")


class SoundTask(Task):
    """Decode of the sound of a latent file or a film, without the pictures, to a .wav file for each video."""

    plan: DecodePlan

    def __init__(self, job: Job, item: Item, settings: SoundSettings) -> None:
        super().__init__(job, item)
        self._sound = self._film_sound(settings) if job.is_film else self._clip_sound(settings)
        self.plan = self._sound.plan(PlanOptions(memory_budget=settings.memory_budget))
        outputs = name_outputs(item.output, self._sound.batch) if item.output else []
        self.result = Result([*self._sound.files, *item.windows], outputs)

    def _clip_sound(self, settings: SoundSettings) -> ClipSound:
        path = settings.audio_latents or self._item.source
        file = open_audio_latents(path, is_alone=True, tensor=settings.audio_tensor)
        if file is None:
            raise _no_sound(path, settings.audio_latents)
        return clip_sound(settings, file, self._job.machine)

    def _film_sound(self, settings: SoundSettings) -> ClipSound:
        arguments, openers = self._job.arguments, [partial(open_latents, path) for path in self._item.windows]
        files = (open_file() for open_file in openers)
        windows = [(file.info, DEFAULT_SCALE.video_grid(file.shape.grid)[0]) for file in files]
        fps, carry = agree_on_film([info for info, _ in windows], arguments.fps, arguments.carry, DEFAULT_SCALE)
        for info, count in windows:
            if carry >= count:
                raise LatentsError(f"{info.source}: has {count} frames, and windows share {carry}; correct --carry.")
        ends = list(accumulate((count for _, count in windows), lambda end, count: end + count - carry))
        sound = film_sound(settings, self._job.machine, openers, ends, None, fps or DEFAULT_FPS)
        assert sound is not None, "a missing sound is an error"
        return sound

    def networks(self) -> dict[str, dict[str, str]]:
        return {"audio_vae": self._sound.used}

    def check_values(self) -> None:
        self._sound.check_values()

    def run(self, bar: FrameBar) -> tuple[dict[str, Any], str]:
        bar.enter("decoding")
        start, samples = time.perf_counter(), 0
        missing_outputs = self.missing_outputs
        for index, output in enumerate(self.result.outputs):
            if output not in missing_outputs:
                continue
            samples, new_path = write_wav(output, self._sound.stream(index, self.plan), overwrite=self.overwrite)
            self._rename({} if new_path is None else {output: str(new_path)})
        seconds, rate = time.perf_counter() - start, self._sound.sample_rate
        length = f"{format_seconds(samples / rate)} of sound at {rate} Hz"
        values = {"samples": samples, "sample_rate": rate, "seconds": seconds}
        return self._report(f"{length}, in {format_seconds(seconds)}", values)
