"""A decode to a file."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, cast

import mlx.core as mx

from ..errors import LatentsError, PlanError, WriterError, check_is_path
from ..planning.options import BitDepth
from ..planning.plan import DecodePlan
from ..units import Rate, parse_fps
from ..video import add_metadata, check_output, check_output_options, open_sink, output_files
from ..video.frame_format import FrameOutput, FrameStep, common_format, frame_format
from ..video.sink import SinkOptions
from .decode_run import DecodeStream
from .hdr_frames import HDR, choose_hdr
from .postprocess import FrameChunk, write_chunk
from .progress import Progress, show_progress
from .run import peek


@dataclass(frozen=True)
class DecodeReport:
    """What `decode --json` prints, but for the networks."""

    output: str  # the file, or the folder
    frames: int  # that were written
    width: int
    height: int
    fps: Fraction
    sample_rate: int | None  # of sound that was decoded with it
    seconds: float  # from the first latents to the finished file
    first_frame_seconds: float
    one_color: bool  # whether every frame is of one color
    peak_memory_bytes: int  # `mx.get_peak_memory()`, so since MLX's count was last reset
    plan: DecodePlan | None  # what was run; None for latents that arrived without one

    @property
    def keyframes(self) -> tuple[int, ...]:
        """The frame numbers of those that were seen."""
        return self.plan.keyframes if self.plan else ()

    def as_dict(self) -> dict[str, Any]:
        """JSON-serializable, with the keys of `decode --json`."""
        plan = None if self.plan is None else self.plan.as_dict()
        return {**vars(self), "fps": float(self.fps), "keyframes": list(self.keyframes), "plan": plan}


@dataclass
class FileDecode:
    """Writes a decode to a file; see `VideoVAE.decode_to_file`. A `WriterError` for options that it cannot have."""

    path: str | os.PathLike
    fps: Rate
    output: SinkOptions
    start: float = field(default_factory=time.perf_counter)
    video: dict[str, Any] = field(default_factory=dict)
    files: dict[str, SinkOptions] = field(init=False)

    def __post_init__(self) -> None:
        check_is_path(self.path, WriterError)
        self.files = output_files(os.fspath(self.path), self.output)
        for file, options in self.files.items():
            check_output_options(file, options, fps=self.fps)
            self.files[file] = add_metadata(file, options)

    @property
    def frames(self) -> tuple[FrameOutput, ...]:
        """Those of all files."""
        return tuple(options.frames for options in self.files.values())

    @property
    def bit_depth(self) -> BitDepth | None:
        """That of levels to which the stream can convert frames."""
        frames = common_format(self.frames)
        return None if frames is None else cast(BitDepth, frames.bit_depth)

    def check(self, plan: DecodePlan | None) -> None:
        """Raise what writing would raise, for the frames of a plan. Those of latents that arrive are not known yet."""
        if plan is None:
            return
        if plan.format is not None and plan.format != common_format(self.frames):
            raise PlanError(f"{self.path}: the plan was made for other frames; plan with outputs=, or leave it out.")
        self.video = {"size": plan.frame_size, "num_frames": plan.num_frames}
        for file, options in self.files.items():
            check_output(file, fps=self.fps, options=options, **self.video)

    def write(self, stream: DecodeStream, plan: DecodePlan | None, progress: Progress) -> DecodeReport:
        """Write all chunks."""
        chunks: Iterable[FrameChunk] = stream
        batch = plan.latent_shape.batch if plan else 1
        if not self.video:
            first, chunks = peek(stream, "there are no latents to decode.")
            batch, _, height, width, _ = first.frames.shape
            self.video["size"] = width, height
            del first  # its buffer is free when it is written
        if batch > 1:
            raise LatentsError(f"{self.path}: is one video, and these latents are {batch}; write each.")
        shown = show_progress(chunks, progress, self.video.get("num_frames"), name=os.fspath(self.path))
        written = write_files(shown, self.files, self.start, fps=self.fps, **self.video)
        width, height = self.video["size"]
        return DecodeReport(
            output=written.new_names.get(os.fspath(self.path), os.fspath(self.path)),
            frames=written.frames,
            width=width,
            height=height,
            fps=parse_fps(self.fps),
            sample_rate=getattr(self.output.audio, "sample_rate", None),
            seconds=time.perf_counter() - self.start,
            first_frame_seconds=written.first_frame_seconds,
            one_color=written.is_one_color,
            peak_memory_bytes=mx.get_peak_memory(),
            plan=plan,
        )


class Written(NamedTuple):
    """What was written of one decode."""

    frames: int
    first_frame_seconds: float  # from the start of the decode
    is_one_color: bool  # each frame, on its own
    new_names: dict[str, str]  # of files whose name another program took meanwhile, by that name


def write_files(chunks: Iterable[FrameChunk], files: Mapping[str, SinkOptions], start: float, **video: Any) -> Written:
    """Write chunks to files.

    `start` is when the decode began, by `time.perf_counter`. `video` are further arguments of `open_sink`. Without
    files, as on all ranks but the first, nothing is written.
    """
    num_frames, first_frame, is_one_color = 0, 0.0, True
    with ExitStack() as stack:  # which closes a contact sheet after its video, and so only beside a whole one
        sinks, given = {}, {}
        for file, options in files.items():
            sink = stack.enter_context(open_sink(file, options=options, **video))
            sinks[sink], given[sink] = options.frames, (file, sink.name)
        for chunk in chunks:
            write_chunk(chunk, sinks)
            is_one_color = is_one_color and chunk.is_plain()
            first_frame = first_frame or time.perf_counter() - start
            num_frames += chunk.frames.shape[1]
    names = {file: sink.name for sink, (file, name) in given.items() if sink.name != name}
    return Written(num_frames, first_frame, is_one_color, names)


def open_file_decode(
    path: str | os.PathLike,
    fps: Rate,
    given: Mapping[str, Any],
    bit_depth: BitDepth,
    steps: Sequence[FrameStep],
    hdr: HDR,
    dtype: mx.Dtype,
) -> FileDecode:
    """The decode to a file of a VAE with a dtype; `given` are other `SinkOptions`. Nothing is written yet."""
    frames = FrameOutput(frame_format(bit_depth, WriterError, str(path)), tuple(steps))
    return FileDecode(path, fps, choose_hdr(SinkOptions(frames=frames, **given), hdr, dtype))
