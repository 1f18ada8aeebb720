"""A decode to a file."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mlx.core as mx

from ..errors import LatentsError, PlanError
from ..frame_rate import Rate, parse_fps
from ..planning.plan import DecodePlan
from ..video import check_output, check_output_options, open_sink
from ..video.sink import SinkOptions
from .chunk_stream import arrays_released
from .decode_run import DecodeStream
from .latent_sources import LatentInput, is_whole
from .postprocess import FrameChunk, write_levels
from .progress import Progress, show_progress
from .run import peek


@dataclass(frozen=True)
class DecodeReport:
    """What `decode --json` prints, but for the networks.

    Attributes:
        output: the file, or the folder.
        frames: how many were written.
        fps: frames per second.
        seconds: the time from the first latents to the finished file.
        first_frame_seconds: the time to the first frames.
        peak_memory_bytes: `mx.get_peak_memory()`, so since MLX's count was last reset.
        plan: what was run; None for latents that arrived without one.
    """

    output: str
    frames: int
    width: int
    height: int
    fps: Fraction
    seconds: float
    first_frame_seconds: float
    peak_memory_bytes: int
    plan: DecodePlan | None

    def as_dict(self) -> dict[str, Any]:
        """JSON-serializable, with the keys of `decode --json`."""
        plan = None if self.plan is None else self.plan.as_dict()
        return {**vars(self), "fps": float(self.fps), "plan": plan}


@dataclass(frozen=True)
class FileDecode:
    """Decodes latents to a file; see `VideoVAE.decode_to_file`. `make_plan` and `stream` are those of the VAE."""

    make_plan: Callable[..., DecodePlan]
    stream: Callable[..., DecodeStream]
    path: str | os.PathLike
    fps: Rate
    output: SinkOptions

    def run(
        self, latents: LatentInput, plan: DecodePlan | None, memory_budget: str | int | None, progress: Progress
    ) -> DecodeReport:
        start, bit_depth = time.perf_counter(), self.output.bit_depth
        check_output_options(self.path, self.output, fps=self.fps)
        video: dict[str, Any] = {"fps": self.fps, "options": self.output}
        if plan is None and is_whole(latents):
            plan = self.make_plan(latents.shape, memory_budget=memory_budget, bit_depth=bit_depth)
        elif memory_budget is not None:
            raise PlanError("a memory budget goes with whole latents, and replaces a plan; leave it out.")
        if plan is not None and is_whole(latents):
            video |= {"size": plan.frame_size, "num_frames": plan.num_frames}
            check_output(self.path, **video)
        first_frame, num_frames = 0.0, 0

        def counted(chunk: FrameChunk) -> FrameChunk:
            nonlocal first_frame, num_frames
            first_frame = first_frame or time.perf_counter() - start
            num_frames += chunk.frames.shape[1]
            return chunk

        with arrays_released(), self.stream(latents, plan, bit_depth=bit_depth) as stream:
            chunks: Iterable[FrameChunk] = stream
            if "size" not in video:
                first, chunks = peek(stream, "there are no latents to decode.")
                batch, _, height, width, _ = first.frames.shape
                video["size"] = width, height
                del first  # its buffer is free when it is written
            else:
                batch = plan.latent_shape.batch if plan else 1
            if batch > 1:
                raise LatentsError(f"{self.path}: is one video, and these latents are {batch}; write each.")
            total = video.get("num_frames")
            shown = show_progress(map(counted, chunks), progress, total, name=os.fspath(self.path))
            with open_sink(self.path, **video) as sink:
                write_levels(shown, sink.write, bit_depth)
        width, height = video["size"]
        seconds, peak = time.perf_counter() - start, mx.get_peak_memory()
        rate = parse_fps(self.fps)
        return DecodeReport(os.fspath(self.path), num_frames, width, height, rate, seconds, first_frame, peak, plan)
