"""Encodes one video: opens it, plans, and writes its latents."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..distributed.ranks import Work
from ..errors import LatentsError
from ..files.atomic import check_absent
from ..files.opening import sample_path
from ..latents import check_latents_name, check_latents_target, save_latents
from ..models.specs import LONG_CLIP
from ..planning.options import PlanOptions
from ..planning.plan import EncodePlan
from ..planning.planner import plan_encode
from ..shapes import Size
from ..video import Fit, VideoReader
from .inputs import Item
from .job import Advance, LazyVAE, Task
from .outputs import all_exist, make_folder


@dataclass(frozen=True)
class EncodeSettings:
    """What is wanted of an encode. `size`, `frames` and `fps` override what a table says about an item."""

    size: Size | None
    resize: bool
    crop: bool
    frames: int | None
    fps: Fraction | None
    pad: bool
    plan: PlanOptions


class EncodeTask(Task):
    """A video. Several ranks share its rows. It is opened late, since that takes a process."""

    plan: EncodePlan

    def __init__(self, settings: EncodeSettings, vae: LazyVAE, item: Item) -> None:
        super().__init__(vae, item)
        self._settings = settings
        pixels = prod(item.size) * (item.max_frames or 0) if item.size else 0  # if a table states them
        item.cost = pixels or _bytes_on_disk(Path(item.source))
        if item.output is not None:
            check_latents_name(item.output)
            if vae.job.no_overwrite:
                check_absent(item.output)
            item.outputs = [item.output]
            item.is_skipped = vae.job.skip_existing and all_exist(item.outputs)

    @contextmanager
    def open(self) -> Iterator[None]:
        settings, item = self._settings, self._item
        size = settings.size or item.size
        fit = Fit.RESIZE if settings.resize or size else Fit.EXACT
        with VideoReader(
            item.source,
            size=size,
            fit=Fit.CROP if settings.crop else fit,
            multiple=self._vae.checkpoint.config.spatial_scale,
            max_frames=settings.frames or item.max_frames,
            fps=settings.fps or item.fps,
        ) as self._video:
            item.num_frames, self.plan = self._video.num_frames, self._make_plan()
            yield

    def describe(self) -> dict[str, Any]:
        video = self._video
        return {"the videos": [video.size, video.num_frames, str(video.fps)], "the plans": self.plan.as_dict()}

    def sample(self) -> dict[str, Any]:
        return {"the contents of the videos": sample_path(Path(self._item.source))}

    def run(self, advance: Advance) -> None:
        video, ranks, (output,) = self._video, self._vae.ranks, self._item.outputs
        if self._vae.job.is_many:
            make_folder(output)
        if ranks.is_first:
            check_latents_target(output, fps=video.fps)
        vae = self._vae.loaded
        start = time.perf_counter()
        stream = vae.encode_stream(_counted(video, advance), self.plan, pad=self._settings.pad, group=ranks.group)
        parts = list(stream)
        if not parts:
            raise LatentsError(f"{self._item.source}: has no frames.")
        latents = mx.concatenate(parts, axis=2)
        num_frames, height, width = vae.config.scale.video_grid(latents.shape[2:])
        if ranks.is_first:
            save_latents(
                output,
                latents,
                fps=video.fps,
                num_frames=num_frames,
                height=height,
                width=width,
                overwrite=not self._vae.job.no_overwrite,
            )
        self._report(
            Work.ROWS,
            frames=num_frames,
            fps=video.fps,
            seconds=time.perf_counter() - start,
            sent_bytes=stream.sent_bytes,
            remark=f"latents {latents.shape}",
            headline=_describe_change(video.source_fps, video.fps),
            source_fps=None if video.source_fps is None else float(video.source_fps),
            latent_shape=latents.shape,
        )

    def _make_plan(self) -> EncodePlan:
        """Plan the encode. A video may have an unknown number of frames until all of them are read."""
        (width, height), spec, ranks = self._video.size, self._vae.checkpoint.spec("encoder"), self._vae.ranks
        shape = (self._video.num_frames or 1 + LONG_CLIP * spec.scale.time, height, width, 3)
        options = replace(self._settings.plan, ranks=ranks.size if ranks.choose(1) is Work.ROWS else 1)
        return plan_encode(spec, shape, self._vae.machine, pad=self._settings.pad, **vars(options))


def _describe_change(before: Fraction | None, after: Fraction | None) -> str | None:
    """A line on another frame rate."""
    if not before or not after or before == after:
        return None
    change = "repeating" if after > before else "dropping"
    return f"Frame rate: {float(before):.6g} to {float(after):.6g} fps, {change} frames"


def _counted(video: VideoReader, advance: Advance) -> Iterator[np.ndarray]:
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
