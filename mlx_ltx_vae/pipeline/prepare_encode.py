"""Encodes to latent files that are decided before they run: their frames, windows, audio, outputs and plan."""

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import ceil
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import numpy as np

from ..checkpoint import VAESource
from ..codec_table import LATER_STILL_CRF, STILL_CRF
from ..errors import PlanError, ReaderError, option, quote, warn
from ..files import PartFolder, check_empty_folder, check_file, check_folder, expand_path, part_folder
from ..latents import LatentsWriter, Layout, check_latents_name, is_for_comfyui
from ..latents.metadata import LatentSpace
from ..model_table import Kind, list_names, models_for
from ..networks.specs import LONG_CLIP
from ..options import PLAN_DEFAULTS, HDRInput, PlanOptions
from ..planning.film import DEFAULT_CARRY, check_carry
from ..planning.plan import EncodePlan, Plan
from ..shapes import LatentShape, ScaleFactors, Size, is_count
from ..units import format_are, format_count, format_range
from ..video import ExrReader, Fit, VideoReader
from ..video.audio import AudioReader, find_audio
from .audio import every_chunk
from .clip_audio import ClipAudioVAE
from .encode import EncodePipeline, cut_windows
from .hdr_frames import to_encoder_pixels
from .latent_video import LatentVideo, to_encoder_input
from .prepare import count_frames, has_seconds
from .progress import FrameBar, Progress, open_bar


@dataclass(frozen=True)
class EncodeSettings:
    """Settings of the encode of a video to a latent file, as for `VideoVAE.prepare_encode`.

    Attributes:
        plan: options of the plan.
        carry: frames that windows share. `None` means 25.
        max_frames: the largest number of frames, without `frames`.
        layout: of a trainer's file. `None` means a file of this package.
    """

    plan: PlanOptions = PLAN_DEFAULTS
    pad: bool = False
    windows: int | None = None
    carry: int | None = None
    size: Size | None = None
    fit: Fit | None = None
    fps: Fraction | None = None
    matrix: str | None = None
    as_stored: bool = False
    frames: slice | None = None
    max_frames: int | None = None
    compress: float | Literal["auto"] | None = None
    hdr: HDRInput | None = None
    audio: ClipAudioVAE | None = None
    layout: Layout | None = None
    overwrite: bool = True

    def check(self, scale: ScaleFactors) -> int:
        """Raise a `PlanError` for windows that this VAE cannot encode. Returns the frames that windows share."""
        if self.layout is not None and (self.windows or self.audio):
            name, what = ("windows", "a film of windows") if self.windows else ("audio-model", "the audio")
            problem = f"{self.layout.name} reads one clip without audio from a file, and not {what}"
            raise PlanError(f"{problem}; leave out {option(f'{name}='.replace('-model', ''), f'--{name}')}.")
        if self.windows is None:
            if self.carry is not None:
                carry_name, windows_name = option("carry=", "--carry"), option("windows=", "--windows")
                raise PlanError(f"{carry_name} is for {windows_name}; add it, or leave out {carry_name}.")
            return 0
        carry = DEFAULT_CARRY if self.carry is None else self.carry
        check_carry(scale, carry)
        if not is_count(self.windows, carry + 1) or (self.windows - 1) % scale.time:
            expected = f"1 + {scale.time}*k frames, more than the {carry} that they share"
            way = option("windows=", "--windows")
            raise PlanError(f"windows have {expected}, not {quote(self.windows)}; correct {way}.")
        return carry

    def check_latents(self, name: str) -> None:
        """Raise a `PlanError` for settings that a latent file does not take, whose frames have a size and a rate."""
        for key in ("size", "fit", "fps", "matrix", "as_stored", "compress", "hdr", "audio"):
            if getattr(self, key) not in (None, False):
                flag = {"fit": "--resize or --crop", "audio": "--audio-model"}.get(key, f"--{key.replace('_', '-')}")
                problem = "has latents, which are decoded as they are, and encoded without audio"
                raise PlanError(f"{name}: {problem}; leave out {option(f'{key}=', flag)}.")

    def check_output(self, output: str, *, makes_folders: bool = False) -> None:
        """Raise a `WriterError` for a file or a folder of windows that cannot be written. Nothing is created.

        With `makes_folders` those above it that are missing can be made.
        """
        if self.windows is None:
            check_latents_name(output, self.layout)
            check_file(Path(output), overwrite=self.overwrite)
        else:
            check_empty_folder(Path(output))
        check_folder(output, Path(output), makes_folders=makes_folders)


def find_range(frames: Any) -> slice | None:
    """Return a caller's frames as a range. Raises a `PlanError` for anything but two whole numbers in order."""
    if frames is None:
        return None
    is_pair = isinstance(frames, Sequence) and len(frames) == 2 and all(isinstance(bound, Integral) for bound in frames)
    if not is_pair or not (frames[0] < frames[1] or frames[0] >= 0 > frames[1]):
        raise PlanError(f"frames are the first and one more than the last, such as (24, 48), not {quote(frames)}.")
    return slice(int(frames[0]), int(frames[1]))


@dataclass(frozen=True)
class EncodeReport:
    """Report of an encode: of `encode --json`, except the networks.

    Attributes:
        output: the file, or the folder of windows.
        frames: the number of frames that the latents decode to.
        source_frames: the number of frames that were read.
        source_width, source_height, source_fps: of the video, before it was scaled and converted.
        compress: the CRF at which a still went through H.264, if it did.
        latent_shape: of the first window.
        audio_latent_shape: of the first window, or `None` without audio.
        windows, carry: their number, and the frames that they share, if there are windows.
        peak_memory_bytes: as in a `DecodeReport`.
        latent_frames, audio_latents: their number, in all windows.
        size_steps: what was done to the frames: "scaled", "cropped".
    """

    output: str
    frames: int
    source_frames: int
    width: int
    height: int
    source_width: int
    source_height: int
    fps: Fraction | None
    source_fps: Fraction | None
    compress: float | None
    seconds: float
    latent_shape: LatentShape
    audio_latent_shape: tuple[int, ...] | None
    plan: EncodePlan
    windows: int | None = None
    carry: int | None = None
    peak_memory_bytes: int = 0
    latent_frames: int = 0
    audio_latents: int = 0
    size_steps: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable dictionary with the keys of `encode --json`."""
        values = {**vars(self), "plan": self.plan.as_dict()}
        values |= {name: value and float(value) for name in ("fps", "source_fps") for value in [values[name]]}
        if self.windows is None:
            del values["windows"], values["carry"]
        for name in ("latent_frames", "audio_latents", "size_steps"):
            del values[name]
        return values


class PreparedEncode(AbstractContextManager["PreparedEncode"]):
    """Encode of a video to a latent file that is decided. `run` does it, once.

    The video is open until it has run, or until the end of a with-block.

    Attributes:
        plan: of the video, or of one window.
        output: the file, or the folder of windows.
        num_frames: of the video, approximate; `None` if it is unknown.
    """

    def __init__(
        self,
        pipeline: EncodePipeline,
        source: VAESource,
        space: LatentSpace,
        video: str | os.PathLike,
        output: str | None,
        settings: EncodeSettings,
        open_latents: Callable[..., LatentVideo] | None = None,
    ) -> None:
        """Decide the encode. See `VideoVAE.prepare_encode` for the errors; without an output there is only a plan.

        `open_latents` opens the latent file that the video is, for a range of frames.
        """
        self._pipeline, self._source, self._space, self._settings = pipeline, source, space, settings
        self.output, self._video_name = output, expand_path(video, ReaderError)
        self._carry, self._is_closed = settings.check(pipeline.encoder.spec.scale), False
        is_later = (source.version or (0, 0)) >= (2, 4)
        still_crf = LATER_STILL_CRF if is_later else STILL_CRF
        self._crf = still_crf if settings.compress == "auto" else settings.compress or 0
        self._frames = settings.frames
        self._video = self._open_video() if open_latents is None else self._open_latents(open_latents)
        try:
            self.num_frames = self._video.num_frames
            self.plan = self._make_plan()
        except BaseException:
            self.close()
            raise

    def _open_video(self) -> VideoReader | ExrReader:
        """Open the video at the first frame that is encoded."""
        settings = self._settings
        reader = partial(
            partial(VideoReader, matrix=settings.matrix, as_stored=settings.as_stored, crf=self._crf)
            if settings.hdr is None
            else partial(ExrReader, space=settings.hdr),
            self._video_name,
            size=settings.size,
            fit=(Fit.CROP if settings.size else Fit.EXACT) if settings.fit is None else settings.fit,
            multiple=self._pipeline.encoder.spec.scale.height,
            fps=settings.fps,
        )
        self._frames = self._choose_frames(reader)
        first = self._frames.start if self._frames else 0
        return reader(first_frame=first, max_frames=self._max_frames)

    def _open_latents(self, open_latents: Callable[..., LatentVideo]) -> LatentVideo:
        """Open the latent file, whose frames from the first to the last that is encoded are decoded."""
        settings = self._settings
        settings.check_latents(self._video_name)
        frames = settings.frames
        if frames is None and settings.max_frames is not None:
            frames = slice(0, settings.max_frames)
        return open_latents(frames=frames, memory_budget=settings.plan.memory_budget)

    def close(self) -> None:
        """Close the video. Then the encode cannot run."""
        self._is_closed = True
        self._video.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, progress: Progress = False) -> EncodeReport:
        """Encode the video and write the latents. Returns the report. `progress` is as for `PreparedDecode.run`.

        Raises:
            LTXVAEError: the errors of `VideoVAE.encode` and `VideoReader`, and a `WriterError` for a file that cannot
                be written.
        """
        if self._is_closed:
            problem = "this encode has run or was closed, and an encode runs once"
            raise ReaderError(f"{self._video_name}: {problem}; prepare another one.")
        assert self.output is not None
        video, settings = self._video, self._settings
        to_pixels: Callable[[Any], mx.array] | None = None
        if isinstance(video, LatentVideo):
            to_pixels = to_encoder_input
        elif settings.hdr is not None:
            to_pixels = partial(to_encoder_pixels, meaning=settings.hdr)
        counts, encoded, audio_tracks, num_frames = _Counts(), list[LatentShape](), list[mx.array](), 0
        scale = self._pipeline.encoder.spec.scale
        with ExitStack() as stack:
            stack.callback(self.close)
            bar = stack.enter_context(open_bar(progress, self.num_frames, name=self.output))
            open_file = self._open_output(stack)
            self._pipeline.encoder.get()  # before the clock starts
            bar.enter("encoding")
            start = time.perf_counter()
            for frames in self._cut(map(partial(counts.add_read, bar), video)):
                counts.window, window = 0, map(counts.add_to_window, frames)
                stream = self._pipeline.stream(window if to_pixels is None else map(to_pixels, window), self.plan)
                bar.watch(stream.state if settings.windows is None else None)
                with stream, open_file(len(encoded)) as writer:
                    encoded.append(shape := _write_all(stream, writer))
                    count, height, width = scale.video_grid(shape.grid)
                    first = max(0, num_frames - self._carry)
                    num_frames = first + count
                    audio = self._encode_audio(count, first)
                    audio_tracks += [] if audio is None else [audio]
                    sizes: dict[str, int | None] = {"num_frames": count, "height": height, "width": width}
                    sizes["source_frames"] = counts.window
                    if settings.windows is not None and self._carry < count:  # a single window shares no frames
                        sizes["carry"] = self._carry
                    new_path = writer.complete(fps=video.fps, sizes=sizes, audio=audio, space=self._space)
                    if new_path is not None and settings.windows is None:
                        self.output = str(new_path)
        self._warn_of_missing(counts.video)
        is_scaled, is_cropped = video.scaled_size != video.source_size, video.size != video.scaled_size
        return EncodeReport(
            output=self.output,
            frames=num_frames,
            source_frames=counts.video,
            width=self.plan.width,
            height=self.plan.height,
            source_width=video.source_size[0],
            source_height=video.source_size[1],
            fps=video.fps,
            source_fps=video.source_fps,
            compress=self._crf or None,
            seconds=time.perf_counter() - start,
            latent_shape=encoded[0],
            audio_latent_shape=tuple(audio_tracks[0].shape) if audio_tracks else None,
            plan=self.plan,
            windows=len(encoded) if settings.windows else None,
            carry=self._carry if settings.windows else None,
            peak_memory_bytes=mx.get_peak_memory(),
            latent_frames=sum(shape.frames for shape in encoded),
            audio_latents=sum(latents.shape[2] for latents in audio_tracks),
            size_steps=(*["scaled"] * is_scaled, *["cropped"] * is_cropped),
        )

    def _choose_frames(self, reader: Callable[[], VideoReader | ExrReader]) -> slice | None:
        """Return the frames to encode, counted from the first. A range from the end reads the video twice."""
        frames = self._settings.frames
        if frames is not None and has_seconds(frames):
            with warnings.catch_warnings(), reader() as video:
                warnings.simplefilter("ignore")
                frames = count_frames(frames, video.fps, self._video_name)
        if frames is None or min(frames.start, frames.stop or 0) >= 0:
            return frames
        with warnings.catch_warnings(), reader() as video:
            warnings.simplefilter("ignore")  # the second reading repeats them
            count = sum(map(len, video))
        start, end, _ = frames.indices(count)
        if start >= end:
            problem = f"has {format_count(count, 'frame')}, and none of {format_range(frames)}"
            raise ReaderError(f"{self._video_name}: {problem}; choose frames within 0:{count}.")
        return slice(start, end)

    def _open_output(self, stack: ExitStack) -> Callable[[int], AbstractContextManager[LatentsWriter]]:
        """Open the output, and return a function that opens the file of each window, by its number from 0 on.

        The folder of windows appears when all windows are complete.
        """
        assert self.output is not None
        if self._settings.windows is None:
            # Opened here, so that its errors come first.
            overwrite, layout = self._settings.overwrite, self._settings.layout
            writer = stack.enter_context(LatentsWriter(self.output, overwrite=overwrite, layout=layout))
            return lambda _: nullcontext(writer)
        folder = stack.enter_context(self._open_folder(self.output))
        return lambda number: LatentsWriter(folder.path / f"{number + 1:05d}.safetensors", is_inner=True)

    @contextmanager
    def _open_folder(self, output: str) -> Iterator[PartFolder]:
        """Yield the folder of windows, and then complete the output with the name that it has got."""
        with part_folder(Path(output)) as folder:
            yield folder
        if folder.target != Path(output):
            self.output = os.path.join(folder.target, "")

    def _cut(self, frames: Iterator[np.ndarray]) -> Iterator[Iterator[np.ndarray]]:
        """Return the frames of each window. Without windows, return all frames as one."""
        windows, scale = self._settings.windows, self._pipeline.encoder.spec.scale
        if windows is None:
            return iter([frames])
        can_add_less = self._settings.pad or not self._carry  # than one latent frame
        return cut_windows(frames, windows, self._carry, least=1 if can_add_less else scale.time)

    def _warn_of_missing(self, num_frames: int) -> None:
        """Warn if the video has fewer frames than were asked for. Latents have warned before."""
        requested_frames = self._max_frames
        is_latents = isinstance(self._video, LatentVideo)
        if is_latents or requested_frames is None or num_frames >= requested_frames:
            return
        first = self._frames.start if self._frames else 0
        text = f"the video has {format_count(first + num_frames, 'frame')}"
        if self._frames and first:
            text += f", so of the frames {format_range(self._frames)} only {format_are(num_frames)} there"
        else:
            text += f", not the {requested_frames} that were asked for"
        warn(f"{self._video_name}: {text}.")

    def _plan_audio(self) -> list[Plan]:
        """Return the possible plans of the audio, none without an audio VAE. Warn if that or the audio is missing."""
        vae, path, fps = self._settings.audio, self._video.path, self._video.fps
        if vae is None:
            if self._settings.layout is None and not isinstance(self._video, LatentVideo):
                self._warn_of_audio()
            return []
        if fps is not None and os.path.isfile(path):
            with AudioReader(path) as audio:
                if audio.sample_rate:
                    return every_chunk(partial(vae.plan_encode_with, float(self._planned_frames / fps)))
        warn(f"{self._video.name}: has no audio, so only its pictures are encoded.")
        return []

    def _warn_of_audio(self) -> None:
        """Warn if the video has audio, which is not encoded."""
        with suppress(ReaderError):  # of audio that could not be encoded either
            if os.path.isfile(self._video.path) and find_audio(self._video.path, ReaderError):
                model = next(iter(models_for(next(iter(self._source.generations), None), Kind.AUDIO)), None)
                name = f"AUDIO ({list_names([Kind.AUDIO])}, or a file)" if model is None else model.name
                way = option("audio=AudioVAE", f"--audio-model {name}")
                file = ", into a .safetensors file" if is_for_comfyui(self.output or "") else ""
                warn(f"{self._video.name}: its audio is not encoded; {way} encodes it too{file}.")

    def _encode_audio(self, num_frames: int, first: int) -> mx.array | None:
        """Return the latents of the audio of `num_frames` frames from `first` on, or `None` if no audio is encoded."""
        plan, fps, vae = self.plan.audio, self._video.fps, self._settings.audio
        if not isinstance(plan, EncodePlan) or fps is None or vae is None:
            return None
        per_second = Fraction(vae.config.latents_per_second)
        num_latents = max(1, round(num_frames / fps * per_second))
        with AudioReader(self._video.path) as audio:
            rate = audio.sample_rate
            length = max(round(num_frames * rate / fps), ceil(rate / per_second))
            pieces = audio.cut(max(0, round((self._video.start + first / fps) * rate)), length)
            return vae.encode(pieces, rate, plan)[:, :, :num_latents]

    @property
    def _max_frames(self) -> int | None:
        """Number of frames to encode at most. `None` means all."""
        frames = self._frames
        if frames is None:
            return self._settings.max_frames
        return None if frames.stop is None else frames.stop - frames.start

    @property
    def _planned_frames(self) -> int:
        """Number of frames that are encoded as one clip, the video or a window.

        It is a long clip if the number is not known until all frames are read.
        """
        num_frames = self.num_frames or 1 + LONG_CLIP * self._pipeline.encoder.spec.scale.time
        return min(num_frames, self._settings.windows or num_frames)

    def _make_plan(self) -> EncodePlan:
        width, height = self._video.size
        input_bytes = self._video.input_bytes if isinstance(self._video, LatentVideo) else 0
        options = replace(self._settings.plan, audio=tuple(self._plan_audio()), input_bytes=input_bytes)
        return self._pipeline.make_plan((self._planned_frames, height, width, 3), options)


class _Counts:
    """Counts the frames of a video, and of the window that is encoded, as they are read."""

    video = window = 0

    def add_read(self, bar: FrameBar, frames: np.ndarray) -> np.ndarray:
        self.video += len(frames)
        bar.update(len(frames))
        return frames

    def add_to_window(self, frames: np.ndarray) -> np.ndarray:
        self.window += len(frames)
        return frames


def _write_all(stream: Iterable[mx.array], writer: LatentsWriter) -> LatentShape:
    """Write the latents of a stream. Returns the shape of all latents together."""
    num_latents = 0
    for latents in stream:
        batch, channels, count, height, width = latents.shape
        num_latents += count
        writer.write(latents)
    return LatentShape(batch, channels, num_latents, height, width)
