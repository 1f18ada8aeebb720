"""Decodes of audio alone, to a .wav file for each video, that are decided before they run."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import accumulate

from ..errors import LatentsError
from ..latents import AudioLatentsFile, open_audio_latents, open_latents
from ..options import PlanOptions
from ..planning.plan import DecodePlan
from ..shapes import DEFAULT_SCALE
from ..units import DEFAULT_FPS
from ..video.audio import write_wav
from .clip_audio import AudioSettings, ClipAudio, ClipAudioVAE, clip_audio, film_audio, no_audio_error
from .inputs import agree_on_film
from .output import name_outputs


def open_audio(source: str, settings: AudioSettings) -> AudioLatentsFile:
    """Open the audio latents of a clip. Raises a `LatentsError` if there are none."""
    path = settings.latents or source
    file = open_audio_latents(path, is_alone=True, tensor=settings.tensor)
    if file is None:
        raise no_audio_error(path, settings.latents)
    return file


class AudioInput:
    """Audio latents of a clip, or of the windows of a film, before their VAE is known."""

    def __init__(self, settings: AudioSettings, paths: Sequence[str], output: str | None) -> None:
        self._files = [open_audio(path, settings) for path in paths]
        self.outputs = [] if output is None else name_outputs(output, self._files[0].batch)

    def check_values(self) -> None:
        """Raise the errors of reading all values."""
        for file in self._files:
            file.read_stored()


@dataclass(frozen=True)
class AudioReport:
    """Report of a decode of audio: its outputs, the samples of the last one, and the seconds that it took."""

    outputs: list[str]
    samples: int
    sample_rate: int
    seconds: float


@dataclass(frozen=True)
class PreparedAudio:
    """Decode of the audio of a clip or a film that is decided. `run` does it."""

    audio: ClipAudio
    plan: DecodePlan
    outputs: list[str]

    def run(self, written: Sequence[str], *, overwrite: bool) -> AudioReport:
        """Decode and write some of the outputs. Each appears under its name when it is whole."""
        start, samples, names = time.perf_counter(), 0, list(self.outputs)
        for index, output in enumerate(self.outputs):
            if output in written:
                samples, new_path = write_wav(output, self.audio.stream(index, self.plan), overwrite=overwrite)
                names[index] = output if new_path is None else str(new_path)
        return AudioReport(names, samples, self.audio.vae.sample_rate, time.perf_counter() - start)


def prepare_audio(
    vae: ClipAudioVAE,
    settings: AudioSettings,
    source: str,
    windows: Sequence[str],
    output: str | None,
    options: PlanOptions,
    *,
    fps: Fraction | None = None,
    carry: int | None = None,
) -> PreparedAudio:
    """Decide the decode of the audio of a clip, or of the `windows` of a film, which share `carry` frames."""
    if windows:
        audio = _film_audio(settings, windows, fps, carry)
    else:
        audio = clip_audio(settings, vae, open_audio(source, settings))
    outputs = [] if output is None else name_outputs(output, audio.batch)
    return PreparedAudio(audio, audio.plan(options), outputs)


def _film_audio(
    settings: AudioSettings, paths: Sequence[str], given_fps: Fraction | None, given_carry: int | None
) -> ClipAudio:
    openers = [partial(open_latents, path) for path in paths]
    files = (open_file() for open_file in openers)
    windows = [(file.info, DEFAULT_SCALE.video_grid(file.shape.grid)[0]) for file in files]
    fps, carry = agree_on_film([info for info, _ in windows], given_fps, given_carry, DEFAULT_SCALE)
    for info, count in windows:
        if carry >= count:
            raise LatentsError(f"{info.source}: has {count} frames, and windows share {carry}; correct --carry.")
    ends = list(accumulate((count for _, count in windows), lambda end, count: end + count - carry))
    audio = film_audio(settings, openers, ends, None, fps or DEFAULT_FPS)
    assert audio is not None, "a missing audio is an error"
    return audio
