"""A description of a latent file: what it states, statistics of its values, and the video that it decodes to."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..backend.mlx_utils import to_float
from ..checkpoint import Checkpoint
from ..errors import LatentsError, excerpt, printable
from ..frame_rate import DEFAULT_FPS
from ..latents import LatentsFile, open_latents
from ..latents.mapped import MappedLatents, channel_moments, read_frames
from ..shapes import DEFAULT_SCALE, Grid, ScaleFactors, format_size
from .audio_latents import AudioLatentsReport

# Normalized latents have a standard deviation near 1 in every channel; in a plain or still clip some are smaller.
_MIN_USUAL_STD, _MAX_USUAL_STD = 1 / 3, 3.0


@dataclass(frozen=True)
class LatentsReport:
    """What a latent file is. `print(report)` shows it. `statistics` are of the normalized latents; see `as_dict`."""

    file: LatentsFile
    statistics: dict[str, float]
    vae: Checkpoint | None
    audio: AudioLatentsReport | None  # beside them

    @property
    def scale(self) -> ScaleFactors:
        return DEFAULT_SCALE if self.vae is None else self.vae.config.scale

    @property
    def video_grid(self) -> Grid:
        """(F, H, W) of each video."""
        return self.scale.video_grid(self.file.shape.grid)

    @property
    def seconds(self) -> float:
        """The length of each video, at the file's frame rate or the default one."""
        return float(self.video_grid[0] / (self.file.info.fps or DEFAULT_FPS))

    def as_dict(self) -> dict[str, Any]:
        """The report as a JSON object.

        `fps`, `normalized` and `stated` are what the file states, null where it states nothing. `statistics` are of all
        values; the lowest and highest ones are of single channels. `video` is one item of the batch: its `vae` is null
        if none was given and the usual `scale` was assumed; without `fps` its `seconds` are at 24 frames per second.
        `audio` are the audio latents beside them, as `AudioLatentsReport` describes them; null without any.
        """
        file, info, (frames, height, width) = self.file, self.file.info, self.video_grid
        return {
            "kind": "latents",
            "name": info.source,
            "tensor": info.tensor,
            "stored_shape": list(info.stored_shape),
            "stored_dtype": file.stored_dtype,
            "layout": file.layout,
            "shape": list(file.shape),
            "fps": None if info.fps is None else float(info.fps),
            "normalized": file.normalized,
            "stated": {"frames": info.num_frames, "width": info.width, "height": info.height},
            "statistics": self.statistics,
            "video": {
                "frames": frames,
                "width": width,
                "height": height,
                "seconds": self.seconds,
                "scale": self.scale._asdict(),
                "vae": None if self.vae is None else self.vae.name,
            },
            "audio": None if self.audio is None else self.audio.as_dict(),
        }

    def __str__(self) -> str:
        info, values = self.file.info, self.statistics
        normalized = (
            "normalized, as the file states" if self.file.normalized else "assumed normalized: the file does not say"
        )
        if self.file.normalized is False and self.vae is not None:
            normalized = f"unnormalized in the file; normalized with {printable(self.vae.name)}:"
        unusual = values["channels_far_from_1"]
        batch, channels, frames, rows, columns = self.file.shape
        videos = f"{batch} x " if batch > 1 else ""
        hint = ": perhaps not normalized, or a plain, still clip" if 2 * unusual > channels else ""
        return "\n".join(
            [
                f"file     {printable(info.source)}",
                f"tensor   {excerpt(info.tensor)}, {info.stored_shape} {self.file.stored_dtype}, "
                f"read as {self.file.layout}",
                f"latents  {videos}{channels} channels, {frames} x {rows} x {columns} (frames x rows x columns)",
                f"values   {normalized}",
                f"         mean {values['mean']:.3f}, std {values['std']:.3f}, all finite, "
                f"from {values['min']:.2f} to {values['max']:.2f}",
                f"channel  means from {values['lowest_channel_mean']:.2f} to {values['highest_channel_mean']:.2f}, "
                f"std from {values['lowest_channel_std']:.2f} to {values['highest_channel_std']:.2f}",
                f"         {unusual} of {channels} channels have a std far from 1{hint}",
                f"video    {videos}{self._describe_video()}",
                *([] if self.audio is None else self.audio.lines()),
            ]
        )

    def _describe_video(self) -> str:
        info, (frames, height, width) = self.file.info, self.video_grid
        rate = f"{float(info.fps):.5g} fps" if info.fps else f"{float(DEFAULT_FPS):g} fps, as the file has no rate"
        cell = f"{self.scale.time} frames of {format_size(self.scale.width, self.scale.height)} pixels a cell"
        lines = [
            f"{frames} frames of {format_size(width, height)}, {self.seconds:.2f} s at {rate}",
            f"with {printable(self.vae.name)}: {cell}"
            if self.vae
            else f"at the usual scale, {cell}; -m VAE to be sure",
        ]
        stated = info.num_frames, info.height, info.width
        if None not in stated and stated != self.video_grid:
            lines.append(f"the file states {info.num_frames} frames of {info.width}x{info.height}")
        return "\n         ".join(lines)


def inspect_latents(
    path: Path, vae: Checkpoint | None, audio_vae: Checkpoint | None, *, tensor: str | None, grid: Grid | None
) -> LatentsReport:
    """Describe a latent file. Arguments as `open_latents`; errors as it and `LatentsFile.read`.

    `audio_vae` is the checkpoint of the audio latents in it. A warning if they cannot be read.
    """
    channels, scale = (None, None) if vae is None else (vae.config.latent_channels, vae.config.scale)
    file = open_latents(path, latent_channels=channels, tensor=tensor, grid=grid, scale=scale)
    statistics = None if vae is None else vae.read_statistics()
    if file.normalized is False and statistics is None:
        raise LatentsError(f"{path}: these latents are unnormalized; give -m VAE, whose statistics normalize them.")
    report = LatentsReport(file, _statistics(file.map(statistics=statistics)), vae, None)
    try:
        audio = file.find_audio()
    except LatentsError as error:
        warnings.warn(str(error), stacklevel=2)
        return report
    return report if audio is None else replace(report, audio=AudioLatentsReport(audio, audio_vae, report.seconds))


def _statistics(latents: MappedLatents) -> dict[str, float]:
    """Statistics of all values, and the extremes of those of single channels. One latent frame is read at a time."""
    lows, highs = [], []

    def frames() -> Iterator[mx.array]:
        for values in read_frames(latents, range(latents.shape.frames)):
            lows.append(to_float(values.min()))
            highs.append(to_float(values.max()))
            yield values

    means, stds = channel_moments(frames())
    return {
        "mean": float(means.mean()),
        "std": float(np.sqrt((stds**2).mean() + means.var())),
        "min": min(lows),
        "max": max(highs),
        "lowest_channel_mean": float(means.min()),
        "highest_channel_mean": float(means.max()),
        "lowest_channel_std": float(stds.min()),
        "highest_channel_std": float(stds.max()),
        "channels_far_from_1": int(((stds < _MIN_USUAL_STD) | (stds > _MAX_USUAL_STD)).sum()),
    }
