"""The sound of a decode: which latents, which networks, and their plan."""

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
from ..backend.machine import Machine, Work
from ..backend.mlx_utils import DtypeName
from ..checkpoint import Checkpoint
from ..errors import CheckpointError, ItemsError, LatentsError, excerpt, warn
from ..files import FileState
from ..latents import AudioLatentsFile, LatentsFile, open_audio_latents, open_latents
from ..models.base import SoundConfig, Statistics
from ..pipeline.audio import AudioStream, every_chunk
from ..pipeline.joined import join_sound
from ..pipeline.progress import FrameBar
from ..planning.film import Part, sound_parts
from ..planning.plan import DecodePlan, Mode, Plan
from ..shapes import DEFAULT_SCALE
from ..units import DEFAULT_FPS, format_count, format_seconds
from ..video.audio import Sound, write_wav
from .jobs import Item, Job, Task, agree_on_film, name_outputs


@dataclass(frozen=True)
class SoundSettings:
    """Settings of the sound. `audio_model` and `audio_latents` are None to use the files at hand."""

    model: str | None  # the checkpoint of the pictures
    audio_model: str | None
    audio_latents: str | None
    audio_tensor: str | None  # their name; None for one of the usual ones
    unnormalized: bool | None
    dtype: DtypeName | None
    memory_budget: str | int | None  # of sound alone

    @property
    def is_wanted(self) -> bool:
        """True if missing sound is an error."""
        return (self.audio_model, self.audio_latents, self.audio_tensor) != (None, None, None)

    def check(self, audio: object, *, is_alone: bool, is_many: bool) -> None:
        """Refuse what does not go with the `audio` of a file, the sound as the only output, or many inputs."""
        for name, value in (("audio", audio), ("audio-latents", self.audio_latents)):
            if value and is_many:
                raise ItemsError(f"--{name} goes with one input; add it to each video on its own")
        if is_alone and is_many:
            raise ItemsError("a .wav file is the sound of one input; decode each on its own")
        if self.is_wanted and audio:
            raise ItemsError("--audio is the sound of the video; leave out --audio-model and other options of latents")

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        """The audio checkpoint, opened once; None if none is given and the video checkpoint has no audio networks."""
        return find_sound_decoder(self.audio_model, self.model)

    def open(self) -> Checkpoint:
        """`checkpoint`, except that a missing one is an error."""
        if self.checkpoint is None:
            raise CheckpointError(f"{self.model}: audio latents need an audio VAE; name it with --audio-model.")
        return self.checkpoint

    @property
    def config(self) -> SoundConfig:
        return cast(SoundConfig, self.open().config)

    @cached_property
    def statistics(self) -> Statistics | None:
        return self.open().read_statistics()

    @cached_property
    def loaded(self) -> AudioVAE:
        """The networks, loaded once."""
        return AudioVAE.from_pretrained(self.open(), dtype=self.dtype, encoder=False)


def plan_latents(settings: SoundSettings, length: int, machine: Machine, **options: Any) -> DecodePlan:
    """Plan the sound of so long audio latents, with the options of `plan_decode`."""
    machine = replace(machine, itemsize=mx.float32.size)
    return plan_checkpoint(settings.open(), length, machine, dtype=settings.dtype, **options)


@dataclass(frozen=True)
class FoundSound:
    """The audio latents that go with a latent file."""

    settings: SoundSettings
    file: AudioLatentsFile

    @property
    def files(self) -> list[str | os.PathLike]:
        """All files that are read for it, except the clip's."""
        latents = self.settings.audio_latents
        return [*([latents] if latents else []), *self.settings.open().files]

    @property
    def used(self) -> dict[str, str]:
        """Report of its networks."""
        return self.settings.open().used("decoder")

    @property
    def sample_rate(self) -> int:
        return self.settings.config.sample_rate

    @property
    def num_samples(self) -> int:
        """The number of samples of each video."""
        return self.settings.config.num_samples(self.file.length)

    def plan(self, machine: Machine, **options: Any) -> DecodePlan:
        """Plan the sound of one video, with the options of `plan_decode`."""
        return plan_latents(self.settings, self.file.length, machine, **options)

    def plans(self, machine: Machine, frames: tuple[int, int] | None, fps: Fraction) -> list[Plan]:
        """The possible ones, the fastest first, for some frames of the video; none if these have no sound."""
        samples = None
        if frames is not None:
            samples = start, end = to_samples(frames, self.sample_rate, fps, self.num_samples)
            if start == end:
                return []
        return every_chunk(partial(self.plan, machine, frames=samples))

    def check_values(self) -> None:
        """Raise the errors of reading all latents that are decoded."""
        self._check(self.file)

    def _check(self, file: AudioLatentsFile) -> None:
        file.read(statistics=self.settings.statistics, unnormalized=self.settings.unnormalized)

    def stream(self, index: int, plan: Plan | None) -> Sound:
        """The sound of the video with this index, as planned; silence without a plan."""
        if not isinstance(plan, DecodePlan):
            return ()
        vae = self.settings.loaded
        latents = self.file.read(statistics=(vae.mean, vae.std), unnormalized=self.settings.unnormalized)
        return vae.stream(latents[index : index + 1], plan)


@dataclass(frozen=True)
class FilmSound(FoundSound):
    """The audio latents of the windows of a film; `file` belongs to the first window."""

    lengths: Sequence[int]  # of the latents of each window
    parts: Sequence[Part]  # of each window
    samples: tuple[int, int] | None  # of the film; None for all
    open_window: Callable[[int], AudioLatentsFile]
    machine: Machine

    @property
    def num_samples(self) -> int:
        return self.parts[-1].frames.end

    def plan(self, machine: Machine, **options: Any) -> DecodePlan:
        return plan_latents(self.settings, max(self.lengths), machine, **options)

    def plans(self, machine: Machine, frames: tuple[int, int] | None, fps: Fraction) -> list[Plan]:
        wanted = [(own, number) for number, part in enumerate(self.parts) if (own := part.wanted(self.samples))]
        if not wanted:
            return []
        own, number = max(wanted, key=lambda each: each[0][1] - each[0][0])
        return every_chunk(partial(self._plan_window, number, own))

    def check_values(self) -> None:
        for number, part in enumerate(self.parts):
            if part.wanted(self.samples):
                self._check(self.open_window(number))

    def stream(self, index: int, plan: Plan | None) -> Sound:
        if not isinstance(plan, DecodePlan):
            return ()
        vae, chunk = self.settings.loaded, plan.chunk if plan.mode is Mode.EXACT else None

        def decode(number: int, samples: tuple[int, int]) -> AudioStream:
            file = self.open_window(number)
            latents = file.read(statistics=(vae.mean, vae.std), unnormalized=self.settings.unnormalized)
            return vae.stream(latents[index : index + 1], self._plan_window(number, samples, chunk=chunk))

        parts = ((part, partial(decode, number)) for number, part in enumerate(self.parts))
        first, end = self.samples or (0, self.num_samples)
        return join_sound(parts, self.sample_rate, samples=self.samples, num_samples=end - first)

    def _plan_window(self, number: int, samples: tuple[int, int], *, chunk: int | None = None) -> DecodePlan:
        return plan_latents(self.settings, self.lengths[number], self.machine, frames=samples, chunk=chunk)


def find_film_sound(
    settings: SoundSettings,
    files: Sequence[Callable[[], LatentsFile]],
    ends: Sequence[int],
    *,
    frames: tuple[int, int] | None,
    fps: Fraction,
    machine: Machine,
) -> FilmSound | None:
    """The sound of a film, as `find_sound`. `files` open its windows, whose last frames are before `ends`.

    A `LatentsError` names a window without sound, if the first one has sound.
    """
    first = find_sound(settings, files[0]())
    if first is None:
        return None

    states: dict[int, FileState] = {}  # of the windows when they were first opened

    def open_window(number: int) -> AudioLatentsFile:
        clip = files[number]()
        clip.file.check_state(states.setdefault(number, clip.file.state))
        if (found := find_sound(settings, clip)) is None:
            raise LatentsError(f"{clip.info.source}: has no audio latents, and the first window has; give all or none.")
        return found.file

    lengths = [open_window(number).length for number in range(len(files))]
    config = settings.config
    parts = list(sound_parts(ends, map(config.num_samples, lengths), config.sample_rate, fps))
    samples = None
    if frames is not None:
        samples = to_samples(frames, config.sample_rate, fps, parts[-1].frames.end)
    return FilmSound(settings, first.file, lengths, parts, samples, open_window, machine)


def to_samples(frames: tuple[int, int], sample_rate: int, fps: Fraction, most: int) -> tuple[int, int]:
    """The samples of some frames, the first and one more than the last, of sound with `most` samples."""
    start, end = (min(most, round(frame * sample_rate / fps)) for frame in frames)
    return start, end


def find_sound(settings: SoundSettings, clip: LatentsFile) -> FoundSound | None:
    """The sound that belongs to the videos of a latent file; None if there is none and it is not asked for.

    Audio latents in the file for which nobody asks are a warning, if they cannot be decoded.
    """
    source = clip.info.source
    try:
        given, name = settings.audio_latents, settings.audio_tensor
        file = clip.find_audio(name) if given is None else open_audio_latents(given, is_alone=True, tensor=name)
    except LatentsError as error:
        if settings.is_wanted:
            raise
        warn(f"{str(error).rstrip('.')}; the video has no sound.")
        return None
    path = given or source
    if file is None:
        if settings.is_wanted:
            raise _no_sound(path, given)
        return None
    if settings.checkpoint is None:
        if settings.is_wanted:
            raise CheckpointError(f"{path}: these audio latents need an audio VAE; name it with --audio-model.")
        text = f"has audio latents ({excerpt(file.tensor)}) too; --audio-model AUDIO decodes them into the video."
        warn(f"{source}: {text}")
        return None
    if file.batch != clip.shape.batch:
        found, expected = format_count(file.batch, "video"), clip.shape.batch
        raise LatentsError(f"{path}: has the sound of {found}, and there are {expected}; give the sound of each.")
    return FoundSound(settings, file)


def _no_sound(path: str | os.PathLike, given: str | None) -> LatentsError:
    """The error for a file without audio latents: `given` as --audio-latents, or the file of the video."""
    where = "" if given else ", or their file with --audio-latents"
    return LatentsError(f"{path}: has no audio latents by a usual name; name them with --audio-tensor{where}.")


class SoundTask(Task):
    """The sound of a latent file, without the pictures, and each item of a batch in a .wav file of its own."""

    plan: DecodePlan

    def __init__(self, job: Job, item: Item, settings: SoundSettings) -> None:
        super().__init__(job, item)
        self._sound = self._find(settings)
        self.plan = self._sound.plan(job.machine, memory_budget=settings.memory_budget)
        item.inputs = [*self._sound.files, *item.windows]
        self._name_outputs(name_outputs(item.output, self._sound.file.batch) if item.output else [])

    def _find(self, settings: SoundSettings) -> FoundSound:
        path = settings.audio_latents or self._item.source
        file = open_audio_latents(path, is_alone=True, tensor=settings.audio_tensor)
        if file is None:
            raise _no_sound(path, settings.audio_latents)
        return FoundSound(settings, file)

    def networks(self) -> dict[str, dict[str, str]]:
        return {"audio_vae": self._sound.used}

    def check_values(self) -> None:
        self._sound.check_values()

    def run(self, bar: FrameBar) -> None:
        bar.enter("decoding")
        start, overwrite, samples = time.perf_counter(), self._job.overwrite is not False, 0
        for index, output in enumerate(self._item.outputs):
            samples, moved = write_wav(output, self._sound.stream(index, self.plan), overwrite=overwrite)
            self._item.rename({} if moved is None else {output: str(moved)})
        seconds, rate = time.perf_counter() - start, self._sound.sample_rate
        length = f"{format_seconds(samples / rate)} of sound at {rate} Hz"
        text = f"{length}, in {format_seconds(seconds)}"
        self._report(Work.OFF, 0, text, samples=samples, sample_rate=rate, seconds=seconds)


class FilmSoundTask(SoundTask):
    """The sound of a film, without the pictures. `fps` and `carry` are None for what its windows state."""

    def __init__(
        self, job: Job, item: Item, settings: SoundSettings, *, fps: Fraction | None, carry: int | None
    ) -> None:
        self._fps, self._carry = fps, carry
        super().__init__(job, item, settings)

    def _find(self, settings: SoundSettings) -> FoundSound:
        opened = [partial(open_latents, path) for path in self._item.windows]
        windows = [(file.info, DEFAULT_SCALE.video_grid(file.shape.grid)[0]) for file in (each() for each in opened)]
        fps, carry = agree_on_film([info for info, _ in windows], self._fps, self._carry, DEFAULT_SCALE)
        for info, count in windows:
            if carry >= count:
                raise LatentsError(f"{info.source}: has {count} frames, and windows share {carry}; correct --carry.")
        ends = list(accumulate((count for _, count in windows), lambda end, count: end + count - carry))
        sound = find_film_sound(settings, opened, ends, frames=None, fps=fps or DEFAULT_FPS, machine=self._job.machine)
        assert sound is not None, "a missing sound is an error"
        return sound
