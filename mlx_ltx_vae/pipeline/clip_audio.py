"""Audio of a decode: the audio latents of its input, their networks and their plan."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from ..checkpoint import VAESource
from ..errors import CheckpointError, LatentsError, excerpt, option, warn
from ..files import FileState
from ..latents import AudioLatentsFile, LatentsFile, open_audio_latents
from ..model_table import Kind, list_names, models_for
from ..networks.base import AudioConfig, Statistics
from ..options import PlanOptions
from ..planning.film import FilmPart, audio_parts
from ..planning.plan import DecodePlan, EncodePlan, Mode, Plan
from ..shapes import Interval
from ..units import DEFAULT_FPS, format_count
from ..video.audio import Audio
from .audio import AudioStream, every_chunk, join_audio


class ClipAudioVAE(Protocol):
    """What decodes and encodes to files use of an `AudioVAE`."""

    config: AudioConfig
    sample_rate: int
    source: VAESource

    @property
    def statistics(self) -> Statistics | None: ...

    def plan_with(self, latents: int, options: PlanOptions) -> DecodePlan: ...

    def plan_encode_with(self, seconds: float, options: PlanOptions) -> EncodePlan: ...

    def stream(self, latents: mx.array, plan: DecodePlan) -> AudioStream: ...

    def encode(self, waveform: Iterable[np.ndarray], sample_rate: int, plan: EncodePlan) -> mx.array: ...


@dataclass(frozen=True)
class AudioSettings:
    """Settings of the audio of a decode.

    Attributes:
        find_vae: opens the audio VAE, or returns `None` if there is none. It is called once.
        latents: a file of audio latents. `None` means those in the latent file.
        tensor: the name of their tensor. `None` means a usual name.
        unnormalized: as for `load_audio_latents`.
        is_required: whether missing audio is an error.
    """

    find_vae: Callable[[], ClipAudioVAE | None]
    latents: str | None = None
    tensor: str | None = None
    unnormalized: bool | None = None
    is_required: bool = False

    @cached_property
    def vae(self) -> ClipAudioVAE | None:
        return self.find_vae()


@dataclass(frozen=True)
class ClipAudio:
    """Audio latents that belong to a latent file, or to the windows of a film.

    Attributes:
        batch: the number of videos.
        lengths: of the latents of each window; a clip is one window.
        parts: of the audio that each window makes.
        samples: the first sample to decode, and one more than the last; `None` means all.
        open_window: opens the audio latents of a window.
    """

    settings: AudioSettings
    vae: ClipAudioVAE
    batch: int
    lengths: Sequence[int]
    parts: Sequence[FilmPart]
    samples: tuple[int, int] | None
    open_window: Callable[[int], AudioLatentsFile]

    @property
    def files(self) -> list[str | os.PathLike]:
        """Files that are read for the audio, except the latent file of the video."""
        latents = self.settings.latents
        return [*([latents] if latents else []), *self.vae.source.files]

    @property
    def num_samples(self) -> int:
        """Number of samples of the audio of one video."""
        return self.parts[-1].frames.end

    @property
    def plans(self) -> list[Plan]:
        """Possible plans of the window with the most audio, the fastest first. Without audio, there are none."""
        ranges = [(part.window_range(self.samples), number) for number, part in enumerate(self.parts)]
        decoded = [(samples, number) for samples, number in ranges if samples is not None]
        if not decoded:
            return []
        samples, number = max(decoded, key=lambda window: window[0][1] - window[0][0])
        return every_chunk(lambda options: self._plan(number, samples, options))

    def plan(self, options: PlanOptions) -> DecodePlan:
        """Plan the audio of one video, or of the longest window of a film."""
        longest = max(range(len(self.lengths)), key=lambda number: self.lengths[number])
        return self._plan(longest, None, options)

    def check_values(self) -> None:
        """Raise the errors of reading all latents that are decoded."""
        for number, part in enumerate(self.parts):
            if part.window_range(self.samples):
                self._read(number)

    def stream(self, index: int, plan: Plan | None) -> Audio:
        """Return the audio of the video with this index. Without a plan, it is silent."""
        if not isinstance(plan, DecodePlan):
            return ()
        chunk = plan.chunk if plan.mode is Mode.EXACT else None

        def decode(number: int, samples: tuple[int, int]) -> AudioStream:
            latents = self._read(number)[index : index + 1]
            return self.vae.stream(latents, self._plan(number, samples, PlanOptions(chunk=chunk)))

        parts = ((part, partial(decode, number)) for number, part in enumerate(self.parts))
        first, end = self.samples or (0, self.num_samples)
        return join_audio(parts, self.vae.sample_rate, samples=self.samples, num_samples=end - first)

    def _plan(self, number: int, samples: tuple[int, int] | None, options: PlanOptions) -> DecodePlan:
        length = self.lengths[number]
        if samples == (0, self.vae.config.num_samples(length)):
            samples = None
        return self.vae.plan_with(length, replace(options, frames=samples))

    def _read(self, number: int) -> mx.array:
        statistics: Any = self.vae.statistics
        return self.open_window(number).read(statistics=statistics, unnormalized=self.settings.unnormalized)


def clip_audio(
    settings: AudioSettings,
    vae: ClipAudioVAE,
    file: AudioLatentsFile,
    frames: tuple[int, int] | None = None,
    fps: Fraction = DEFAULT_FPS,
) -> ClipAudio:
    """Return the audio of a clip, or of some frames of it."""
    num_samples = vae.config.num_samples(file.length)
    parts = [FilmPart(0, Interval(0, num_samples), Interval(0, 0))]
    samples = None if frames is None else to_samples(frames, vae.config.sample_rate, fps, num_samples)
    return ClipAudio(settings, vae, file.batch, [file.length], parts, samples, lambda _: file)


def film_audio(
    settings: AudioSettings,
    files: Sequence[Callable[[], LatentsFile]],
    ends: Sequence[int],
    frames: tuple[int, int] | None,
    fps: Fraction,
    generations: Sequence[str] = (),
) -> ClipAudio | None:
    """Return the audio of a film, or `None` as `find_audio`. `files` open its windows, which end before `ends`.

    If the first window has audio, and another has none, a `LatentsError` names it.
    """
    first = find_audio(settings, files[0](), generations)
    if first is None:
        return None
    vae = settings.vae
    assert vae is not None

    states: dict[int, FileState] = {}  # of each window when it was first opened

    def open_window(number: int) -> AudioLatentsFile:
        clip = files[number]()
        clip.file.check_state(states.setdefault(number, clip.file.state))
        if (file := find_audio(settings, clip)) is None:
            raise LatentsError(f"{clip.info.source}: has no audio latents, and the first window has; give all or none.")
        return file

    lengths = [open_window(number).length for number in range(len(files))]
    config = vae.config
    parts = list(audio_parts(ends, map(config.num_samples, lengths), config.sample_rate, fps))
    samples = None
    if frames is not None:
        samples = to_samples(frames, config.sample_rate, fps, parts[-1].frames.end)
    return ClipAudio(settings, vae, first.batch, lengths, parts, samples, open_window)


def to_samples(frames: tuple[int, int], sample_rate: int, fps: Fraction, num_samples: int) -> tuple[int, int]:
    """Return the first sample of some frames and one more than the last, in audio with `num_samples`."""
    start, end = (min(num_samples, round(frame * sample_rate / fps)) for frame in frames)
    return start, end


def find_audio(settings: AudioSettings, clip: LatentsFile, generations: Sequence[str] = ()) -> AudioLatentsFile | None:
    """Return the audio latents that belong to the videos of a latent file, or `None` if there is none to decode.

    If audio is not required, audio latents that cannot be decoded are a warning. Otherwise they are an error, and also
    missing ones. They name the audio VAE that fits, by the generation that the file states, or else by the first of
    `generations`, whose latents the video VAE takes.
    """
    source = clip.info.source
    try:
        audio_path, name = settings.latents, settings.tensor
        file = (
            clip.find_audio(name) if audio_path is None else open_audio_latents(audio_path, is_alone=True, tensor=name)
        )
    except LatentsError as error:
        if settings.is_required:
            raise
        warn(f"{str(error).rstrip('.')}; the video has no audio.")
        return None
    path = audio_path or source
    if file is None:
        if settings.is_required:
            raise no_audio_error(path, audio_path)
        return None
    if settings.vae is None:
        model = next(iter(models_for(clip.info.space.generation or next(iter(generations), None), Kind.AUDIO)), None)
        if settings.is_required:
            name = "AUDIO" if model is None else f"{model.name} ({model.terms})"
            raise CheckpointError(f"{path}: these audio latents need an audio VAE; name it with --audio-model {name}.")
        name = f"AUDIO ({list_names([Kind.AUDIO])}, or a file)" if model is None else f"{model.name} ({model.terms})"
        text = f"has audio latents ({excerpt(file.tensor)}) too; --audio-model {name} decodes them into the video."
        warn(f"{source}: {text}")
        return None
    if file.batch != clip.shape.batch:
        videos = format_count(file.batch, "video")
        raise LatentsError(
            f"{path}: has the audio of {videos}, and there are {clip.shape.batch}; give the audio of each."
        )
    return file


def no_audio_error(path: str | os.PathLike, audio_path: str | None) -> LatentsError:
    """Return the error for a file without audio latents, which is `audio_path`, or the file of the video."""
    alternative = "" if audio_path else ", or their file with --audio-latents"
    way = option(
        "pass audio_vae.stream of load_audio_latents, whose tensor= names them",
        f"name them with --audio-tensor{alternative}",
    )
    return LatentsError(f"{path}: has no audio latents by a usual name; {way}.")
