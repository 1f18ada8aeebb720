"""Audio of a latent file or a film without its pictures, to a .wav file for each video."""

from dataclasses import replace
from typing import Any

import mlx.core as mx

from .. import AudioVAE, DecodePlan
from ..options import PlanOptions
from ..pipeline.clip_audio import AudioSettings
from ..pipeline.prepare_audio import AudioInput, prepare_audio
from ..pipeline.progress import FrameBar
from ..units import format_seconds
from .items import Item, Result
from .jobs import Job, Task


class AudioInputTask(Task):
    """Checks of audio latents and their outputs that need no VAE, before one is downloaded. It never runs."""

    def __init__(self, job: Job, item: Item, settings: AudioSettings) -> None:
        super().__init__(job, item)
        self._input = AudioInput(settings, item.windows or [item.source], item.output)
        self.result = Result([*filter(None, [settings.latents]), *item.windows], self._input.outputs, cost=1)

    def check_values(self) -> None:
        self._input.check_values()


class AudioTask(Task):
    """Decode of the audio of an item, without the pictures."""

    plan: DecodePlan

    def __init__(self, job: Job, item: Item, settings: AudioSettings) -> None:
        super().__init__(job, item)
        assert isinstance(job.vae, AudioVAE)
        arguments, options = job.arguments, PlanOptions(memory_budget=job.arguments.memory_budget)
        self._decode = prepare_audio(
            job.vae, settings, item.source, item.windows, item.output, options, fps=arguments.fps, carry=arguments.carry
        )
        self.plan = self._decode.plan
        self.result = Result([*self._decode.audio.files, *item.windows], self._decode.outputs)

    def networks(self) -> dict[str, dict[str, str]]:
        return {"audio_vae": self._job.used}

    def check_values(self) -> None:
        self._decode.audio.check_values()

    def run(self, bar: FrameBar) -> tuple[dict[str, Any], str]:
        bar.enter("decoding")
        report = self._decode.run(self.missing_outputs, overwrite=self.overwrite)
        self.result = replace(self.result, outputs=report.outputs)  # whose names were used meanwhile, if they are new
        length = f"{format_seconds(report.samples / report.sample_rate)} of audio at {report.sample_rate} Hz"
        values: dict[str, Any] = {"samples": report.samples, "sample_rate": report.sample_rate}
        values |= {"seconds": report.seconds, "peak_memory_bytes": mx.get_peak_memory(), "plan": self.plan.as_dict()}
        return self._report(f"{length}, in {format_seconds(report.seconds)}", values)
