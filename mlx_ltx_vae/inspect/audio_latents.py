"""A description of audio latents: what the file states, statistics of the values, and the sound that they decode to."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, cast

import mlx.core as mx

from ..backend.mlx_utils import to_float
from ..checkpoint import Checkpoint
from ..errors import excerpt, printable
from ..latents.audio import AudioLatentsFile
from ..models.base import SoundConfig
from ..units import format_count
from ..video.sound import SLACK

_LATENTS_PER_SECOND = 25  # of every release, as the following
_MISSING_SECONDS = Fraction(3, 100)  # by which sound is shorter than its latents, since the first one makes less


@dataclass(frozen=True)
class AudioLatentsReport:
    """What audio latents are. `print(report)` shows it. `vae` is the checkpoint that decodes them, if it is known.

    `video_seconds` is the length of the video that is in the same file; None for sound alone.
    """

    file: AudioLatentsFile
    vae: Checkpoint | None
    video_seconds: float | None = None

    @cached_property
    def statistics(self) -> dict[str, float]:
        """Of all values, as they are stored."""
        values = self.file.read().astype(mx.float32)
        found = {"mean": mx.mean, "std": mx.std, "min": mx.min, "max": mx.max}
        return {name: to_float(function(values)) for name, function in found.items()}

    @property
    def samples(self) -> tuple[int, int] | None:
        """Their number in each sound, and their rate; None without `vae`."""
        if self.vae is None:
            return None
        config = cast(SoundConfig, self.vae.config)
        return config.num_samples(self.file.length), config.sample_rate

    @property
    def seconds(self) -> float:
        """The length of each sound, with `vae` or as all releases have it."""
        if self.samples is not None:
            return self.samples[0] / self.samples[1]
        return float(Fraction(self.file.length, _LATENTS_PER_SECOND) - _MISSING_SECONDS)

    def as_dict(self) -> dict[str, Any]:
        """The report as a JSON object.

        `normalized` is null where the file does not state it. `sound` is one item of the batch: without the `vae` of
        sound, the length is that of the published releases, and `samples` and `sample_rate` are null.
        """
        file, (samples, rate) = self.file, self.samples or (None, None)
        return {
            "kind": "audio latents",
            "name": file.source,
            "tensor": file.tensor,
            "stored_shape": list(file.stored_shape),
            "stored_dtype": file.stored_dtype,
            "layout": file.layout,
            "batch": file.batch,
            "latents": file.length,
            "normalized": file.normalized,
            "statistics": self.statistics,
            "sound": {
                "seconds": self.seconds,
                "samples": samples,
                "sample_rate": rate,
                "vae": None if self.vae is None else self.vae.name,
            },
        }

    def lines(self) -> list[str]:
        """The lines about the latents and their sound."""
        file, values = self.file, self.statistics
        normalized = {
            True: "normalized, as the file states",
            False: "unnormalized, as the file states",
            None: "assumed normalized: the file does not say",
        }[file.normalized]
        items = f"{file.batch} x " if file.batch > 1 else ""
        return [
            f"audio    {excerpt(file.tensor)}, {file.stored_shape} {file.stored_dtype}, read as {file.layout}",
            f"         {normalized}",
            f"         mean {values['mean']:.3f}, std {values['std']:.3f}, all finite, "
            f"from {values['min']:.2f} to {values['max']:.2f}",
            f"sound    {items}{format_count(file.length, 'latent')}, {self.seconds:.2f} s{self._compare()}",
            f"         {self._describe_vae()}",
        ]

    def __str__(self) -> str:
        return "\n".join([f"file     {printable(self.file.source)}", *self.lines()])

    def _describe_vae(self) -> str:
        if self.samples is None or self.vae is None:
            return f"at the usual {_LATENTS_PER_SECOND} latents per second; --audio-model AUDIO to be sure"
        return f"with {printable(self.vae.name)}: {self.samples[0]} samples at {self.samples[1]} Hz"

    def _compare(self) -> str:
        if self.video_seconds is None:
            return ""
        difference = self.seconds - self.video_seconds
        how = "after" if difference > 0 else "before"
        limit = "" if abs(difference) <= SLACK else f"; a decode fills or cuts at most {float(SLACK):g} s"
        return f", which ends {abs(difference):.2f} s {how} the video{limit}"
