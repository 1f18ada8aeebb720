"""A description of a video or an image: what it has, and what of it the encoder of a VAE takes."""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint
from ..errors import excerpt, printable
from ..shapes import DEFAULT_SCALE, Grid, ScaleFactors, format_size
from ..units import format_count
from ..video.ffmpeg import input_arguments, read_end
from ..video.metadata import check_text, read_metadata
from ..video.probe import VideoInfo, probe


@dataclass(frozen=True)
class VideoReport:
    """What a video or an image is. `print(report)` shows it; see `as_dict`."""

    name: str
    info: VideoInfo
    num_frames: int
    end: Fraction  # in seconds, of the last frame but those that are shown in another order than they are stored
    metadata: dict[str, str]
    vae: Checkpoint | None

    @property
    def scale(self) -> ScaleFactors:
        return DEFAULT_SCALE if self.vae is None else self.vae.config.scale

    @property
    def seconds(self) -> Fraction | None:
        return max(self.num_frames / self.info.fps, self.end) if self.info.fps else None

    @property
    def nearest(self) -> Grid:
        """(F, H, W) nearest to the video's that encodes."""
        (width, height), scale = self.info.size, self.scale
        steps = round((self.num_frames - 1) / scale.time)
        return scale.video_grid((1 + steps, max(1, round(height / scale.height)), max(1, round(width / scale.width))))

    def as_dict(self) -> dict[str, Any]:
        """The report as a JSON object.

        `fps` and `seconds` are null for images and where unknown; `fps` is the average if `is_variable`. `nearest` is
        what encodes at the `scale` of `vae`, or at the usual one if that is null.
        """
        info, (frames, height, width) = self.info, self.nearest
        return {
            "kind": "video",
            "name": self.name,
            "frames": self.num_frames,
            "width": info.size[0],
            "height": info.size[1],
            "fps": info.fps and float(info.fps),
            "is_variable": info.is_variable,
            "seconds": self.seconds and float(self.seconds),
            "codec": info.codec,
            "pixel_format": info.pixel_format,
            "nearest": {"frames": frames, "width": width, "height": height},
            "scale": self.scale._asdict(),
            "vae": self.vae and self.vae.name,
            "metadata": self.metadata,
        }

    def __str__(self) -> str:
        info, (frames, height, width), scale = self.info, self.nearest, self.scale
        text = f"{format_count(self.num_frames, 'frame')} of {format_size(*info.size)}"
        text += f", {float(self.seconds):.2f} s" if self.seconds else ""
        text += f" at {'about ' * info.is_variable}{float(info.fps):.5g} fps" if info.fps else ""
        rule = f"1 + {scale.time}k frames of multiples of {format_size(scale.width, scale.height)}"
        source = "usually" if self.vae is None else f"with {printable(self.vae.name)}"
        size = "as it is" if width == info.size[0] and height == info.size[1] else f"as {format_size(width, height)}"
        lines = [
            f"file     {printable(self.name)}",
            f"video    {text}",
            f"stored   as {info.codec}, {info.pixel_format}",
            f"encodes  {size}, {format_count(frames, 'frame')} ({source} {rule})",
        ]
        for index, (key, value) in enumerate(self.metadata.items()):
            lines.append(f"{'' if index else 'says':9}{excerpt(key)}: {excerpt(value)}")
        return "\n".join(lines)


def inspect_video(path: Path, vae: Checkpoint | None) -> VideoReport:
    """Describe a video or an image. A `ReaderError` for what is none. Its frames are counted, and not decoded."""
    check_text(path)
    arguments, stream, info, _ = probe(str(path), input_arguments(path))
    num_frames, end = read_end([*arguments, "-map", stream])
    return VideoReport(str(path), info, max(1, num_frames), end or Fraction(0), read_metadata(path), vae)
