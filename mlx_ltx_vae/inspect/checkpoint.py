"""What a checkpoint is, from the headers of its files and its configuration. No tensor is read."""

import os
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from ..checkpoint import CheckpointHeaders
from ..models.video_vae.config import VAEConfig
from ..planning.plan import DecodePlan, Mode
from ..planning.receptive_field import ReceptiveField, lookahead, receptive_field
from ..vae import DTYPES, plan_here
from .network import HalfSummary, show_bytes

# Videos that people make: width, height, frames.
_USUAL_VIDEOS = ((768, 512, 121), (1280, 704, 121), (1920, 1088, 121))


@dataclass(frozen=True)
class CheckpointSummary:
    """What a checkpoint is. `print(summary)` shows it.

    Attributes:
        name: of the file, folder or repository.
        class_name: what its configuration calls its class, if it does.
        is_recognised: whether it has no configuration, so that its tensors had to tell.
        config: the configuration.
        encoder: None where it has none.
        decoder: None where it has none.
        file_bytes: of the files that were opened, with whatever else they hold.
        plans: how some usual videos would be decoded on this machine, each with its single pass; none without decoder.
    """

    name: str
    class_name: str | None
    is_recognised: bool
    config: VAEConfig
    encoder: HalfSummary | None
    decoder: HalfSummary | None
    file_bytes: int
    plans: tuple[tuple[DecodePlan, DecodePlan], ...]

    @property
    def vae_bytes(self) -> int:
        """What both halves take of the files."""
        return sum(half.num_bytes for half in (self.encoder, self.decoder) if half)

    @property
    def receptive_field(self) -> ReceptiveField:
        """How far a decoded pixel sees."""
        return receptive_field(self.config.decoder)

    def as_dict(self) -> dict[str, Any]:
        """The summary in JSON's terms.

        `configuration` is "stated" or "recognised" by the tensors; `scale` is pixels per latent cell; a half that is
        not there is null; `receptive_field` is latent frames and cells beyond a pixel's own, null where it sees
        everything; `lookahead` is latent frames before the first frame is final. Each of `plans` is a plan as
        `decode --dry-run --json` shows it, and `single_pass_peak_bytes`.
        """
        config = self.config
        return {
            "kind": "checkpoint",
            "name": self.name,
            "generation": config.generation,
            "class": self.class_name,
            "configuration": "recognised" if self.is_recognised else "stated",
            "latent_channels": config.latent_channels,
            "patch_size": config.patch_size,
            "scale": config.scale._asdict(),
            "causal_decoder": config.causal_decoder,
            "timestep_conditioning": config.timestep_conditioning,
            "encoder": None if self.encoder is None else self.encoder.as_dict(),
            "decoder": None if self.decoder is None else self.decoder.as_dict(),
            "receptive_field": self.receptive_field._asdict(),
            "lookahead": lookahead(config.decoder),
            "file_bytes": self.file_bytes,
            "vae_bytes": self.vae_bytes,
            "plans": [{**plan.as_dict(), "single_pass_peak_bytes": single.peak_bytes} for plan, single in self.plans],
        }

    def __str__(self) -> str:
        return "\n".join([*self._describe(), "", *self._describe_halves(), *self._describe_plans()])

    def _describe(self) -> list[str]:
        config = self.config
        time, height, width = config.scale
        total, ours = show_bytes(self.file_bytes), show_bytes(self.vae_bytes)
        causal = "causal" if config.causal_decoder else "not causal"
        timestep = "takes a timestep and noise" if config.timestep_conditioning else "takes no timestep"
        return [
            f"file     {self.name}, {total}" + (f", of which the VAE takes {ours}" if total != ours else ""),
            f"VAE      {config.generation}, {self._describe_source()}",
            f"latents  {config.latent_channels} channels; a cell is {time} frames of {width}x{height} pixels, "
            f"patches are {config.patch_size}x{config.patch_size}",
            f"decoder  {causal}, {timestep}, {self._describe_padding()}",
            f"sees     {self._describe_field()}",
            f"first    frame after {self._describe_lookahead()}",
        ]

    def _describe_padding(self) -> str:
        encoder, decoder = self.config.encoder.padding, self.config.decoder.padding
        return f"pads with {decoder.value}" + ("" if encoder is decoder else f" (the encoder with {encoder.value})")

    def _describe_source(self) -> str:
        if self.is_recognised:
            return "recognised by its tensors: it carries no configuration"
        return f"a {self.class_name}" if self.class_name else "as its configuration says"

    def _describe_field(self) -> str:
        field = self.receptive_field
        if field.frames_before is None:
            return "the whole clip from every pixel, because of its group norms"
        before, after = f"{field.frames_before:g}", f"{field.frames_after:g}"
        frames = f"{before} latent frames {'to each side' if before == after else f'back and {after} ahead'}"
        cells = "the whole frame" if field.cells is None else f"{field.cells:g} latent cells to each side"
        return f"{frames} in time, {cells} in space"

    def _describe_lookahead(self) -> str:
        frames = lookahead(self.config.decoder)
        return "1 latent frame" if frames == 1 else f"{frames} latent frames"

    def _describe_halves(self) -> list[str]:
        """What there is of both halves, side by side."""
        halves = {"encoder": self.encoder, "decoder": self.decoder}
        there = {title: half for title, half in halves.items() if half}
        absent = "".join(f" (no {title} here)" for title, half in halves.items() if not half)
        blocks = [[f"{title}{absent}", *half.describe_blocks()] for title, half in there.items()]
        storage = [half.describe_storage() for half in there.values()]
        return [*_side_by_side("blocks", blocks), "", *_side_by_side("stored", storage)]

    def _describe_plans(self) -> list[str]:
        """A table; nothing without a decoder."""
        if self.decoder is None:
            return []
        head = f"{'video':12}{'frames':>6}   {'mode':20}{'peak':>9}{'as a single pass':>20}"
        rows = ["", f"{'decode':9}{head}"]
        for plan, single in self.plans:
            size = f"{plan.width}x{plan.height}"
            how = plan.mode.value if plan.mode is Mode.SINGLE else f"{plan.mode.value}, by {plan.order.value}"
            peak, single_peak = show_bytes(plan.peak_bytes), show_bytes(single.peak_bytes)
            rows.append(f"{'':9}{size:12}{plan.num_frames:6}   {how:20}{peak:>9}{single_peak:>20}")
        return [*rows, f"{'':9}planned for this machine, in {self.decoder.dtype}"]


def summarise_checkpoint(headers: CheckpointHeaders) -> CheckpointSummary:
    """What a checkpoint is, and what decoding with it takes on this machine."""
    config = headers.config
    networks = {"encoder": config.encoder, "decoder": config.decoder}
    halves = {name: HalfSummary.of(stored, networks[name]) for name, stored in headers.halves.items()}
    decoder = halves.get("decoder")
    paths = {info.path for archive in headers.archives for info in archive.tensors.values()}
    return CheckpointSummary(
        name=headers.name,
        class_name=headers.class_name,
        is_recognised=headers.is_recognised,
        config=config,
        encoder=halves.get("encoder"),
        decoder=decoder,
        file_bytes=sum(os.path.getsize(path) for path in paths),
        plans=() if decoder is None else tuple(_plan(config, decoder.dtype, *video) for video in _USUAL_VIDEOS),
    )


def _plan(config: VAEConfig, dtype: str, width: int, height: int, frames: int) -> tuple[DecodePlan, DecodePlan]:
    """How the smallest video of at least this size would be decoded, and its single pass."""
    scale = config.scale
    grid = (1 + -(-(frames - 1) // scale.time), -(-height // scale.height), -(-width // scale.width))
    shape = (1, config.latent_channels, *grid)
    usual, single = (
        plan_here(config, shape, DTYPES[dtype], memory_budget=None, mode=mode) for mode in ("auto", "single")
    )
    return usual, single


def _side_by_side(label: str, columns: list[list[str]]) -> list[str]:
    """Columns of lines, with a label in front of the first."""
    rows = enumerate(zip_longest(*columns, fillvalue=""))
    return ["".join([f"{'' if index else label:9}", *(f"{cell:40}" for cell in row)]).rstrip() for index, row in rows]
