"""A description of a video or an image: what it has, and what of it the encoder of a VAE takes."""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint
from ..errors import excerpt, printable
from ..shapes import DEFAULT_SCALE, Grid, ScaleFactors, format_size
from ..units import format_count
from ..video.ffmpeg import input_arguments, read_times
from ..video.frame_format import is_unknown
from ..video.metadata import check_text, read_metadata
from ..video.probe import VideoInfo, probe

# How far of a frame a constant rate may be off.
_JITTER = Fraction(2, 5)


@dataclass(frozen=True)
class VideoReport:
    """What a video or an image is. `print(report)` shows it; see `as_dict`."""

    name: str
    info: VideoInfo
    num_frames: int
    duration: Fraction | None  # in seconds, from the first frame to the end of the last one; None for images
    is_variable: bool  # the frames come at irregular times
    metadata: dict[str, str]
    vae: Checkpoint | None

    @property
    def scale(self) -> ScaleFactors:
        return DEFAULT_SCALE if self.vae is None else self.vae.config.scale

    @property
    def seconds(self) -> Fraction | None:
        if self.duration is None or self.info.fps is None:
            return None
        return self.duration if self.is_variable else max(self.num_frames / self.info.fps, self.duration)

    @property
    def fps(self) -> Fraction | None:
        """Frames per second, on average if they come at irregular times."""
        return self.num_frames / self.duration if self.is_variable and self.duration else self.info.fps

    @property
    def nearest(self) -> Grid:
        """(F, H, W) nearest to the video's that encodes; of its frames none are made up."""
        (width, height), scale = self.info.size, self.scale
        steps = (self.num_frames - 1) // scale.time
        return scale.video_grid((1 + steps, max(1, round(height / scale.height)), max(1, round(width / scale.width))))

    def as_dict(self) -> dict[str, Any]:
        """The report as a JSON object.

        `fps` and `seconds` are null for images and where unknown; `fps` is the average if `is_variable`. Colors have
        ffmpeg's names, and "unknown" is what the file does not say; the size is that after a `rotation` in degrees.
        `nearest` is what encodes at the `scale` of `vae`, or at the usual one if that is null.
        """
        info, (frames, height, width) = self.info, self.nearest
        return {
            "kind": "video",
            "name": self.name,
            "frames": self.num_frames,
            "width": info.size[0],
            "height": info.size[1],
            "fps": self.fps and float(self.fps),
            "is_variable": self.is_variable,
            "seconds": self.seconds and float(self.seconds),
            "codec": info.codec,
            "pixel_format": info.frames.pixel_format,
            "matrix": info.frames.matrix,
            "range": info.frames.levels,
            "primaries": info.frames.primaries,
            "transfer": info.frames.transfer,
            "is_interlaced": info.is_interlaced,
            "pixel_shape": [info.pixel_shape.numerator, info.pixel_shape.denominator],
            "rotation": info.rotation,
            "nearest": {"frames": frames, "width": width, "height": height},
            "scale": self.scale._asdict(),
            "vae": self.vae and self.vae.name,
            "metadata": self.metadata,
        }

    def __str__(self) -> str:
        info, (frames, height, width), scale = self.info, self.nearest, self.scale
        text = f"{format_count(self.num_frames, 'frame')} of {format_size(*info.size)}"
        text += f", {float(self.seconds):.2f} s" if self.seconds else ""
        text += f" at {'about ' * self.is_variable}{float(self.fps):.5g} fps" if self.fps else ""
        text += ", which varies" * self.is_variable
        rule = f"1 + {scale.time}k frames of multiples of {format_size(scale.width, scale.height)}"
        source = "usually" if self.vae is None else f"with {printable(self.vae.name)}"
        size = "as it is" if width == info.size[0] and height == info.size[1] else f"as {format_size(width, height)}"
        lines = [
            f"file     {printable(self.name)}",
            f"video    {text}",
            f"stored   as {info.codec}, {info.frames.pixel_format}{self._unusual()}",
            f"colors   {self._colors()}",
            f"encodes  {size}, {format_count(frames, 'frame')} ({source} {rule})",
        ]
        for index, (key, value) in enumerate(self.metadata.items()):
            lines.append(f"{'' if index else 'says':9}{excerpt(key)}: {excerpt(value)}")
        return "\n".join(lines)

    def _unusual(self) -> str:
        """What a video may have that few have."""
        info = self.info
        shape = f"pixels of {info.pixel_shape.numerator}:{info.pixel_shape.denominator}"
        found = [
            *["interlaced"] * info.is_interlaced,
            *[shape] * (info.pixel_shape != 1),
            *[f"turned by {info.rotation:g} degrees"] * (info.rotation != 0),
        ]
        return "".join(f", {each}" for each in found)

    def _colors(self) -> str:
        colors = self.info.frames
        values = {"matrix": colors.matrix, "primaries": colors.primaries, "transfer": colors.transfer}
        stated = [f"{name} {value}" for name, value in values.items() if not is_unknown(value)]
        if not is_unknown(colors.levels):
            stated.append("full range" if colors.levels == "pc" else "limited range")
        missing = [name for name, value in {**values, "range": colors.levels}.items() if is_unknown(value)]
        parts = [", ".join(stated)] * bool(stated) + [f"not stated: {', '.join(missing)}"] * bool(missing)
        return "; ".join(parts)


def inspect_video(path: Path, vae: Checkpoint | None) -> VideoReport:
    """Describe a video or an image. A `ReaderError` for what is none. Its frames are counted, and not decoded."""
    check_text(path)
    arguments, stream, info, _ = probe(str(path), input_arguments(path))
    times, end = read_times([*arguments, "-map", stream])
    duration = None if info.is_still or end is None or not times else end - times[0]
    is_variable = info.is_variable or not _are_even(times)
    return VideoReport(str(path), info, max(1, len(times)), duration, is_variable, read_metadata(path), vae)


def _are_even(times: list[Fraction]) -> bool:
    """Whether times are those of a constant rate, up to what containers round and writers shift."""
    if len(times) < 3 or times[0] == times[-1]:
        return True
    step = (times[-1] - times[0]) / (len(times) - 1)
    return all(abs(time - times[0] - index * step) < step * _JITTER for index, time in enumerate(times))
