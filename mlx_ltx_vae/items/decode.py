"""Decodes items: opens, plans and checks each, and writes its videos, with a decoder that is loaded once."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from ..checkpoint import Checkpoint
from ..device import this_machine
from ..dtypes import DTYPES
from ..errors import ItemsError
from ..frame_rate import DEFAULT_FPS
from ..latents import LatentsFile, MappedLatents, looks_unnormalized, open_latents
from ..machine import Machine
from ..models.video_vae.specs import decoder_spec
from ..part_file import writing_to
from ..planning.plan import DecodePlan
from ..planning.planner import plan_decode
from ..shapes import Grid, LatentShape
from ..tiling import SpatialTilingConfig, TemporalTilingConfig, TilingConfig, preset
from ..units import format_bytes
from ..vae import VideoVAE
from ..video import check_output, open_sink
from .item import Item
from .outputs import all_exist, name_outputs, nearest_existing

if TYPE_CHECKING:
    import argparse


@dataclass
class DecodeReport:
    """The report at the end of a run."""

    plan: DecodePlan
    fps: Fraction
    outputs: list[str] = field(default_factory=list)
    frames: int = 0
    seconds: float = 0.0
    first_frame_seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The report as a JSON-serializable dict. `output` is a list if a batch was decoded to several videos."""
        return {
            "frames": self.frames,
            "width": self.plan.width,
            "height": self.plan.height,
            "fps": float(self.fps),
            "seconds": self.seconds,
            "first_frame_seconds": self.first_frame_seconds,
            "peak_memory_bytes": mx.get_peak_memory(),
            "plan": self.plan.as_dict(),
            "output": self.outputs[0] if len(self.outputs) == 1 else self.outputs,
        }

    def __str__(self) -> str:
        rate = self.frames / self.seconds
        return (
            f"Frames: {self.frames}, {rate:.3f} frames-per-sec, first after {self.first_frame_seconds:.2f} s\n"
            f"Peak memory: {format_bytes(mx.get_peak_memory())}"
        )


@dataclass(frozen=True)
class OpenLatents:
    """A latent file whose header has been read, and how it will be decoded: `outputs` has one video per batch item."""

    file: LatentsFile
    plan: DecodePlan
    fps: Fraction
    outputs: list[str]

    @property
    def num_frames(self) -> int:
        """Frames of all videos."""
        return self.plan.num_frames * self.file.shape.batch


class ItemDecoder:
    """Decodes latent files with the options of the command.

    Args:
        checkpoint: opened with `encoder=False`.
        arguments: of the command `decode`.
        is_many: whether there are several items. Then missing folders of outputs are made, and pipes are refused, since
            every file is opened twice: to be measured, and to be decoded.
    """

    def __init__(self, checkpoint: Checkpoint, arguments: "argparse.Namespace", *, is_many: bool = False) -> None:
        self._checkpoint = checkpoint
        self._arguments = arguments
        self._is_many = is_many
        self._plans: dict[LatentShape, DecodePlan] = {}

    @cached_property
    def _machine(self) -> Machine:
        """Before the weights are loaded: a plan counts them itself."""
        dtype = self._arguments.dtype or self._checkpoint.networks["decoder"].dtype
        return this_machine(DTYPES[dtype])

    @cached_property
    def _statistics(self) -> tuple[mx.array, mx.array]:
        return self._checkpoint.read_statistics()

    @cached_property
    def _vae(self) -> VideoVAE:
        return VideoVAE.from_pretrained(self._checkpoint, dtype=self._arguments.dtype, encoder=False)

    def open(self, item: Item) -> OpenLatents:
        """Read an item's header, plan its decode and check its outputs. No value and no weight is read."""
        arguments, config = self._arguments, self._checkpoint.config
        if self._is_many and Path(item.source).is_fifo():
            raise ItemsError(f"{item.source}: is a pipe, which can be read only once; decode it alone.")
        file = open_latents(
            item.source,
            latent_channels=config.latent_channels,
            tensor=arguments.tensor,
            grid=arguments.grid,
            scale=config.scale,
        )
        plan = self._plan(file.shape._replace(batch=1))
        fps = arguments.fps or file.info.fps or DEFAULT_FPS
        outputs = name_outputs(item.output, file.shape.batch) if item.output else []
        skips = arguments.skip_existing and all_exist(outputs)
        for output in [] if skips else outputs:  # before the weights are read
            checked = nearest_existing(output) if self._is_many else output
            check_output(checked, **output_options(arguments), size=plan.frame_size, fps=fps)
        return OpenLatents(file, plan, fps, outputs)

    def measure(self, item: Item) -> Item:
        """See `Runner`."""
        opened = self.open(item)
        return replace(item, outputs=tuple(opened.outputs), num_frames=opened.num_frames, cost=prod(opened.file.shape))

    def plan(self, item: Item) -> DecodePlan:
        """See `Runner`."""
        return self.open(item).plan

    def load(self) -> None:
        """See `Runner`."""
        self._machine, self._vae  # noqa: B018  (in this order)

    def run(self, item: Item, advance: Callable[[int], object]) -> DecodeReport:
        """See `Runner`."""
        return self.decode(self.open(item), advance)

    def decode(self, opened: OpenLatents, advance: Callable[[int], object]) -> DecodeReport:
        """Decode an opened item. `advance(n)` is called whenever n more frames are done."""
        source = opened.file.info.source
        latents = opened.file.map(statistics=self._statistics, unnormalized=self._arguments.unnormalized)
        if looks_unnormalized(latents, *self._statistics):
            warnings.warn(
                f"{source}: the channels have the statistics of unnormalized latents; if the picture is wrong, "
                "add --unnormalized.",
                stacklevel=2,
            )
        self.load()
        report = DecodeReport(opened.plan, opened.fps)
        for index, output in enumerate(opened.outputs):
            if self._is_many:
                with writing_to(output):
                    Path(output).parent.mkdir(parents=True, exist_ok=True)
            self._decode_video(latents.item(index), output, report, advance)
        return report

    def _decode_video(
        self, latents: MappedLatents, output: str, report: DecodeReport, advance: Callable[[int], object]
    ) -> None:
        """Decode one batch item to one output."""
        arguments = self._arguments
        start = time.perf_counter()
        chunks = self._vae.stream(
            latents,
            report.plan,
            timestep=arguments.timestep,
            seed=arguments.seed,
            noise_scale=arguments.noise_scale,
            like=arguments.like,
            bit_depth=arguments.bit_depth,
        )
        with open_sink(output, **output_options(arguments), size=report.plan.frame_size, fps=report.fps) as sink:
            for chunk in chunks:
                sink.write(chunk.to_uint8() if arguments.bit_depth == 8 else chunk.to_uint16())
                if not report.first_frame_seconds:
                    report.first_frame_seconds = time.perf_counter() - start
                report.frames += chunk.frames.shape[1]
                advance(chunk.frames.shape[1])
        report.seconds += time.perf_counter() - start
        report.outputs.append(output)

    def _plan(self, shape: LatentShape) -> DecodePlan:
        """The plan of latents of one video. Files of one shape share it."""
        if shape not in self._plans:
            arguments, config = self._arguments, self._checkpoint.config
            tiling = _tiling(arguments, config.scale.video_grid(shape.grid))
            self._plans[shape] = plan_decode(
                decoder_spec(config),
                shape,
                self._machine,
                memory_budget=arguments.memory_budget,
                holds_latents=False,
                mode="tiled" if tiling is not None and arguments.mode == "auto" else arguments.mode,
                order=arguments.order,
                tiling=tiling,
                tile_batch_size=arguments.tile_batch_size,
                chunk=arguments.chunk,
            )
        return self._plans[shape]


def output_options(arguments: "argparse.Namespace") -> dict[str, Any]:
    """The arguments of `open_sink` and `check_output` that the command line determines."""
    return {
        "audio": arguments.audio,
        "codec": arguments.codec,
        "crf": arguments.crf,
        "bit_depth": arguments.bit_depth,
        "fragmented": arguments.live,
    }


def _tiling(arguments: "argparse.Namespace", video_grid: Grid) -> TilingConfig | None:
    """The tiling that the arguments request, or None."""
    if arguments.preset:
        num_frames, height, width = video_grid
        return preset(arguments.preset, height, width, num_frames)
    if not (arguments.tile or arguments.tile_frames):
        return None
    return TilingConfig(
        spatial_config=SpatialTilingConfig(*arguments.tile) if arguments.tile else None,
        temporal_config=TemporalTilingConfig(*arguments.tile_frames) if arguments.tile_frames else None,
    )
