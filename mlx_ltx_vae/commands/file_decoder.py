"""Decodes items: opens, plans and checks each, and writes its videos, with a decoder that is loaded once."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from ..backend.device import this_machine
from ..backend.dtypes import DTYPES
from ..backend.machine import Machine
from ..checkpoint import Checkpoint
from ..distributed.ranks import Ranks, Work
from ..errors import ItemsError, LatentsError
from ..files.atomic import check_absent, writing_to
from ..frame_rate import DEFAULT_FPS
from ..latents import LatentsFile, MappedLatents, looks_normalized_twice, looks_unnormalized, open_latents
from ..pipeline.decode_stream import DecodeStream
from ..pipeline.postprocess import FrameChunk
from ..planning.plan import DecodePlan
from ..planning.planner import plan_decode
from ..shapes import Grid, LatentShape
from ..tiling import SpatialTilingConfig, TemporalTilingConfig, TilingConfig, preset
from ..units import format_bytes, format_rate
from ..vae import VideoVAE
from ..video import Sink, SinkOptions, check_output, open_sink
from .outputs import all_exist, name_outputs, nearest_existing
from .rank_report import RankReport, smallest
from .results import Item

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
    ranks: RankReport | None = None

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
            **({} if self.ranks is None else self.ranks.as_dict()),
        }

    def __str__(self) -> str:
        rate = format_rate(self.frames, self.seconds)
        return (
            f"Frames: {self.frames}, {rate}, first after {self.first_frame_seconds:.2f} s\n"
            f"Peak memory: {format_bytes(mx.get_peak_memory())}{self.ranks or ''}"
        )


@dataclass(frozen=True)
class OpenLatents:
    """A latent file whose header has been read, and how it will be decoded: `outputs` has one video per batch item."""

    file: LatentsFile
    plan: DecodePlan
    fps: Fraction
    outputs: list[str]
    work: Work

    @property
    def description(self) -> dict[str, Any]:
        """What ranks compare: the latents' header and the plan."""
        file = self.file
        header = [list(file.info.stored_shape), file.stored_dtype, file.layout, file.normalized, str(file.info.fps)]
        return {"the latents": header, "the plans": [self.plan.as_dict(), str(self.fps), len(self.outputs)]}

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
        ranks: of the command. With one item they decode it together; several items are decoded by one rank each.
    """

    def __init__(
        self, checkpoint: Checkpoint, arguments: "argparse.Namespace", *, is_many: bool = False, ranks: Ranks
    ) -> None:
        self._checkpoint = checkpoint
        self._arguments = arguments
        self._is_many = is_many
        self._ranks = Ranks() if is_many else ranks
        self._plans: dict[LatentShape, DecodePlan] = {}

    @cached_property
    def _machine(self) -> Machine:
        """Before the weights are loaded: a plan counts them itself. All ranks plan for the smallest machine."""
        dtype = self._arguments.dtype or self._checkpoint.networks["decoder"].dtype
        return smallest(this_machine(DTYPES[dtype]), self._ranks)

    @cached_property
    def _statistics(self) -> tuple[mx.array, mx.array] | None:
        return self._checkpoint.read_statistics()

    @cached_property
    def _vae(self) -> VideoVAE:
        return VideoVAE.from_pretrained(self._checkpoint, dtype=self._arguments.dtype, encoder=False)

    def measure_machine(self) -> None:
        """Find out what a plan may use. All ranks call this, before they open anything that may fail on one of them."""
        self._machine  # noqa: B018

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
        if self._checkpoint.statistics is None and (arguments.unnormalized or file.normalized is False):
            raise LatentsError(
                f"{item.source}: these latents are unnormalized, and {self._checkpoint.name} has no statistics to "
                "normalize them; give normalized latents, without --unnormalized."
            )
        work = self._ranks.choose(file.shape.batch)
        plan = self._plan(file.shape._replace(batch=1), self._ranks.size if work is Work.ROWS else 1)
        fps = arguments.fps or file.info.fps or DEFAULT_FPS
        outputs = name_outputs(item.output, file.shape.batch) if item.output else []
        skips = arguments.skip_existing and all_exist(outputs)
        for output in [] if skips or not self._ranks.is_first else outputs:  # before the weights are read
            if arguments.no_overwrite:
                check_absent(output)
            checked = nearest_existing(output) if self._is_many else output
            check_output(checked, size=plan.frame_size, fps=fps, options=sink_options(arguments))
        return OpenLatents(file, plan, fps, outputs, work)

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
        looks, remedy = "", ""
        if self._statistics is None:
            pass
        elif self._arguments.unnormalized and looks_normalized_twice(latents, *self._statistics):
            looks, remedy = "normalized", "leave out --unnormalized"
        elif looks_unnormalized(latents, *self._statistics):
            looks, remedy = "unnormalized", "add --unnormalized"
        if looks:
            warnings.warn(
                f"{source}: the channels have the statistics of {looks} latents; if the picture is wrong, {remedy}.",
                stacklevel=2,
            )
        self.load()
        report = DecodeReport(opened.plan, opened.fps)
        if opened.work is Work.BATCH:
            sent = self._decode_batch(latents, opened, report, advance)
        else:
            videos = enumerate(opened.outputs)
            sent = sum(self._decode_video(latents.item(index), output, report, advance) for index, output in videos)
        if self._ranks.group is not None:
            report.ranks = RankReport.gather(self._ranks, opened.work, sent)
        return report

    def _decode_video(
        self, latents: MappedLatents, output: str, report: DecodeReport, advance: Callable[[int], object]
    ) -> int:
        """Decode one batch item to one output. Returns the bytes that this rank sent."""
        start = time.perf_counter()
        chunks = self._stream(latents, report.plan, self._ranks.group)
        with self._open_sinks([output] if self._ranks.is_first else [], report) as sinks:
            for chunk in chunks:
                levels = self._levels(chunk)
                for sink in sinks:
                    sink.write(levels)
                self._count(report, chunk.frames.shape[1], start, advance)
        report.seconds += time.perf_counter() - start
        report.outputs.append(output)
        return chunks.sent_bytes

    def _decode_batch(
        self, latents: MappedLatents, opened: OpenLatents, report: DecodeReport, advance: Callable[[int], object]
    ) -> int:
        """Decode the videos of a file, one on each rank at a time. Returns the bytes that this rank sent."""
        from ..distributed.batch import BatchGather  # not imported where one process works alone

        ranks, start = self._ranks, time.perf_counter()
        assert ranks.group is not None
        gather = BatchGather(ranks.group)
        for first in range(0, len(opened.outputs), ranks.size):
            outputs = opened.outputs[first : first + ranks.size]
            own = None
            if ranks.rank < len(outputs):
                own = map(self._levels, self._stream(latents.item(first + ranks.rank), report.plan, None))
            with self._open_sinks(outputs if ranks.is_first else [], report) as sinks:
                for chunks in gather.gather(own):
                    for sink, frames in zip(sinks, chunks, strict=False):  # idle ranks have no sink
                        sink.write(frames)
                    self._count(report, len(outputs) * len(chunks[0]), start, advance)
        report.seconds += time.perf_counter() - start
        report.outputs += opened.outputs
        return gather.sent_bytes

    def _stream(self, latents: MappedLatents, plan: DecodePlan, group: "mx.distributed.Group | None") -> DecodeStream:
        arguments = self._arguments
        return self._vae.stream(
            latents,
            plan,
            timestep=arguments.timestep,
            seed=arguments.seed,
            noise_scale=arguments.noise_scale,
            like=arguments.like,
            bit_depth=arguments.bit_depth,
            group=group,
        )

    def _levels(self, chunk: FrameChunk) -> np.ndarray:
        return chunk.to_uint8() if self._arguments.bit_depth == 8 else chunk.to_uint16()

    @contextmanager
    def _open_sinks(self, outputs: Sequence[str], report: DecodeReport) -> Iterator[list[Sink]]:
        """The sinks of some outputs until the end of the block."""
        with ExitStack() as stack:
            sinks, options = [], sink_options(self._arguments)
            for output in outputs:
                if self._is_many:
                    with writing_to(output):
                        Path(output).parent.mkdir(parents=True, exist_ok=True)
                sink = open_sink(output, size=report.plan.frame_size, fps=report.fps, options=options)
                sinks.append(stack.enter_context(sink))
            yield sinks

    @staticmethod
    def _count(report: DecodeReport, frames: int, start: float, advance: Callable[[int], object]) -> None:
        if not report.first_frame_seconds:
            report.first_frame_seconds = time.perf_counter() - start
        report.frames += frames
        advance(frames)

    def _plan(self, shape: LatentShape, ranks: int) -> DecodePlan:
        """The plan of latents of one video. Files of one shape share it."""
        if shape not in self._plans:
            arguments, config = self._arguments, self._checkpoint.config
            tiling = _tiling(arguments, config.scale.video_grid(shape.grid))
            self._plans[shape] = plan_decode(
                self._checkpoint.spec("decoder"),
                shape,
                self._machine,
                memory_budget=arguments.memory_budget,
                holds_latents=False,
                mode="tiled" if tiling is not None and arguments.mode == "auto" else arguments.mode,
                order=arguments.order,
                tiling=tiling,
                tile_batch_size=arguments.tile_batch_size,
                chunk=arguments.chunk,
                ranks=ranks,
            )
        return self._plans[shape]


def sink_options(arguments: "argparse.Namespace") -> SinkOptions:
    """The options of outputs that the command line determines."""
    return SinkOptions(
        audio=arguments.audio,
        codec=arguments.codec,
        crf=arguments.crf,
        bit_depth=arguments.bit_depth,
        fragmented=arguments.live,
        overwrite=not arguments.no_overwrite,
    )


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
