"""Descriptions of latents of videos and of sound: what the file states, statistics, and what they decode to."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TypeVar, cast

import mlx.core as mx
import numpy as np

from ..backend.mlx_utils import to_float
from ..checkpoint import Checkpoint
from ..errors import LatentsError, excerpt, printable, warn
from ..files import MAX_INSPECTED_VALUES
from ..latents import AudioLatentsFile, LatentsFile, open_latents
from ..latents.files import MappedLatents, read_frames, sampled_frames
from ..latents.keyframes import KeyframesFile, describe_keyframes
from ..latents.statistics import are_unusual, count_unusual, frame_moments, join_moments
from ..models.base import SoundConfig
from ..shapes import DEFAULT_SCALE, Grid, format_size
from ..units import DEFAULT_FPS, format_count
from ..video.audio import SLACK
from .report import Report

FoundT = TypeVar("FoundT")

_NORMALIZED = {
    True: "normalized, as the file states",
    False: "unnormalized, as the file states",
    None: "assumed normalized: the file does not say",
}
_LATENTS_PER_SECOND = 25  # of sound, in every release, as the following
_MISSING_SECONDS = Fraction(3, 100)  # by which sound is shorter than its latents, since the first one makes less


def inspect_latents(
    path: Path, vae: Checkpoint | None, audio_vae: Checkpoint | None, *, tensor: str | None, grid: Grid | None
) -> Report:
    """Describe a latent file. Arguments as `open_latents`; errors as it and `LatentsFile.read`.

    `audio_vae` is the checkpoint of the audio latents in it. A warning if they cannot be read, or its keyframes.

    In JSON, `fps`, `normalized` and `stated` are what the file states, null where it states nothing. `statistics` are
    of the normalized values of as many latent frames as `frames_read`, which are spread over a clip of more than 2**26
    values and are all frames of others; they are null where a single frame has more. The lowest and highest ones are of
    single channels. `video` is one item of the batch: its
    `vae` is null if none was given and the usual `scale` was assumed; without `fps` its `seconds` are at 24 frames per
    second. `audio` are the audio latents beside them, as `inspect_audio_latents` describes them, and `keyframes` those
    of the video, as `inspect_keyframes` does; null without any.
    """
    channels, scale = (None, None) if vae is None else (vae.config.latent_channels, vae.config.scale)
    file = open_latents(path, latent_channels=channels, tensor=tensor, grid=grid, scale=scale)
    statistics = None if vae is None else vae.read_statistics()
    if file.normalized is False and statistics is None:
        raise LatentsError(f"{path}: these latents are unnormalized; give -m VAE, whose statistics normalize them.")
    report = Report("latents")
    _add_file(report, file)
    how = _NORMALIZED[file.normalized]
    if file.normalized is False and vae is not None:
        how = f"unnormalized in the file; normalized with {printable(vae.name)}:"
    frames = _frames_to_read(file)
    values = _statistics(file.map(statistics=statistics), frames) if frames else None
    _add_statistics(report, file, how, values, len(frames))
    seconds = _add_video(report, file, vae)
    keyframes = _found(file.find_keyframes)
    report.include("keyframes", None if keyframes is None else inspect_keyframes(keyframes, is_alone=False))
    audio = _found(file.find_audio)
    nested = None if audio is None else inspect_audio_latents(audio, audio_vae, seconds)
    report.include("audio", nested)
    return report


def _found(find: Callable[[], FoundT | None]) -> FoundT | None:
    """What is found beside latents; a warning and None if it cannot be read."""
    try:
        return find()
    except LatentsError as error:
        warn(str(error))
        return None


def _add_file(report: Report, file: LatentsFile) -> None:
    info, (_, channels, frames, rows, columns) = file.info, file.shape
    items = f"{file.shape.batch} x " if file.shape.batch > 1 else ""
    report.add("file", printable(info.source), name=info.source)
    report.add(
        "tensor",
        f"{excerpt(info.tensor)}, {info.stored_shape} {file.stored_dtype}, read as {file.layout}",
        tensor=info.tensor,
        stored_shape=list(info.stored_shape),
        stored_dtype=file.stored_dtype,
        layout=file.layout,
    )
    report.add(
        "latents",
        f"{items}{channels} channels, {frames} x {rows} x {columns} (frames x rows x columns)",
        shape=list(file.shape),
        fps=None if info.fps is None else float(info.fps),
        normalized=file.normalized,
        stated={"frames": info.num_frames, "width": info.width, "height": info.height},
    )


def _frames_to_read(file: LatentsFile) -> list[int]:
    """The latent frames that the statistics are of: all, some of a very long clip, none of very large frames."""
    frames = file.shape.frames
    return sampled_frames(frames, MAX_INSPECTED_VALUES * frames // math.prod(file.shape))


def _add_statistics(
    report: Report, file: LatentsFile, normalized: str, found: tuple[dict[str, float], bool] | None, frames_read: int
) -> None:
    frames, channels = file.shape.frames, file.shape.channels
    if found is None:
        report.add("values", f"{normalized}; not read, since a frame has too many", statistics=None, frames_read=0)
        return
    values, is_unusual = found
    part = f"of {frames_read:,} of {frames:,} latent frames, spread over the clip"
    unusual = values["channels_far_from_1"]
    hint = ": perhaps not normalized, or a plain, still clip" if is_unusual else ""
    lines = (normalized, *[part] * (frames_read < frames), _describe(values))
    report.add("values", *lines, statistics=values, frames_read=frames_read)
    report.add(
        "channel",
        f"means from {values['lowest_channel_mean']:.2f} to {values['highest_channel_mean']:.2f}, "
        f"std from {values['lowest_channel_std']:.2f} to {values['highest_channel_std']:.2f}",
        f"{unusual} of {channels} channels have a std far from 1{hint}",
    )


def _add_video(report: Report, file: LatentsFile, vae: Checkpoint | None) -> float:
    """Add the video, and return its seconds."""
    info, scale = file.info, DEFAULT_SCALE if vae is None else vae.config.scale
    fps = info.fps or DEFAULT_FPS
    video = frames, height, width = scale.video_grid(file.shape.grid)
    seconds = float(frames / fps)
    items = f"{file.shape.batch} x " if file.shape.batch > 1 else ""
    rate = f"{float(fps):.5g} fps" if info.fps else f"{float(fps):g} fps, as the file has no rate"
    cell = f"{scale.time} frames of {format_size(scale.width, scale.height)} pixels a cell"
    origin = f"with {printable(vae.name)}: {cell}" if vae else f"at the usual scale, {cell}; -m VAE to be sure"
    stated = (info.num_frames, info.height, info.width)
    differs = None not in stated and stated != video
    report.add(
        "video",
        f"{items}{format_count(frames, 'frame')} of {format_size(width, height)}, {seconds:.2f} s at {rate}",
        origin,
        *[f"the file states {info.num_frames} frames of {info.width}x{info.height}"] * differs,
        video={
            "frames": frames,
            "width": width,
            "height": height,
            "seconds": seconds,
            "scale": scale._asdict(),
            "vae": vae and vae.name,
        },
    )
    return seconds


def _describe(values: dict[str, float]) -> str:
    return (
        f"mean {values['mean']:.3f}, std {values['std']:.3f}, all finite, "
        f"from {values['min']:.2f} to {values['max']:.2f}"
    )


def _statistics(latents: MappedLatents, numbers: Sequence[int]) -> tuple[dict[str, float], bool]:
    """Statistics of some frames, and the extremes of those of single channels; and whether these are unusual.

    One frame is read at a time.
    """
    lows, highs, moments = [], [], []
    for values in read_frames(latents, numbers):
        lows.append(to_float(values.min()))
        highs.append(to_float(values.max()))
        moments.append(frame_moments(values))
    means, stds = join_moments(moments)
    statistics = {
        "mean": float(means.mean()),
        "std": float(np.sqrt((stds**2).mean() + means.var())),
        "min": min(lows),
        "max": max(highs),
        "lowest_channel_mean": float(means.min()),
        "highest_channel_mean": float(means.max()),
        "lowest_channel_std": float(stds.min()),
        "highest_channel_std": float(stds.max()),
        "channels_far_from_1": count_unusual(stds),
    }
    return statistics, are_unusual(stds, math.prod(latents.shape) // latents.shape.channels)


def inspect_keyframes(file: KeyframesFile, *, is_alone: bool) -> Report:
    """Describe keyframes, of which no value is read. `is_alone` is whether no latents are in the same file.

    In JSON, `frames` are the frame numbers, and `normalized` is null where the file does not state it.
    """
    report, (batch, channels, _, rows, columns) = Report("keyframes"), file.shape
    items = f"{batch} x " if batch > 1 else ""
    of_each = f"{channels} channels, {rows} x {columns} (rows x columns), {file.stored_dtype}"
    report.add("file", *[printable(file.source)] * is_alone, name=file.source)
    report.add(
        "stills",
        f"{items}{describe_keyframes(file.frames)}",
        *[of_each, _NORMALIZED[file.normalized]] * is_alone,
        frames=list(file.frames),
        shape=list(file.shape),
        stored_dtype=file.stored_dtype,
        normalized=file.normalized,
    )
    return report


def inspect_audio_latents(file: AudioLatentsFile, vae: Checkpoint | None, video_seconds: float | None = None) -> Report:
    """Describe audio latents. `vae` is the checkpoint that decodes them, if it is known.

    `video_seconds` is the length of the video that is in the same file; None for sound alone.

    In JSON, `normalized` is null where the file does not state it. `statistics` are of all values, as they are stored.
    `sound` is one item of the batch: without the `vae` of sound, the length is that of the published releases, and
    `samples` and `sample_rate` are null.
    """
    seconds = float(Fraction(file.length, _LATENTS_PER_SECOND) - _MISSING_SECONDS)
    samples, rate = None, None
    origin = f"at the usual {_LATENTS_PER_SECOND} latents per second; --audio-model AUDIO to be sure"
    if vae is not None:
        config = cast(SoundConfig, vae.config)
        samples, rate = config.num_samples(file.length), config.sample_rate
        seconds = samples / rate
        origin = f"with {printable(vae.name)}: {samples} samples at {rate} Hz"
    array = file.read_stored().astype(mx.float32)
    functions = {"mean": mx.mean, "std": mx.std, "min": mx.min, "max": mx.max}
    values = {name: to_float(function(array)) for name, function in functions.items()}
    report = Report("audio latents")
    report.add("file", *[printable(file.source)] * (video_seconds is None), name=file.source)
    report.add(
        "audio",
        f"{excerpt(file.tensor)}, {file.stored_shape} {file.stored_dtype}, read as {file.layout}",
        _NORMALIZED[file.normalized],
        _describe(values),
        tensor=file.tensor,
        stored_shape=list(file.stored_shape),
        stored_dtype=file.stored_dtype,
        layout=file.layout,
        batch=file.batch,
        latents=file.length,
        normalized=file.normalized,
        statistics=values,
    )
    items = f"{file.batch} x " if file.batch > 1 else ""
    report.add(
        "sound",
        f"{items}{format_count(file.length, 'latent')}, {seconds:.2f} s{_compare(seconds, video_seconds)}",
        origin,
        sound={"seconds": seconds, "samples": samples, "sample_rate": rate, "vae": vae and vae.name},
    )
    return report


def _compare(seconds: float, video_seconds: float | None) -> str:
    """Whether sound ends before or after its video."""
    if video_seconds is None:
        return ""
    difference = seconds - video_seconds
    how = "after" if difference > 0 else "before"
    limit = "" if abs(difference) <= SLACK else f"; a decode fills or cuts at most {float(SLACK):g} s"
    return f", which ends {abs(difference):.2f} s {how} the video{limit}"
