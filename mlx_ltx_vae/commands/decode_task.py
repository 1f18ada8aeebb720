"""Decodes one latent file: reads its header, plans, checks the outputs, and writes its videos."""

import time
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

from ..distributed.ranks import Work
from ..errors import ItemsError, LatentsError
from ..files.atomic import check_absent
from ..frame_rate import DEFAULT_FPS
from ..latents import MappedLatents, looks_normalized_twice, looks_unnormalized, open_latents
from ..planning.options import PlanOptions
from ..planning.plan import DecodePlan, Mode
from ..planning.planner import plan_decode
from ..shapes import Grid
from ..tiling import preset
from ..video import Sink, check_output, open_sink
from ..video.sink import SinkOptions
from .inputs import Item
from .job import Advance, LazyVAE, Task
from .outputs import all_exist, make_folder, name_outputs, nearest_existing


@dataclass(frozen=True)
class DecodeSettings:
    """What is wanted of a decode."""

    tensor: str | None
    grid: Grid | None
    unnormalized: bool | None  # as `fps`: None for what the file states
    fps: Fraction | None
    preset: str | None  # tiles that may depend on the video's size; None for those of `plan`
    plan: PlanOptions
    stream: Mapping[str, Any]  # options of `VideoVAE.stream`
    sinks: SinkOptions


class DecodeTask(Task):
    """A latent file. Several ranks share the rows of one video, or take whole videos of a file with several."""

    plan: DecodePlan

    def __init__(self, settings: DecodeSettings, vae: LazyVAE, item: Item) -> None:
        super().__init__(vae, item)
        self._settings = settings
        config, ranks = vae.checkpoint.config, vae.ranks
        if vae.job.is_many and Path(item.source).is_fifo():
            raise ItemsError(f"{item.source}: is a pipe, which can be read only once; decode it alone.")
        self._file = open_latents(
            item.source,
            latent_channels=config.latent_channels,
            tensor=settings.tensor,
            grid=settings.grid,
            scale=config.scale,
        )
        if vae.checkpoint.statistics is None and (settings.unnormalized or self._file.normalized is False):
            raise LatentsError(
                f"{item.source}: these latents are unnormalized, and {vae.checkpoint.name} has no statistics to "
                "normalize them; give normalized latents, without --unnormalized."
            )
        shape = self._file.shape
        self._work = ranks.choose(shape.batch)
        is_batch = self._work is Work.BATCH
        self._videos = range(ranks.rank, shape.batch, ranks.size) if is_batch else range(shape.batch)
        self._writes = is_batch or ranks.is_first
        self._fps = settings.fps or self._file.info.fps or DEFAULT_FPS
        self.plan = self._make_plan()
        item.outputs = name_outputs(item.output, shape.batch) if item.output else []
        item.num_frames, item.cost = self.plan.num_frames * len(self._videos), prod(shape)
        self._check_outputs()

    def open(self) -> AbstractContextManager[object]:
        return nullcontext()

    def describe(self) -> dict[str, Any]:
        file = self._file
        header = [list(file.info.stored_shape), file.stored_dtype, file.layout, file.normalized, str(file.info.fps)]
        return {"the latents": header, "the plans": [self.plan.as_dict(), str(self._fps), len(self._item.outputs)]}

    def sample(self) -> dict[str, Any]:
        return {"the values of the latents": self._file.digest()}

    def run(self, advance: Advance) -> None:
        ranks = self._vae.ranks
        latents = self._file.map(statistics=self._vae.statistics, unnormalized=self._settings.unnormalized)
        self._check_statistics(latents)
        self._vae.loaded  # noqa: B018  (before the clock starts)
        if self._work is Work.BATCH:
            ranks.work_alone()
            own = ranks.together(lambda: self._decode(latents, advance))
            done = [each for each in ranks.gather(own) if each[0]]  # there may be more ranks than videos
        else:
            done = [self._decode(latents, advance)]
        frames, seconds, first_seconds, sent_bytes = zip(*done, strict=True)
        self._report(
            self._work,
            frames=sum(frames),
            fps=self._fps,
            seconds=max(seconds),
            sent_bytes=sum(sent_bytes),
            remark=f"first after {min(first_seconds):.2f} s",
            first_frame_seconds=min(first_seconds),
        )

    def _decode(self, latents: MappedLatents, advance: Advance) -> tuple[int, float, float, int]:
        """Decode this rank's videos: the frames, the seconds, those to the first frame, and the bytes sent."""
        frames, seconds, first, sent = 0, 0.0, 0.0, 0
        options = self._settings.stream
        group = self._vae.ranks.group if self._work is Work.ROWS else None
        for index in self._videos:
            start = time.perf_counter()
            chunks = self._vae.loaded.stream(latents.item(index), self.plan, group=group, **options)
            with self._open_sink(self._item.outputs[index]) if self._writes else nullcontext() as sink:
                for chunk in chunks:
                    levels = chunk.to_uint8() if options["bit_depth"] == 8 else chunk.to_uint16()
                    if sink is not None:
                        sink.write(levels)
                    first = first or time.perf_counter() - start
                    frames += len(levels)
                    advance(len(levels))
            seconds += time.perf_counter() - start
            sent += chunks.sent_bytes
        return frames, seconds, first, sent

    def _open_sink(self, output: str) -> Sink:
        if self._vae.job.is_many:
            make_folder(output)
        return open_sink(output, size=self.plan.frame_size, fps=self._fps, options=self._settings.sinks)

    def _check_outputs(self) -> None:
        """Find out whether to skip, and raise what `open_sink` would raise, before the weights are read."""
        job, outputs = self._vae.job, self._item.outputs
        own = [outputs[index] for index in self._videos] if outputs and self._writes else []
        self._item.is_skipped = job.skip_existing and bool(outputs) and (not own or all_exist(own))
        for output in [] if self._item.is_skipped else own:
            if job.no_overwrite:
                check_absent(output)
            checked = nearest_existing(output) if job.is_many else output
            check_output(checked, size=self.plan.frame_size, fps=self._fps, options=self._settings.sinks)

    def _check_statistics(self, latents: MappedLatents) -> None:
        """Warn if the channels look otherwise normalized than said."""
        statistics = self._vae.statistics
        if statistics is None:
            return
        if self._settings.unnormalized and looks_normalized_twice(latents, *statistics):
            looks, remedy = "normalized", "leave out --unnormalized"
        elif looks_unnormalized(latents, *statistics):
            looks, remedy = "unnormalized", "add --unnormalized"
        else:
            return
        text = f"the channels have the statistics of {looks} latents; if the picture is wrong, {remedy}."
        warnings.warn(f"{self._file.info.source}: {text}", stacklevel=2)

    def _make_plan(self) -> DecodePlan:
        """The plan of one video. Files of one shape share it."""
        shape = self._file.shape._replace(batch=1)
        plans, spec, ranks = self._vae.plans, self._vae.checkpoint.spec("decoder"), self._vae.ranks
        if shape not in plans:
            options = replace(self._settings.plan, ranks=ranks.size if self._work is Work.ROWS else 1)
            if self._settings.preset:
                num_frames, height, width = spec.out_grid(shape.grid)
                if tiling := preset(self._settings.preset, height, width, num_frames):
                    options = replace(options, mode=Mode.TILED, tiling=tiling)
            plans[shape] = plan_decode(spec, shape, self._vae.machine, holds_latents=False, **vars(options))
        return plans[shape]
