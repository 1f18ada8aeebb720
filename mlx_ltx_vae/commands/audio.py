"""Audio of a latent file or a film without its pictures, to a .wav file for each video."""

import time
from functools import partial
from itertools import accumulate
from typing import Any

from ..audio_vae import AudioVAE
from ..errors import LatentsError
from ..latents import AudioLatentsFile, open_audio_latents, open_latents
from ..options import PlanOptions
from ..pipeline.clip_audio import AudioSettings, ClipAudio, clip_audio, film_audio, no_audio_error
from ..pipeline.inputs import agree_on_film
from ..pipeline.output import name_outputs
from ..pipeline.progress import FrameBar
from ..planning.plan import DecodePlan
from ..shapes import DEFAULT_SCALE
from ..units import DEFAULT_FPS, format_seconds
from ..video.audio import write_wav
from .items import Item, Result
from .jobs import Job, Task


def open_audio(source: str, settings: AudioSettings) -> AudioLatentsFile:
    """Open the audio latents of a clip. Raises a `LatentsError` if there are none."""
    path = settings.latents or source
    file = open_audio_latents(path, is_alone=True, tensor=settings.tensor)
    if file is None:
        raise no_audio_error(path, settings.latents)
    return file


class AudioInputTask(Task):
    """Checks of audio latents and their outputs that need no VAE, before one is downloaded. It never runs."""

    def __init__(self, job: Job, item: Item, settings: AudioSettings) -> None:
        super().__init__(job, item)
        self._files = [open_audio(path, settings) for path in item.windows or [item.source]]
        outputs = name_outputs(item.output, self._files[0].batch) if item.output else []
        self.result = Result([file.source for file in self._files], outputs, cost=1)

    def check_values(self) -> None:
        for file in self._files:
            file.read_stored()

    def run(self, bar: FrameBar) -> tuple[dict[str, Any], str]:
        raise AssertionError("the VAE is opened before it runs")


class AudioTask(Task):
    """Decode of the audio of an item, without the pictures."""

    plan: DecodePlan

    def __init__(self, job: Job, item: Item, settings: AudioSettings) -> None:
        super().__init__(job, item)
        assert isinstance(job.vae, AudioVAE)
        self._audio = self._film_audio(settings) if job.is_film else self._clip_audio(settings, job.vae)
        self.plan = self._audio.plan(PlanOptions(memory_budget=job.arguments.memory_budget))
        outputs = name_outputs(item.output, self._audio.batch) if item.output else []
        self.result = Result([*self._audio.files, *item.windows], outputs)

    def _clip_audio(self, settings: AudioSettings, vae: AudioVAE) -> ClipAudio:
        return clip_audio(settings, vae, open_audio(self._item.source, settings))

    def _film_audio(self, settings: AudioSettings) -> ClipAudio:
        arguments, openers = self._job.arguments, [partial(open_latents, path) for path in self._item.windows]
        files = (open_file() for open_file in openers)
        windows = [(file.info, DEFAULT_SCALE.video_grid(file.shape.grid)[0]) for file in files]
        fps, carry = agree_on_film([info for info, _ in windows], arguments.fps, arguments.carry, DEFAULT_SCALE)
        for info, count in windows:
            if carry >= count:
                raise LatentsError(f"{info.source}: has {count} frames, and windows share {carry}; correct --carry.")
        ends = list(accumulate((count for _, count in windows), lambda end, count: end + count - carry))
        audio = film_audio(settings, openers, ends, None, fps or DEFAULT_FPS)
        assert audio is not None, "a missing audio is an error"
        return audio

    def networks(self) -> dict[str, dict[str, str]]:
        return {"audio_vae": self._job.used}

    def check_values(self) -> None:
        self._audio.check_values()

    def run(self, bar: FrameBar) -> tuple[dict[str, Any], str]:
        bar.enter("decoding")
        start, samples = time.perf_counter(), 0
        missing_outputs = self.missing_outputs
        for index, output in enumerate(self.result.outputs):
            if output not in missing_outputs:
                continue
            samples, new_path = write_wav(output, self._audio.stream(index, self.plan), overwrite=self.overwrite)
            self._rename({} if new_path is None else {output: str(new_path)})
        seconds, rate = time.perf_counter() - start, self._audio.sample_rate
        length = f"{format_seconds(samples / rate)} of audio at {rate} Hz"
        values = {"samples": samples, "sample_rate": rate, "seconds": seconds}
        return self._report(f"{length}, in {format_seconds(seconds)}", values)
