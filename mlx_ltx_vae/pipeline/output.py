"""Files of a decode: their names and options, the checks before it, and its report."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from ..errors import LatentsError
from ..files import make_folder
from ..frame_format import FrameOutput
from ..options import OutputOptions
from ..planning.plan import DecodePlan
from ..shapes import LatentShape
from ..video import Sink
from ..video.audio import Audio
from ..video.sink_table import CheckedOutput, OutputFile, find_all_outputs, find_still_ending, name_others
from .execution import peek
from .frames import write_chunk
from .progress import Progress, open_bar

if TYPE_CHECKING:
    from .decode import DecodeStream

_MAX_BATCH = 10_000


@dataclass(frozen=True)
class DecodeReport:
    """Report of a decode to a file, or to one for each video of a batch: of `decode --json`, except the networks.

    Attributes:
        output: the file or the folder, or for a batch of several videos a list of them.
        frames: the number of frames that were written.
        sample_rate: of audio that was decoded with the video.
        seconds: from the first latents to the finished file.
        one_color: whether every frame has only one color.
        peak_memory_bytes: `mx.get_peak_memory()`, counted since `mx.reset_peak_memory()`.
        plan: `None` if latents arrived without a plan.
    """

    output: str | list[str]
    frames: int
    width: int
    height: int
    fps: Fraction
    sample_rate: int | None
    seconds: float
    first_frame_seconds: float
    one_color: bool
    peak_memory_bytes: int
    plan: DecodePlan | None

    @property
    def keyframes(self) -> tuple[int, ...]:
        """Frame numbers of the keyframes that the network saw."""
        return self.plan.keyframes if self.plan else ()

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable dictionary with the keys of `decode --json`."""
        values = {**vars(self), "fps": float(self.fps), "keyframes": list(self.keyframes)}
        return values | {"plan": None if self.plan is None else self.plan.as_dict()}


def join_reports(reports: Sequence[DecodeReport]) -> DecodeReport:
    """Return the report of several videos, decoded one after another."""
    names = [
        name for report in reports for name in ([report.output] if isinstance(report.output, str) else report.output)
    ]
    return replace(
        reports[0],
        output=names[0] if len(names) == 1 else names,
        frames=sum(report.frames for report in reports),
        seconds=sum(report.seconds for report in reports),
        one_color=all(report.one_color for report in reports),
        peak_memory_bytes=max(report.peak_memory_bytes for report in reports),
    )


class DecodeOutput:
    """Files that the videos of one decode are written to.

    Attributes:
        names: the output of each video.
        audio_files: files whose audio is added.
        files: all files of each video by their names. Their options have been checked.
        other_names: files besides the outputs, by their kind in reports.
        audio: returns the audio of the video with an index, for the files that take audio; `None` means the audio in
            their options.
    """

    def __init__(
        self,
        path: str,
        options: OutputOptions,
        fps: Fraction,
        known_files: Mapping[str, OutputFile],
        shape: LatentShape | None,
    ) -> None:
        """Name the files of a batch of videos, which are stills if their latents of this shape have only one frame.

        A shape of `None` is one video. `known_files` are those of an output whose options have been checked.
        """
        batch, is_still = (1, False) if shape is None else (shape.batch, shape.frames == 1)
        still = find_still_ending(path, options) if is_still and not options.contact_sheet else None
        self.fps, self.are_stills = fps, batch > 1 and still is not None
        self.names = name_outputs(path, batch, still)
        self.files = find_all_outputs(self.names, options, fps, known_files)
        self._checked: dict[str, CheckedOutput] = {}
        self.other_names = name_others(self.names, self.files)
        self.frames: tuple[FrameOutput, ...] = tuple(file.options.frames for file in self.files[0].values())
        self.audio: Callable[[int], Audio] | None = None
        self.audio_files = [options.audio] if isinstance(options.audio, (str, os.PathLike)) else []
        self._sample_rate = options.sample_rate or getattr(options.audio, "sample_rate", None)

    def check(
        self,
        plan: DecodePlan,
        videos: Iterable[int],
        *,
        entries: Mapping[str, str] | None,
        makes_folders: bool,
        overwrite: bool | None,
    ) -> set[tuple[str, str]]:
        """Raise the errors of writing some videos, without creating anything.

        Metadata `entries` are added to files that keep them, and the entries that some file keeps are returned.
        `overwrite` replaces the one of the options.
        """
        kept: set[tuple[str, str]] = set()
        for index in videos:
            for name, file in self.files[index].items():
                if overwrite is not None:
                    file = replace(file, options=replace(file.options, overwrite=overwrite))
                file = file.with_metadata(entries or {})
                kept |= (entries or {}).items() & file.options.metadata.items()
                self._checked[name] = file.check(
                    size=file.options.frames.resize(plan.frame_size),
                    fps=self.fps,
                    num_frames=plan.num_frames,
                    makes_folders=makes_folders or self.are_stills,
                )
        return kept

    def write(
        self,
        stream: "DecodeStream",
        plan: DecodePlan | None,
        index: int,
        *,
        is_checked: bool,
        progress: Progress,
    ) -> DecodeReport:
        """Write the frames of a stream to the files of a video, and return the report.

        An error of the frames, or of the audio that is decoded as they are written, removes the files that are not
        complete; those of other videos stay.
        Unless `is_checked`, the size of the video is known with its first frame, and the files are checked then.
        """
        start, chunks = time.perf_counter(), iter(stream)
        if self.are_stills:
            make_folder(self.names[index])
        if plan is None or not is_checked:
            first, chunks = peek(stream, "there are no latents to decode.")
            batch, _, height, width, _ = first.frames.shape
            size, num_frames = (width, height), stream.num_frames
            del first  # its buffer is free when it is written
            if batch > 1:
                raise LatentsError(f"{self.names[0]}: is one video, and these latents are {batch}; write each.")
            for name, file in self.files[index].items():
                file_size = file.options.frames.resize(size)
                self._checked[name] = file.with_metadata().check(size=file_size, fps=self.fps, num_frames=num_frames)
        else:
            size, num_frames = plan.frame_size, plan.num_frames
        written, first_seconds, is_one_color = 0, 0.0, True
        with ExitStack() as stack:  # closes a contact sheet after its video, so that only a complete video has one
            bar = stack.enter_context(open_bar(progress, num_frames, name=self.names[index]))
            sinks: dict[Sink, FrameOutput] = {}
            file_names = {}
            for name, file in self.files[index].items():
                has_audio = self.audio is not None and file.options.audio is not None
                sink = self._checked[name].open(self.audio(index) if self.audio and has_audio else file.options.audio)
                sinks[stack.enter_context(sink)], file_names[sink] = file.options.frames, (name, sink.name)
            for chunk in bar.follow(chunks, stream.state):
                write_chunk(chunk, sinks)
                is_one_color = is_one_color and chunk.is_plain()
                first_seconds = first_seconds or time.perf_counter() - start
                written += chunk.frames.shape[1]
            bar.enter("writing", lambda: max((sink.num_waiting for sink in sinks), default=0))
        self.rename({file: sink.name for sink, (file, name) in file_names.items() if sink.name != name})
        width, height = self.frames[0].resize(size)
        return DecodeReport(
            output=self.names[index],
            frames=written,
            width=width,
            height=height,
            fps=self.fps,
            sample_rate=self._sample_rate,
            seconds=time.perf_counter() - start,
            first_frame_seconds=first_seconds,
            one_color=is_one_color,
            peak_memory_bytes=mx.get_peak_memory(),
            plan=plan,
        )

    def rename(self, names: Mapping[str, str]) -> None:
        """Replace names by the ones that files got, since another program used theirs meanwhile."""
        self.names = [names.get(name, name) for name in self.names]
        self.other_names = {kind: [names.get(name, name) for name in paths] for kind, paths in self.other_names.items()}


def name_outputs(output: str, batch: int, still: str | None = None) -> list[str]:
    """Return the outputs of a batch of videos: clip.mp4 -> clip-0.mp4; out/ -> out-0/; f/%05d.png -> f-0/%05d.png.

    `still` is the ending of stills, for a batch with one frame each: out/ -> out/00000.png; f/%05d.png -> f/00000.png.
    """
    if batch == 1:
        return [output]
    if batch > _MAX_BATCH:
        raise LatentsError(f"the file has {batch} videos, and at most {_MAX_BATCH} are decoded at once; split it.")
    if output == "-":
        raise LatentsError(f"the file has {batch} videos, and standard output takes one; name an output file.")
    path = Path(output)
    is_folder = output.endswith("/") or os.path.isdir(path)
    if not still and (path if is_folder else path.parent).name in ("", "..") and (is_folder or "%" in path.name):
        raise LatentsError(f"{output}: has no name for the folders of {batch} videos; name a folder, such as videos/.")
    if still:
        pattern = path / f"%05d{still}" if is_folder else path
        return [str(pattern.with_name(pattern.name % item)) for item in range(batch)]
    if is_folder:
        return [f"{path}-{item}/" for item in range(batch)]
    if "%" in path.name:
        return [str(path.parent.with_name(f"{path.parent.name}-{item}") / path.name) for item in range(batch)]
    return [str(path.with_name(f"{path.stem}-{item}{path.suffix}")) for item in range(batch)]
