"""A description of the audio networks of a checkpoint, from its headers and its configuration. No tensor is read."""

from dataclasses import dataclass
from typing import Any

from ..audio_vae import plan_checkpoint
from ..checkpoint import Checkpoint, open_checkpoint
from ..checkpoint.locate import Location, locate, recognize
from ..errors import CheckpointError, printable
from ..models.base import SOUND
from ..planning.plan import AudioPlan
from ..units import format_bytes

_SECONDS = (5, 20, 300)  # of sound that is planned


@dataclass(frozen=True)
class AudioReport:
    """What the audio networks of a checkpoint are, and how usual sound would be decoded."""

    checkpoint: Checkpoint
    plans: list[AudioPlan]

    def as_dict(self) -> dict[str, Any]:
        """The report as a JSON object. A network that does not exist is null."""
        checkpoint = self.checkpoint
        networks = {name: None if (each := checkpoint.networks.get(name)) is None else {
            "parameters": each.parameters_by_dtype.total(),
            "dtypes": dict(each.parameters_by_dtype),
            "bytes": each.num_bytes,
            "weight_layout": each.layout.value,
        } for name in SOUND.networks}  # fmt: skip
        return {
            "kind": "audio checkpoint",
            "name": checkpoint.name,
            "generation": checkpoint.config.generation,
            "configuration": "inferred" if checkpoint.is_inferred else "stated",
            **checkpoint.family.describe(checkpoint.config).entries,
            **networks,
            "plans": [plan.as_dict() for plan in self.plans],
        }

    def __str__(self) -> str:
        checkpoint = self.checkpoint
        entries = checkpoint.family.describe(checkpoint.config).entries
        source = "inferred from its tensors" if checkpoint.is_inferred else "as its configuration says"
        rate = entries["sample_rate"]
        lines = [
            f"file     {printable(checkpoint.name)}",
            f"sound    {checkpoint.config.generation}, {source}" + (f", {rate} Hz" if rate else ""),
            f"latents  {entries['latent_channels']} channels of {entries['latent_bins']} bins, "
            f"{entries['latents_per_second']:g} per second",
        ]
        for name in SOUND.networks:
            stored = checkpoint.networks.get(name)
            if stored is None:
                lines.append(f"{name:9}none")
                continue
            parameters = stored.parameters_by_dtype
            dtypes = " and ".join(dtype for dtype, _ in parameters.most_common())
            lines.append(f"{name:9}{parameters.total():,} parameters, {format_bytes(stored.num_bytes)} of {dtypes}")
        for plan in self.plans:
            first = f"first sample after {plan.lookahead} latents"
            lines.append(
                f"decode   {plan.seconds:.0f} s: {plan.mode.value}, peak {format_bytes(plan.peak_bytes)}, {first}"
            )
        return "\n".join(lines)


def inspect_audio(checkpoint: Checkpoint) -> AudioReport:
    """Describe a checkpoint that was opened for sound."""
    plans = []
    if {"decoder", "vocoder"} <= checkpoint.networks.keys():
        rate = checkpoint.family.describe(checkpoint.config).entries["latents_per_second"]
        plans = [plan_checkpoint(checkpoint, round(seconds * rate), dtype=None) for seconds in _SECONDS]
    return AudioReport(checkpoint, plans)


def find_audio(source: str | Location) -> AudioReport | None:
    """The report of the audio networks of a path, or of a location that has been opened; None if it has none."""
    try:
        location = source if isinstance(source, Location) else locate(source, SOUND)
        if not any(found.networks for found in recognize(location.archives, SOUND)[1]):
            return None
    except CheckpointError:
        return None
    return inspect_audio(open_checkpoint(location, medium=SOUND))
