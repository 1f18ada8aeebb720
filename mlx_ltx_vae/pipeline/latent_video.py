"""Latent files as the videos of an encode: their frames are decoded as they are read, and never written."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import mlx.core as mx

from ..errors import LatentsError, PlanError
from ..files import START_BYTES, open_file
from ..latents.formats import find_reader
from ..planning.plan import DecodePlan
from .decode import DecodePipeline, DecodeStream
from .inputs import ClipInput, LatentReader
from .prepare import choose_frames


def is_latent_file(path: str | os.PathLike) -> bool:
    """Return whether a path is a file in one of the formats of latents, by its content."""
    with suppress(OSError, ValueError):
        if os.path.isfile(path):
            with open_file(path) as file:
                return find_reader(file.read(START_BYTES)) is not None
    return False


class LatentVideo(Iterator[mx.array], AbstractContextManager["LatentVideo"]):
    """Frames of a latent file, decoded exactly: arrays (n, H, W, 3) in [-1, 1], in the decoder's dtype.

    Its attributes are those of a `VideoReader`, and `plan`, the plan of the decode.
    """

    def __init__(
        self,
        pipeline: DecodePipeline,
        reader: LatentReader,
        path: str,
        *,
        frames: slice | None = None,
        memory_budget: int | None = None,
    ) -> None:
        """Open a file and plan its decode, within half of the budget, in bytes, if there is such a plan.

        Raises:
            LatentsError: if the file cannot be read, or has several videos.
            PlanError: if no plan fits the budget, or the video has none of the frames.
        """
        self.name, self.path = path, Path(path)
        latents = ClipInput(reader, reader.open(path))
        if latents.shape.batch > 1:
            problem = f"has {latents.shape.batch} videos, and one is encoded"
            raise LatentsError(f"{path}: {problem}; save each to a file of its own.")
        num_frames = latents.num_frames(reader.spec.out_grid) - latents.num_padding()
        chosen = choose_frames(frames, latents.fps, num_frames, path) or (0, num_frames)
        self._pipeline, self._latents = pipeline, latents
        self._stream: DecodeStream | None = None
        self.fps = self.source_fps = latents.fps
        self.start = Fraction(chosen[0]) / self.fps if self.fps else Fraction()
        self.plan = self._make_plan(chosen, memory_budget)
        self.num_frames: int | None = self.plan.num_frames
        self.source_size = self.scaled_size = self.size = self.plan.frame_size

    @property
    def input_bytes(self) -> int:
        """Bytes that the decode takes while its frames are encoded, without the weights."""
        return self.plan.memory.active - self.plan.memory.weights

    def __next__(self) -> mx.array:
        """Return the next frames."""
        if self._stream is None:
            latents, keyframes = self._latents.open()(0)
            options = replace(self._pipeline.options, keyframes=keyframes)
            self._stream = replace(self._pipeline, options=options).stream(latents, self.plan)
        chunk = next(self._stream)
        chunk.check()
        return chunk.frames[0]

    def close(self) -> None:
        """End the decode."""
        if self._stream is not None:
            self._stream.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make_plan(self, frames: tuple[int, int], memory_budget: int | None) -> DecodePlan:
        def plan(budget: int | None) -> DecodePlan:
            options = replace(self._pipeline.plan_options, mode="exact", frames=frames, memory_budget=budget)
            return self._latents.plan(replace(self._pipeline, plan_options=options), self.fps or Fraction(1))

        if memory_budget is None:
            return plan(None)
        try:
            return plan(memory_budget // 2)
        except PlanError as error:
            if error.least_bytes is None or error.least_bytes > memory_budget:
                raise
            return plan(error.least_bytes)


def to_encoder_input(frames: mx.array) -> mx.array:
    """Return frames (n, H, W, 3) in [-1, 1] as an encoder takes them."""
    return frames.transpose(3, 0, 1, 2)[None]
