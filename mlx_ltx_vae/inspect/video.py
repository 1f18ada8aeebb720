"""A description of a video or an image: what it has, and what of it the encoder of a VAE takes."""

import warnings
from pathlib import Path

from ..checkpoint import Checkpoint
from ..errors import excerpt, printable
from ..shapes import DEFAULT_SCALE, format_size
from ..units import format_count
from ..video.ffmpeg import input_arguments
from ..video.frame_format import is_unknown
from ..video.metadata import check_text, read_metadata
from ..video.probe import VideoInfo, probe
from ..video.reader import FrameCount, count_frames, estimate_num_frames
from .report import Report


def inspect_video(path: Path, vae: Checkpoint | None) -> Report:
    """Describe a video or an image. A `ReaderError` for what is none, and a warning for what is damaged.

    Its frames are decoded and counted, as `VideoReader` would return them; if there are more than 10,000, their number
    is an estimate. In JSON, it is null where unknown, as `fps` and `seconds` are, which images do not have; `fps` is
    the average if `is_variable`. Colors
    have ffmpeg's names, and "unknown" is what the file does not say; the size is that after a `rotation` in degrees.
    `nearest` is what encodes at the `scale` of `vae`, or at the usual one if that is null.
    """
    check_text(path)
    arguments, stream, info, num_errors = probe(str(path), path, input_arguments(path))
    count, damage = count_frames(str(path), arguments, stream, info, num_errors)
    if damage:
        warnings.warn(damage, stacklevel=2)
    report = Report("video")
    report.add("file", printable(str(path)), name=str(path))
    num_frames = _add_frames(report, info, count)
    _add_format(report, info)
    _add_nearest(report, info, max(1, num_frames or 1), vae)
    metadata = read_metadata(path)
    report.add("says", *(f"{excerpt(key)}: {excerpt(value)}" for key, value in metadata.items()), metadata=metadata)
    return report


def _add_frames(report: Report, info: VideoInfo, count: FrameCount | None) -> int | None:
    """The number of frames, their size, and how long they last. Returns how many a reader returns, if that is known."""
    estimate = estimate_num_frames(info, info.fps)
    if count is None:
        num_stored, num_returned, is_variable, seconds = estimate, estimate, info.is_variable, info.seconds
    else:
        num_stored, num_returned = count.num_stored, count.num_returned
        is_variable, seconds = count.is_variable, count.seconds
    frames = "frames" if num_stored is None else format_count(num_stored, "frame")
    text = f"{'about ' * (count is None and num_stored is not None)}{frames} of {format_size(*info.size)}"
    text += f", {float(seconds):.2f} s" if seconds else ""
    text += f" at {'about ' * is_variable}{float(info.fps):.5g} fps" if info.fps else ""
    report.add(
        "video",
        text + ", which varies" * is_variable,
        frames=num_stored,
        width=info.size[0],
        height=info.size[1],
        fps=info.fps and float(info.fps),
        is_variable=is_variable,
        seconds=seconds and float(seconds),
    )
    return num_returned


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
