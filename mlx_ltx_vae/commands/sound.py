"""The sound of a decode: which latents, which networks, and their plan."""

import argparse
import json
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import mlx.core as mx
import numpy as np

from ..audio_vae import AudioVAE, checkpoint_clip, find_sound_decoder
from ..backend.device import this_machine
from ..backend.mlx_utils import DtypeName
from ..checkpoint import Checkpoint
from ..distributed import Work, join_ranks
from ..errors import CheckpointError, ItemsError, LatentsError, excerpt
from ..files import check_absent
from ..latents import LatentsFile
from ..latents.audio import AudioLatentsFile, open_audio_latents
from ..pipeline.audio_run import AudioStream
from ..planning.audio_plan import AudioPlan, plan_audio
from ..tiling.intervals import Interval
from ..units import format_bytes, format_count, format_seconds
from ..video.sound import Sound
from ..video.wav import write_wav
from .cli import print_report
from .items import all_exist, are_many, check_not_inputs, list_files, name_items, name_outputs, read_inputs
from .job import describe_networks, name_all, one_or_all


@dataclass(frozen=True)
class SoundSettings:
    """What is wanted of the sound. `audio_model` and `audio_latents` are None for what is in the files at hand."""

    output: str | None
    is_silent: bool  # no sound is decoded
    audio_model: str | None
    audio_latents: str | None
    unnormalized: bool | None
    dtype: DtypeName | None

    @property
    def is_wanted(self) -> bool:
        """Whether it is an error if there is none."""
        return self.audio_model is not None or self.audio_latents is not None

    @property
    def is_alone(self) -> bool:
        """Whether the output is the sound without the pictures."""
        return not self.is_silent and (self.output or "").lower().endswith(".wav")


def check_sound_options(settings: SoundSettings, arguments: argparse.Namespace) -> None:
    """Refuse arguments of sound that do not go together."""
    if are_many(arguments.latents):
        for option in ("audio", "audio_latents"):
            if getattr(arguments, option):
                name = f"--{option.replace('_', '-')}"
                raise ItemsError(f"{name} goes with one input; add it to each video on its own")
        if settings.is_alone:
            raise ItemsError("a .wav file is the sound of one input; decode each on its own")
    if settings.is_wanted and arguments.audio:
        raise ItemsError("--audio is the sound of the video; leave out --audio-model and --audio-latents")


class SoundModel:
    """The audio networks of a job, opened and loaded once they are needed. `vae` is the checkpoint of the pictures."""

    def __init__(self, settings: SoundSettings, vae: str | None) -> None:
        self.settings = settings
        self._vae = vae

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        """That of the sound; None if none is given and that of the pictures has no audio networks."""
        return find_sound_decoder(self.settings.audio_model, self._vae)

    @cached_property
    def loaded(self) -> AudioVAE:
        assert self.checkpoint is not None
        return AudioVAE.from_pretrained(self.checkpoint, dtype=self.settings.dtype, encoder=False)


@dataclass(frozen=True)
class FoundSound:
    """The audio latents that go with a latent file, and the plan of one of its videos."""

    model: SoundModel
    file: AudioLatentsFile
    plan: AudioPlan

    @property
    def files(self) -> list[str | os.PathLike]:
        """All that are read for it, but that of the clip."""
        latents, checkpoint = self.model.settings.audio_latents, self.model.checkpoint
        return [*([latents] if latents else []), *(checkpoint.files if checkpoint else [])]

    @property
    def used(self) -> dict[str, str]:
        """What reports say of its networks."""
        assert self.model.checkpoint is not None
        return self.model.checkpoint.used("decoder")

    def stream(self, index: int, frames: Interval | None = None, fps: Fraction | None = None) -> Sound:
        """The sound of the video with this index, or of some of its frames."""
        latents = self.file.read()[index : index + 1]
        unnormalized = self.model.settings.unnormalized or self.file.normalized is False
        stream = self.model.loaded.stream(latents, self.plan, unnormalized=unnormalized)
        if frames is None or fps is None:
            return stream
        start, end = (round(frame * self.plan.sample_rate / fps) for frame in (frames.start, frames.end))
        return cut_sound(stream, start, end - start)


def find_sound(model: SoundModel, clip: LatentsFile) -> FoundSound | None:
    """The sound that belongs to the videos of a latent file; None if there is none and none is asked for.

    Audio latents in the file for which nobody asks are a warning, if they cannot be decoded.
    """
    settings, source = model.settings, clip.info.source
    try:
        given = settings.audio_latents
        file = clip.find_audio() if given is None else open_audio_latents(given, is_alone=True)
    except LatentsError as error:
        if settings.is_wanted:
            raise
        warnings.warn(f"{str(error).rstrip('.')}; the video has no sound.", stacklevel=2)
        return None
    path = given or source
    if file is None and settings.is_wanted:
        raise LatentsError(f"{path}: has no audio latents; leave out --audio-model, or name them with --audio-latents.")
    if file is None:
        return None
    if model.checkpoint is None and given is not None:
        raise CheckpointError(f"{path}: these audio latents need an audio VAE; name it with --audio-model.")
    if model.checkpoint is None:
        text = f"has audio latents ({excerpt(file.tensor)}) too; --audio-model AUDIO decodes them into the video."
        warnings.warn(f"{source}: {text}", stacklevel=2)
        return None
    if file.batch != clip.shape.batch:
        found, expected = format_count(file.batch, "video"), clip.shape.batch
        raise LatentsError(f"{path}: has the sound of {found}, and there are {expected}; give that of each.")
    return _plan_sound(model, file)


def find_sound_alone(model: SoundModel, source: str, memory_budget: str | int | None) -> FoundSound:
    """The sound of a latent file, which may have nothing else."""
    settings = model.settings
    path = settings.audio_latents or source
    file = open_audio_latents(path, is_alone=True)
    if file is None:
        raise LatentsError(f"{path}: has no audio latents; name the file that has them with --audio-latents.")
    if model.checkpoint is None:
        raise CheckpointError(f"{path}: these audio latents need an audio VAE; name it with --audio-model.")
    return _plan_sound(model, file, memory_budget)


def _plan_sound(model: SoundModel, file: AudioLatentsFile, memory_budget: str | int | None = None) -> FoundSound:
    assert model.checkpoint is not None
    clip = checkpoint_clip(model.checkpoint, model.settings.dtype, 1, file.length)
    return FoundSound(model, file, plan_audio(clip, this_machine(mx.float32), memory_budget=memory_budget))


def cut_sound(stream: AudioStream, start: int, count: int) -> Iterator[np.ndarray]:
    """`count` samples of a stream from `start` on, (2, n) each, in place of all. Closes the stream."""
    with stream:
        for chunk in stream:
            samples = np.array(chunk.waveform)[0]
            first = max(0, start - chunk.start)
            part = samples[:, first : max(first, start + count - chunk.start)]
            if part.shape[1]:
                yield part
            if chunk.start + samples.shape[1] >= start + count:
                return


def decode_to_wav(arguments: argparse.Namespace, settings: SoundSettings) -> None:
    """Decode the sound of one latent file, without the pictures, and report. Of several ranks, the first does."""
    if join_ranks(Work.OFF.value, arguments.rank_timeout) is None:
        return
    inputs = read_inputs(arguments.latents, with_sizes=False)
    (item,) = name_items(inputs, arguments.output, is_dry_run=arguments.dry_run)
    sound = find_sound_alone(SoundModel(settings, arguments.model), item.source, arguments.memory_budget)
    item.outputs = name_outputs(item.output, sound.file.batch) if item.output else []
    item.inputs = sound.files
    check_not_inputs([item], list_files(arguments.latents))
    item.is_skipped = arguments.skip_existing and all_exist(item.outputs)
    for output in item.outputs if arguments.no_overwrite else ():
        check_absent(output)
    if item.is_skipped:
        item.text = str(item)
    elif arguments.dry_run:
        item.values = {"plan": sound.plan.as_dict(), "audio_vae": sound.used}
        item.text = f"{sound.plan}\nVAE      {describe_networks({'audio_vae': sound.used})}"
    else:
        item.values, item.text = _write_sounds(sound, item.outputs, overwrite=not arguments.no_overwrite)
    if arguments.json:
        print_report(json.dumps(item.values or item.as_dict()))
    elif not arguments.quiet or arguments.dry_run:
        print_report(item.text)


def _write_sounds(sound: FoundSound, outputs: Sequence[str], *, overwrite: bool) -> tuple[dict[str, Any], str]:
    """Write a .wav file of each item of a batch; the report, JSON-serializable and as text."""
    start = time.perf_counter()
    mx.reset_peak_memory()
    samples = [write_wav(output, sound.stream(i), overwrite=overwrite) for i, output in enumerate(outputs)][0]
    seconds, peak, rate = time.perf_counter() - start, mx.get_peak_memory(), sound.plan.sample_rate
    values: dict[str, Any] = {"samples": samples, "sample_rate": rate, "seconds": seconds, "peak_memory_bytes": peak}
    values |= {"plan": sound.plan.as_dict(), "audio_vae": sound.used, "output": one_or_all(outputs)}
    length = f"{format_seconds(samples / rate)} of sound at {rate} Hz"
    text = f"{name_all(outputs)}: {length}, in {format_seconds(seconds)}; peak {format_bytes(peak)}"
    return values, f"{text}; {describe_networks({'audio_vae': sound.used})}"
