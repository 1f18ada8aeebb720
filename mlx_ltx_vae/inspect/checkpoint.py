"""A description of a checkpoint, from the headers of its files and its configuration. No tensor is read."""

from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

from ..checkpoint import Checkpoint, StoredNetwork
from ..errors import PlanError, excerpt, printable
from ..models.video_vae.block_types import BlockConfig
from ..models.video_vae.config import NetworkConfig
from ..models.video_vae.network_specs import decoder_spec
from ..planning.plan import DecodePlan, Mode
from ..planning.planner import plan_decode
from ..planning.receptive_field import ReceptiveField, lookahead, receptive_field
from ..shapes import Grid, format_size
from ..units import format_bytes
from ..vae import machine_for

#: (F, H, W) of videos that people make.
_USUAL_VIDEOS = ((121, 512, 768), (121, 704, 1280), (121, 1088, 1920))
_LABEL_WIDTH, _COLUMN_WIDTH = 9, 44


@dataclass(frozen=True)
class NetworkReport:
    """An encoder or a decoder, by its configuration and its tensors in the file."""

    config: NetworkConfig
    stored: StoredNetwork

    def as_dict(self) -> dict[str, Any]:
        """The network as a JSON object.

        `blocks` are in the order of the data flow, each with its `stride` as (time, height, width); `dtypes` counts the
        parameters stored in each dtype; `weight_layout` is the axis order of the stored convolution weights.
        """
        config, stored = self.config, self.stored
        return {
            "in_channels": config.in_channels,
            "out_channels": config.out_channels,
            "causal": config.options.causal,
            "padding": config.options.padding.value,
            "blocks": [_block_as_dict(block) for block in config.blocks],
            "parameters": stored.parameters_by_dtype.total(),
            "dtypes": dict(stored.parameters_by_dtype),
            "bytes": stored.num_bytes,
            "weight_layout": stored.layout.value,
        }

    def describe_blocks(self) -> list[str]:
        """A line for each block and convolution, with its input and output channels."""
        config = self.config
        layers = [("conv_in", config.in_channels, config.first_width)]
        layers += [(_describe_block(block), block.in_channels, block.out_channels) for block in config.blocks]
        layers += [("conv_out", config.last_width, config.out_channels)]
        return [
            f"{name:29}{str(before) if before == after else f'{before} -> {after}':>12}"
            for name, before, after in layers
        ]

    def describe_storage(self) -> list[str]:
        """Lines on what the file stores."""
        parameters = self.stored.parameters_by_dtype
        return [
            f"{parameters.total():,} parameters",
            f"{format_bytes(self.stored.num_bytes)} of {' and '.join(dtype for dtype, _ in parameters.most_common())}",
            f"weights ({self.stored.layout.value})",
        ]


@dataclass(frozen=True)
class CheckpointReport:
    """What a checkpoint is. `print(report)` shows it.

    Attributes:
        networks: "encoder" and "decoder", those that it has.
        file_bytes: the size of the files, with everything in them.
        receptive_field: the decoder's; None if the configuration has none.
        lookahead: latent frames that the decoder needs before its first frame is final; None likewise.
        plans: how usual videos would be decoded on this machine, each with the plan of a single pass, which is None
            where that is not possible. Empty without a decoder.
    """

    checkpoint: Checkpoint
    networks: dict[str, NetworkReport]
    file_bytes: int
    receptive_field: ReceptiveField | None
    lookahead: int | None
    plans: list[tuple[DecodePlan, DecodePlan | None]]

    @property
    def vae_bytes(self) -> int:
        """The size of the encoder and the decoder in the files."""
        return sum(network.stored.num_bytes for network in self.networks.values())

    def as_dict(self) -> dict[str, Any]:
        """The report as a JSON object.

        `configuration` is "stated" by the file or "inferred" from its tensors; `scale` is pixels per latent cell; a
        network that does not exist is null; `receptive_field` is in latent frames and cells beyond a pixel's own, null
        where it is unlimited; it and `lookahead` are null without a decoder in the configuration. Each of `plans` is a
        plan as `decode --dry-run --json` prints it, with `single_pass_peak_bytes`, null where a single pass is not
        possible.
        """
        checkpoint, config = self.checkpoint, self.checkpoint.config
        networks = {name: report.as_dict() for name, report in self.networks.items()}
        return {
            "kind": "checkpoint",
            "name": checkpoint.name,
            "generation": config.generation,
            "class": checkpoint.class_name,
            "configuration": "inferred" if checkpoint.is_inferred else "stated",
            "latent_channels": config.latent_channels,
            "patch_size": config.patch_size,
            "scale": config.scale._asdict(),
            "causal_decoder": config.causal_decoder,
            "timestep_conditioning": config.timestep_conditioning,
            "encoder": networks.get("encoder"),
            "decoder": networks.get("decoder"),
            "receptive_field": None if self.receptive_field is None else self.receptive_field._asdict(),
            "lookahead": self.lookahead,
            "file_bytes": self.file_bytes,
            "vae_bytes": self.vae_bytes,
            "plans": [
                {**plan.as_dict(), "single_pass_peak_bytes": None if single is None else single.peak_bytes}
                for plan, single in self.plans
            ],
        }

    def __str__(self) -> str:
        return "\n".join([*self._describe(), "", *self._describe_networks(), *self._describe_plans()])

    def _describe(self) -> list[str]:
        config = self.checkpoint.config
        time, height, width = config.scale
        total, used = format_bytes(self.file_bytes), format_bytes(self.vae_bytes)
        return [
            f"file     {printable(self.checkpoint.name)}, {total}"
            + (f", of which the VAE takes {used}" if total != used else ""),
            f"VAE      {config.generation}, {self._describe_source()}",
            f"latents  {config.latent_channels} channels; a cell is {time} frames of {format_size(width, height)} "
            f"pixels, patches are {config.patch_size}x{config.patch_size}",
            *self._describe_decoder(),
        ]

    def _describe_decoder(self) -> list[str]:
        config = self.checkpoint.config
        if config.decoder is None or self.receptive_field is None:
            return []
        causal = "causal" if config.causal_decoder else "not causal"
        timestep = "takes a timestep and noise" if config.timestep_conditioning else "takes no timestep"
        decoder = config.decoder.options.padding.value
        encoder = decoder if config.encoder is None else config.encoder.options.padding.value
        padding = f"pads with {decoder}" + ("" if encoder == decoder else f" (the encoder with {encoder})")
        return [
            f"decoder  {causal}, {timestep}, {padding}",
            f"sees     {_describe_field(self.receptive_field)}",
            f"first    frame after {self.lookahead} latent frame{'' if self.lookahead == 1 else 's'}",
        ]

    def _describe_source(self) -> str:
        if self.checkpoint.is_inferred:
            return "inferred from its tensors: it has no configuration"
        return f"a {excerpt(self.checkpoint.class_name)}" if self.checkpoint.class_name else "as its configuration says"

    def _describe_networks(self) -> list[str]:
        missing = "".join(f" (no {name} here)" for name in ("encoder", "decoder") if name not in self.networks)
        blocks = [[f"{name}{missing}", *report.describe_blocks()] for name, report in self.networks.items()]
        storage = [report.describe_storage() for report in self.networks.values()]
        return [*_side_by_side("blocks", blocks), "", *_side_by_side("stored", storage)]

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
        return [*rows, f"{'':{_LABEL_WIDTH}}planned for this machine, in {self.networks['decoder'].stored.dtype}"]


def inspect_checkpoint(checkpoint: Checkpoint) -> CheckpointReport:
    """Describe a checkpoint, and what decoding with it takes on this machine."""
    config = checkpoint.config
    paths = {info.path for archive in checkpoint.archives for info in archive.tensors.values()}
    spec = None if config.decoder is None else decoder_spec(config)
    return CheckpointReport(
        checkpoint,
        networks={name: NetworkReport(config.network(name), stored) for name, stored in checkpoint.networks.items()},
        file_bytes=sum(path.stat().st_size for path in paths),
        receptive_field=None if spec is None else receptive_field(spec),
        lookahead=None if spec is None else lookahead(spec),
        plans=[_plan(checkpoint, video) for video in _USUAL_VIDEOS] if "decoder" in checkpoint.networks else [],
    )


def _describe_field(field: ReceptiveField) -> str:
    before, after = f"{field.frames_before:g}", f"{field.frames_after:g}"
    frames = f"{before} latent frames {'to each side' if before == after else f'back and {after} ahead'}"
    cells = "the whole frame" if field.cells is None else f"{field.cells:g} latent cells to each side"
    return f"{frames} in time, {cells} in space"


def _plan(checkpoint: Checkpoint, video: Grid) -> tuple[DecodePlan, DecodePlan | None]:
    """How the smallest video of at least this (F, H, W) is decoded on this machine, and its single pass if possible."""
    config = checkpoint.config
    shape = (1, config.latent_channels, *config.scale.covering_latent_grid(video))
    plan = partial(plan_decode, decoder_spec(config), shape, machine_for(checkpoint, "decoder", None))
    try:
        single = plan(mode="single")
    except PlanError:
        single = None
    return plan(), single


def _block_as_dict(block: BlockConfig) -> dict[str, Any]:
    return {
        "kind": block.type.name,
        "in_channels": block.in_channels,
        "out_channels": block.out_channels,
        "layers": block.num_layers,
        "stride": list(block.stride),
        "residual": block.residual,
        "inject_noise": block.inject_noise,
    }


def _describe_block(block: BlockConfig) -> str:
    """A block in a few words, such as "4 residual" or "depth to space 2x2x2 + skip" (time x height x width)."""
    count = f"{block.num_layers} " if block.num_layers > 1 else ""
    stride = "" if set(block.stride) == {1} else f" {'x'.join(map(str, block.stride))}"
    extras = (" + skip" if block.residual else "") + (" + noise" if block.inject_noise else "")
    return f"{count}{block.type.name}{stride}{extras}"


def _side_by_side(label: str, columns: list[list[str]]) -> list[str]:
    """Columns of lines, with a label in front of the first line."""
    rows = ["".join(f"{cell:{_COLUMN_WIDTH}}" for cell in row) for row in zip_longest(*columns, fillvalue="")]
    return [f"{'' if index else label:{_LABEL_WIDTH}}{row}".rstrip() for index, row in enumerate(rows)]
