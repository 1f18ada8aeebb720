"""A description of a checkpoint, from the headers of its files and its configuration. No tensor is read."""

from dataclasses import dataclass
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any

from ..checkpoint import Checkpoint
from ..errors import PlanError, excerpt, printable
from ..models.base import NETWORKS, Description
from ..models.specs import NetworkSpec
from ..planning.plan import DecodePlan, Mode
from ..planning.planner import plan_decode
from ..planning.receptive_field import lookahead, receptive_field
from ..shapes import Grid, format_size
from ..units import format_bytes
from .audio import AudioReport

#: (F, H, W) of videos that people make.
_USUAL_VIDEOS = ((121, 512, 768), (121, 704, 1280), (121, 1088, 1920))
_LABEL_WIDTH, _COLUMN_WIDTH = 9, 44


@dataclass(frozen=True)
class CheckpointReport:
    """What a checkpoint is, and how usual videos would be decoded, each with its single pass if that is possible."""

    checkpoint: Checkpoint
    file_bytes: int
    plans: list[tuple[DecodePlan, DecodePlan | None]]
    audio: AudioReport | None = None  # of the audio networks in the same file

    @cached_property
    def _description(self) -> Description:
        return self.checkpoint.family.describe(self.checkpoint.config)

    @cached_property
    def _decoder(self) -> NetworkSpec | None:
        return self.checkpoint.spec("decoder") if "decoder" in self._description.networks else None

    @property
    def _vae_bytes(self) -> int:
        return sum(stored.num_bytes for stored in self.checkpoint.networks.values())

    def as_dict(self) -> dict[str, Any]:
        """The report as a JSON object.

        `configuration` is "stated" by the file or "inferred" from its tensors; `scale` is pixels per latent cell; a
        network that does not exist is null, `dtypes` counts its parameters stored in each dtype, and `weight_layout` is
        the axis order of its stored convolution weights; `receptive_field` is in latent frames and cells beyond a
        pixel's own, null where it is unlimited; it and `lookahead` are null without a decoder in the configuration.
        Each of `plans` is a plan as `decode --dry-run --json` prints it, with `single_pass_peak_bytes`, null where a
        single pass is not possible.
        """
        checkpoint, decoder = self.checkpoint, self._decoder
        return {
            "kind": "checkpoint",
            "name": checkpoint.name,
            "generation": checkpoint.config.generation,
            "class": checkpoint.class_name,
            "configuration": "inferred" if checkpoint.is_inferred else "stated",
            **self._description.entries,
            **{name: self._network_as_dict(name) for name in NETWORKS},
            "receptive_field": None if decoder is None else receptive_field(decoder)._asdict(),
            "lookahead": None if decoder is None else lookahead(decoder),
            "file_bytes": self.file_bytes,
            "vae_bytes": self._vae_bytes,
            "plans": [
                {**plan.as_dict(), "single_pass_peak_bytes": None if single is None else single.peak_bytes}
                for plan, single in self.plans
            ],
            **({} if self.audio is None else {"audio": self.audio.as_dict()}),
        }

    def _network_as_dict(self, name: str) -> dict[str, Any] | None:
        stored = self.checkpoint.networks.get(name)
        if stored is None:
            return None
        return {
            **self._description.networks[name].entries,
            "parameters": stored.parameters_by_dtype.total(),
            "dtypes": dict(stored.parameters_by_dtype),
            "bytes": stored.num_bytes,
            "weight_layout": stored.layout.value,
        }

    def __str__(self) -> str:
        audio = [] if self.audio is None else ["", str(self.audio)]
        return "\n".join([*self._describe(), "", *self._describe_networks(), *self._describe_plans(), *audio])

    def _describe(self) -> list[str]:
        checkpoint, description = self.checkpoint, self._description
        total, used = format_bytes(self.file_bytes), format_bytes(self._vae_bytes)
        source = "as its configuration says"
        if checkpoint.is_inferred:
            source = "inferred from its tensors: it has no configuration"
        elif checkpoint.class_name:
            source = f"a {excerpt(checkpoint.class_name)}"
        generation = checkpoint.config.generation + (f", {description.generation}" if description.generation else "")
        time, height, width = checkpoint.config.scale
        latents = f"{checkpoint.config.latent_channels} channels; a cell is {time} frames of "
        latents += f"{format_size(width, height)} pixels" + (f", {description.latents}" if description.latents else "")
        lines = [
            f"file     {printable(checkpoint.name)}, {total}"
            + (f", of which the VAE takes {used}" if total != used else ""),
            f"VAE      {generation}, {source}",
            f"latents  {latents}",
        ]
        if self._decoder is not None:
            before, after, cells = receptive_field(self._decoder)
            frames = "to each side" if before == after else f"back and {after:g} ahead"
            seen = "the whole frame" if cells is None else f"{cells:g} latent cells to each side"
            count = lookahead(self._decoder)
            lines += [f"decoder  {description.decoder}"] if description.decoder else []
            lines.append(f"sees     {before:g} latent frames {frames} in time, {seen} in space")
            lines.append(f"first    frame after {count} latent frame{'' if count == 1 else 's'}")
        return lines

    def _describe_networks(self) -> list[str]:
        networks = self.checkpoint.networks
        missing = "".join(f" (no {name} here)" for name in NETWORKS if name not in networks)
        layers, storage = [], []
        for name, stored in networks.items():
            layers.append([f"{name}{missing}"])
            for layer, before, after in self._description.networks[name].layers:
                channels = str(before) if before == after else f"{before} -> {after}"
                layers[-1].append(f"{layer:29}{channels:>12}")
            parameters = stored.parameters_by_dtype
            dtypes = " and ".join(dtype for dtype, _ in parameters.most_common())
            size = f"{format_bytes(stored.num_bytes)} of {dtypes}"
            storage.append([f"{parameters.total():,} parameters", size, f"weights ({stored.layout.value})"])
        return [*_side_by_side("blocks", layers), "", *_side_by_side("stored", storage)]

    def _describe_plans(self) -> list[str]:
        if not self.plans:
            return []
        head = f"{'video':12}{'frames':>6}   {'mode':20}{'peak':>9}{'as a single pass':>20}"
        rows = ["", f"{'decode':{_LABEL_WIDTH}}{head}"]
        for plan, single in self.plans:
            mode = plan.mode.value if plan.mode is Mode.SINGLE else f"{plan.mode.value}, by {plan.order.value}"
            single_peak = "not possible" if single is None else format_bytes(single.peak_bytes)
            size, peak = format_size(*plan.frame_size), format_bytes(plan.peak_bytes)
            rows.append(f"{'':{_LABEL_WIDTH}}{size:12}{plan.num_frames:6}   {mode:20}{peak:>9}{single_peak:>20}")
        return [*rows, f"{'':{_LABEL_WIDTH}}planned for this machine, in {self.checkpoint.networks['decoder'].dtype}"]


def inspect_checkpoint(checkpoint: Checkpoint, audio: AudioReport | None = None) -> CheckpointReport:
    """Describe a checkpoint, and what decoding with it takes on this machine."""
    paths = {info.path for archive in checkpoint.archives for info in archive.tensors.values()}
    plans = [_plan(checkpoint, video) for video in _USUAL_VIDEOS] if "decoder" in checkpoint.networks else []
    return CheckpointReport(checkpoint, sum(path.stat().st_size for path in paths), plans, audio)


def _plan(checkpoint: Checkpoint, video: Grid) -> tuple[DecodePlan, DecodePlan | None]:
    """For the smallest video of at least this (F, H, W): how it is decoded here, and its single pass if possible."""
    config = checkpoint.config
    shape = (1, config.latent_channels, *config.scale.covering_latent_grid(video))
    plan = partial(plan_decode, checkpoint.spec("decoder"), shape, checkpoint.machine("decoder", None))
    try:
        single = plan(mode="single")
    except PlanError:
        single = None
    return plan(), single


def _side_by_side(label: str, columns: list[list[str]]) -> list[str]:
    """Columns of lines, with a label in front of the first line."""
    rows = ["".join(f"{cell:{_COLUMN_WIDTH}}" for cell in row) for row in zip_longest(*columns, fillvalue="")]
    return [f"{'' if index else label:{_LABEL_WIDTH}}{row}".rstrip() for index, row in enumerate(rows)]
