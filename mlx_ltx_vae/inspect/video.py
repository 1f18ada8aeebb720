"""A description of a video or an image: what it has, and what of it the encoder of a VAE takes."""

from fractions import Fraction
from pathlib import Path

from ..checkpoint import Checkpoint
from ..errors import excerpt, printable
from ..shapes import DEFAULT_SCALE, format_size
from ..units import format_count
from ..video.ffmpeg import input_arguments, read_times
from ..video.frame_format import is_unknown
from ..video.metadata import check_text, read_metadata
from ..video.probe import VideoInfo, probe
from .report import Report

# How far of a frame a constant rate may be off.
_JITTER = Fraction(2, 5)


def inspect_video(path: Path, vae: Checkpoint | None) -> Report:
    """Describe a video or an image. A `ReaderError` for what is none. Its frames are counted, and not decoded.

    In JSON, `fps` and `seconds` are null for images and where unknown; `fps` is the average if `is_variable`. Colors
    have ffmpeg's names, and "unknown" is what the file does not say; the size is that after a `rotation` in degrees.
    `nearest` is what encodes at the `scale` of `vae`, or at the usual one if that is null.
    """
    check_text(path)
    arguments, stream, info, _ = probe(str(path), input_arguments(path))
    times, end = read_times([*arguments, "-map", stream])
    report = Report("video")
    report.add("file", printable(str(path)), name=str(path))
    _add_frames(report, info, times, end)
    _add_format(report, info)
    _add_nearest(report, info, max(1, len(times)), vae)
    metadata = read_metadata(path)
    report.add("says", *(f"{excerpt(key)}: {excerpt(value)}" for key, value in metadata.items()), metadata=metadata)
    return report


def _add_frames(report: Report, info: VideoInfo, times: list[Fraction], end: Fraction | None) -> None:
    """The number of frames, their size, and how long they last, by the times at which they begin and the last ends."""
    count, fps, seconds = max(1, len(times)), info.fps, None
    duration = None if info.is_still or end is None or not times else end - times[0]
    is_variable = info.is_variable or not _are_even(times)
    if duration is not None and fps is not None:
        seconds = duration if is_variable else max(count / fps, duration)
    if is_variable and duration:
        fps = count / duration
    text = f"{format_count(count, 'frame')} of {format_size(*info.size)}"
    text += f", {float(seconds):.2f} s" if seconds else ""
    text += f" at {'about ' * is_variable}{float(fps):.5g} fps" if fps else ""
    report.add(
        "video",
        text + ", which varies" * is_variable,
        frames=count,
        width=info.size[0],
        height=info.size[1],
        fps=fps and float(fps),
        is_variable=is_variable,
        seconds=seconds and float(seconds),
    )


def _add_format(report: Report, info: VideoInfo) -> None:
    shape, frames = info.pixel_shape, info.frames
    unusual = [
        *["interlaced"] * info.is_interlaced,
        *[f"pixels of {shape.numerator}:{shape.denominator}"] * (shape != 1),
        *[f"turned by {info.rotation:g} degrees"] * (info.rotation != 0),
    ]
    report.add(
        "stored",
        ", ".join([f"as {info.codec}", frames.pixel_format, *unusual]),
        codec=info.codec,
        pixel_format=frames.pixel_format,
        is_interlaced=info.is_interlaced,
        pixel_shape=[shape.numerator, shape.denominator],
        rotation=info.rotation,
    )
    colors = {"matrix": frames.matrix, "primaries": frames.primaries, "transfer": frames.transfer}
    stated = [f"{name} {value}" for name, value in colors.items() if not is_unknown(value)]
    if not is_unknown(frames.levels):
        stated.append("full range" if frames.levels == "pc" else "limited range")
    colors["range"] = frames.levels
    missing = [name for name, value in colors.items() if is_unknown(value)]
    parts = [", ".join(stated)] * bool(stated) + [f"not stated: {', '.join(missing)}"] * bool(missing)
    report.add("colors", "; ".join(parts), **colors)


def _add_nearest(report: Report, info: VideoInfo, num_frames: int, vae: Checkpoint | None) -> None:
    """The size nearest to the video's that encodes; of its frames none are made up."""
    (width, height), scale = info.size, DEFAULT_SCALE if vae is None else vae.config.scale
    cells = (
        1 + (num_frames - 1) // scale.time,
        max(1, round(height / scale.height)),
        max(1, round(width / scale.width)),
    )
    frames, height, width = scale.video_grid(cells)
    rule = f"1 + {scale.time}k frames of multiples of {format_size(scale.width, scale.height)}"
    source = "usually" if vae is None else f"with {printable(vae.name)}"
    size = "as it is" if (width, height) == info.size else f"as {format_size(width, height)}"
    report.add(
        "encodes",
        f"{size}, {format_count(frames, 'frame')} ({source} {rule})",
        nearest={"frames": frames, "width": width, "height": height},
        scale=scale._asdict(),
        vae=vae and vae.name,
    )


def _are_even(times: list[Fraction]) -> bool:
    """Whether times are those of a constant rate, up to what containers round and writers shift."""
    if len(times) < 3 or times[0] == times[-1]:
        return True
    step = (times[-1] - times[0]) / (len(times) - 1)
    return all(abs(time - times[0] - index * step) < step * _JITTER for index, time in enumerate(times))
