"""Encodes items: opens and plans each, and writes its latents, with an encoder that is loaded once."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
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
from ..latents import check_latents_name, check_latents_target, save_latents
from ..planning.plan import EncodePlan
from ..planning.planner import plan_encode
from ..tiling import SpatialTilingConfig, TilingConfig
from ..units import format_bytes, format_rate
from ..vae import VideoVAE
from ..video import Fit, VideoReader
from .rank_report import RankReport, smallest
from .results import Item

if TYPE_CHECKING:
    import argparse

_UNKNOWN_LENGTH = 1001  # frames; a longer clip takes no more memory


@dataclass(frozen=True)
class EncodeReport:
    """The report at the end of a run. `frames` is the number of frames that the latents decode to."""

    frames: int
    size: tuple[int, int]
    fps: Fraction | None
    source_fps: Fraction | None
    seconds: float
    latent_shape: tuple[int, ...]
    plan: EncodePlan
    output: str
    ranks: RankReport | None = None

    def as_dict(self) -> dict[str, Any]:
        """The report as a JSON-serializable dict. The frame rates of images are null, unless one is given."""
        return {
            "frames": self.frames,
            "width": self.size[0],
            "height": self.size[1],
            "fps": None if self.fps is None else float(self.fps),
            "source_fps": None if self.source_fps is None else float(self.source_fps),
            "seconds": self.seconds,
            "peak_memory_bytes": mx.get_peak_memory(),
            "latent_shape": self.latent_shape,
            "plan": self.plan.as_dict(),
            "output": self.output,
            **({} if self.ranks is None else self.ranks.as_dict()),
        }

    def __str__(self) -> str:
        rate = ""
        if self.fps and self.source_fps and self.fps != self.source_fps:
            change = "repeating" if self.fps > self.source_fps else "dropping"
            rate = f"Frame rate: {float(self.source_fps):.6g} to {float(self.fps):.6g} fps, {change} frames\n"
        speed = format_rate(self.frames, self.seconds)
        return (
            f"{rate}Frames: {self.frames}, {speed}, latents {self.latent_shape}\n"
            f"Peak memory: {format_bytes(mx.get_peak_memory())}{self.ranks or ''}"
        )


class ItemEncoder:
    """Encodes videos with the options of the command, which override what a table says about an item.

    Args:
        checkpoint: opened with `decoder=False`.
        arguments: of the command `encode`.
        is_many: whether there are several items. Then missing folders of outputs are made.
        ranks: of the command. With one item they encode it together; several items are encoded by one rank each.
    """

    def __init__(
        self, checkpoint: Checkpoint, arguments: "argparse.Namespace", *, is_many: bool = False, ranks: Ranks
    ) -> None:
        self._checkpoint = checkpoint
        self._arguments = arguments
        self._is_many = is_many
        self._ranks = Ranks() if is_many else ranks

    @cached_property
    def _machine(self) -> Machine:
        """Before the weights are loaded: a plan counts them itself. All ranks plan for the smallest machine."""
        dtype = self._arguments.dtype or self._checkpoint.networks["encoder"].dtype
        machine = this_machine(DTYPES["float32" if dtype == "float16" else dtype])  # encoders are promoted
        return smallest(machine, self._ranks)

    def measure_machine(self) -> None:
        """Find out what a plan may use. All ranks call this, before they open anything that may fail on one of them."""
        self._machine  # noqa: B018

    @cached_property
    def _vae(self) -> VideoVAE:
        return VideoVAE.from_pretrained(self._checkpoint, dtype=self._arguments.dtype, decoder=False)

    @contextmanager
    def open(self, item: Item) -> Iterator[tuple[VideoReader, EncodePlan]]:
        """An item's video until the end of the block, and how it will be encoded."""
        arguments = self._arguments
        with VideoReader(
            item.source,
            size=arguments.size or item.size,
            fit=_fit(arguments, item),
            multiple=self._checkpoint.config.spatial_scale,
            max_frames=arguments.frames or item.max_frames,
            fps=arguments.fps or item.fps,
        ) as video:
            yield video, self._plan(video)

    def measure(self, item: Item) -> Item:
        """See `Runner`. The video is not opened, which would take a process for each."""
        cost = _bytes_on_disk(Path(item.source))
        if item.size and item.max_frames:
            cost = item.size[0] * item.size[1] * item.max_frames
        if item.output is None:
            return replace(item, cost=cost)
        check_latents_name(item.output)
        if self._arguments.no_overwrite:
            check_absent(item.output)
        return replace(item, outputs=(item.output,), cost=cost)

    def plan(self, item: Item) -> EncodePlan:
        """See `Runner`."""
        with self.open(item) as (_, plan):
            return plan

    def load(self) -> None:
        """See `Runner`."""
        self._machine, self._vae  # noqa: B018  (in this order)

    def run(self, item: Item, advance: Callable[[int], object]) -> EncodeReport:
        """See `Runner`."""
        with self.open(item) as (video, plan):
            return self.encode(item, video, plan, advance)

    def encode(
        self, item: Item, video: VideoReader, plan: EncodePlan, advance: Callable[[int], object]
    ) -> EncodeReport:
        """Encode an opened item. `advance(n)` is called whenever n more frames are read."""
        if item.output is None:
            raise ItemsError(f"{item.source}: has no output; name a file for its latents.")
        if self._is_many:
            with writing_to(item.output):
                Path(item.output).parent.mkdir(parents=True, exist_ok=True)
        width, height = video.size
        ranks = self._ranks
        if ranks.is_first:
            check_latents_target(item.output, fps=video.fps)
        self.load()
        start = time.perf_counter()
        frames = _counted(video, advance)
        stream = self._vae.encode_stream(frames, plan, pad=self._arguments.pad, group=ranks.group)
        parts = list(stream)
        if not parts:
            raise LatentsError(f"{item.source}: has no frames.")
        latents = mx.concatenate(parts, axis=2)
        num_frames = self._checkpoint.config.scale.video_grid(latents.shape[2:])[0]
        if ranks.is_first:
            save_latents(
                item.output,
                latents,
                fps=video.fps,
                num_frames=num_frames,
                height=height,
                width=width,
                overwrite=not self._arguments.no_overwrite,
            )
        seconds = time.perf_counter() - start
        rates = (video.fps, video.source_fps)
        of_ranks = RankReport.gather(ranks, Work.ROWS, stream.sent_bytes) if plan.bands else None
        return EncodeReport(num_frames, video.size, *rates, seconds, latents.shape, plan, item.output, of_ranks)

    def _plan(self, video: VideoReader) -> EncodePlan:
        """Plan the encode. A video may have an unknown number of frames until all of them are read."""
        arguments = self._arguments
        width, height = video.size
        return plan_encode(
            self._checkpoint.spec("encoder"),
            (video.num_frames or _UNKNOWN_LENGTH, height, width, 3),
            self._machine,
            pad=arguments.pad,
            memory_budget=arguments.memory_budget,
            mode="tiled" if arguments.tile else "auto",
            tiling=TilingConfig(SpatialTilingConfig(*arguments.tile)) if arguments.tile else None,
            tile_batch_size=arguments.tile_batch_size,
            ranks=self._ranks.size if self._ranks.choose(1) is Work.ROWS else 1,
        )


def _fit(arguments: "argparse.Namespace", item: Item) -> Fit:
    if arguments.crop:
        return Fit.CROP
    return Fit.RESIZE if arguments.resize or arguments.size or item.size else Fit.EXACT


def _counted(video: VideoReader, advance: Callable[[int], object]) -> Iterator[np.ndarray]:
    for frames in video:
        yield frames
        advance(len(frames))


def _bytes_on_disk(source: Path) -> int:
    """Of a file, or of the files of a folder; 0 if there is none, which is an error when the item runs."""
    try:
        files = list(source.iterdir()) if source.is_dir() else [source]
        return sum(os.path.getsize(file) for file in files)
    except OSError:
        return 0
