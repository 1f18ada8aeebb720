"""Inspect a file, which is a checkpoint, latents or a video by its first bytes and tensor names, as a dict and text."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import mlx.core as mx
import numpy as np

from .audio_vae import AudioVAE, find_audio_decoder
from .backend.mlx_utils import to_float
from .checkpoint import Checkpoint, open_checkpoint
from .checkpoint.loading import NetworkHandle
from .checkpoint.locate import Location, has_networks, locate, read_export
from .checkpoint.weight_files import Archive, StoredNetwork, is_index
from .codec_table import CONTAINERS
from .errors import CheckpointError, LatentsError, LTXVAEError, PlanError, ReaderError, excerpt, printable, warn
from .files import MAX_INSPECTED_VALUES, START_BYTES, Format, expand_path, find_format
from .latents import KNOWN_NAMES, AudioLatentsFile, find_audio_latents, is_audio_alone, open_latents
from .latents.formats import MappedLatents, find_reader, open_tensor_file
from .latents.keyframes import KEYFRAME_NAMES, KeyframesFile, describe_keyframes, find_keyframes
from .latents.metadata import DEFAULT_VAE_NAME, is_audio_name
from .model_table import Kind, models_for
from .networks.base import AUDIO, NETWORKS, PICTURES, UPSAMPLERS, AudioConfig, Medium
from .opened_vae import described_network
from .pipeline.sources import are_unusual, count_unusual, frame_moments, join_moments, read_frames
from .planning.clip import lookahead, receptive_field
from .shapes import DEFAULT_SCALE, Grid, format_size, sampled_frames
from .units import DEFAULT_FPS, format_bytes, format_count
from .vae import VideoVAE
from .video.audio import SLACK
from .video.codecs import ANIMATIONS
from .video.exr import check_start
from .video.ffmpeg import input_arguments
from .video.metadata import check_text, read_metadata
from .video.probe import probe
from .video.reader import estimate_num_frames, is_exr

#: Description of a file, JSON-serializable: `kind`, `name` and more. Null means that the file has or states no value.
Report = dict[str, Any]
FileT = TypeVar("FileT")

_NAMED_TENSORS = 3
_EXPORTED = ("generation", "backend", "dtype", "mlx", "latents", "frames", "seed", "fingerprint")  # see docs/export.md
_PICTURE_ENDINGS = (*CONTAINERS, *ANIMATIONS, ".png", ".tif", ".tiff", ".jpg", ".jpeg", ".bmp", ".exr")
#: (F, H, W) of usual videos.
_USUAL_VIDEOS = ((121, 512, 768), (121, 704, 1280), (121, 1088, 1920))
_SECONDS = (5, 20, 300)  # of audio that is planned
_LATENTS_PER_SECOND = 25  # of audio, in every release
_MISSING_SECONDS = Fraction(3, 100)  # by which the first latent's audio is shorter, in every release
_LINE = 100  # characters
_LONGEST_TEXT = 240
_NULL = {"cells": "unlimited", "normalized": "not stated; assumed", "single_pass_peak_bytes": "not possible"}


def inspect(
    source: str,
    *,
    vae: str | None = None,
    audio_vae: str | None = None,
    tensor: str | None = None,
    audio_tensor: str | None = None,
    grid: Grid | None = None,
) -> Report:
    """Describe a source of `open_checkpoint` or `open_latents`, or one file of `VideoReader`, with their errors.

    The options are for latents, and an error for a checkpoint. `vae` is the checkpoint of latents, which has the scale
    and normalizes unnormalized latents, or of a video. `audio_vae` is the checkpoint of audio latents. `None` means
    `vae`, if that has the networks.
    """
    path = Path(expand_path(source, LTXVAEError))
    start = _start_of(path)
    reader = None if start is None else find_reader(start)
    if start is not None and (find_format(start), reader) == (None, None) and (report := _try_video(path, vae)):
        if (audio_vae, tensor, audio_tensor, grid) != (None, None, None, None):
            raise LatentsError(
                f"{source}: this is a video; an audio VAE, a tensor and a grid are options of latents only."
            )
        return report
    has_latent_options = (vae, audio_vae, tensor, audio_tensor, grid) != (None, None, None, None, None)
    if not has_latent_options and (export := read_export(path)) is not None:
        return {"kind": export["kind"], "name": path.name} | {key: export.get(key) for key in _EXPORTED}
    location, audio = None, None
    if reader is None or find_format(start or b"") is Format.SAFETENSORS:
        try:
            location = locate(source)
        except CheckpointError:
            audio = _find_audio(source) if os.path.isdir(path) else None
            if audio is None:
                raise
        else:
            audio = _find_audio_beside(location)
    if audio is not None and (location is None or not has_networks(location.archives)):
        if has_latent_options:
            raise CheckpointError(f"{source}: this is a checkpoint of audio, which takes no such options.")
        return audio
    is_single_file = os.path.isfile(path) and not is_index(path.name)
    if location is None or (is_single_file and _has_latents(location.archives[0], tensor or audio_tensor)):
        return _inspect_tensors(path, vae, audio_vae, tensor, audio_tensor, grid)
    if has_latent_options:
        raise CheckpointError(f"{source}: this is a checkpoint; VAEs, a tensor and a grid are options of latents only.")
    report = inspect_checkpoint(_open_what_loads(location))
    return report if audio is None else {**report, "audio": audio}


def summarize(report: Report) -> str:
    """Summarize what a file is, and what fits it, in a line."""
    kind = report["kind"]
    if kind == "audio checkpoint":
        return f"an audio VAE, {report['generation']}"
    if kind == "audio latents":
        return f"audio latents of {report['audio']['seconds']:.2f} s"
    if kind == "keyframes":
        return describe_keyframes(report["frames"])
    if kind == "checkpoint":
        networks = [name for name in NETWORKS if report[name]]
        dtypes = sorted({dtype for name in networks for dtype in report[name]["dtypes"]})
        audio = " and audio" if report.get("audio") else ""
        bits = sorted({kind["bits"] for name in networks for kind in report[name].get("quantization", ())})
        quantized = f", quantized to {' and '.join(f'{count} bits' for count in bits)}" if bits else ""
        stored = f"{' and '.join(dtypes)}{quantized}, {format_bytes(report['vae_bytes'])}"
        return f"a VAE, {report['generation']}: {' and '.join(networks)}{audio} in {stored}"
    if kind not in ("latents", "video"):
        return f"an {kind}"
    size = report["video"] if kind == "latents" else report
    frames = "frames" if size["frames"] is None else format_count(size["frames"], "frame")
    rate = "" if report["fps"] is None else f", {report['fps']:.6g} fps"
    text = f"of {frames} of {format_size(size['width'], size['height'])}{rate}"
    if kind == "latents":
        parts = [", with audio"] * bool(report["audio"]) + [", with keyframes"] * bool(report["keyframes"])
        models = [model.name for model in models_for(report["generation"], Kind.VIDEO)]
        vae = f"fits {' and '.join(models)}" if models else f"for a VAE with {report['shape'][1]} channels"
        generation = f"of {report['generation']}, {text.removeprefix('of ')}" if report["generation"] else text
        return f"latents {generation}{''.join(parts)}; {vae}"
    nearest = report["nearest"]
    if all(nearest[name] == report[name] for name in ("frames", "width", "height")):
        return f"a video {text}; encodes as it is"
    nearest_size = format_size(nearest["width"], nearest["height"])
    return f"a video {text}; encodes as {format_count(nearest['frames'], 'frame')} of {nearest_size} with --resize"


def format_report(report: Mapping[str, Any], indent: str = "") -> str:
    """Format a report as text: a line `name: value` for each entry, with nested entries indented by two spaces.

    Bytes have a unit. Numbers that belong together are one line, and a list of objects is a table.
    """
    lines = []
    for key, value in report.items():
        label = f"{indent}{excerpt(key)}:"
        if not _is_nested(value):
            lines.append(f"{label} {_format(key, value)}")
            continue
        lines.append(label)
        inner = f"{indent}  "
        if isinstance(value, Mapping):
            lines.append(format_report(value, inner))
        elif isinstance(value[0], Mapping):
            lines += _table(value, inner)
        else:
            lines += [f"{inner}{_format(key, item)}" for item in value]
    return "\n".join(lines)


def _is_nested(value: object) -> bool:
    """Return whether a value takes separate lines. A number, a text or a few numbers do not."""
    if isinstance(value, Mapping):
        is_plain = all(entry is None or isinstance(entry, (int, float)) for entry in value.values())
        return not is_plain or len(_format("", value)) > _LINE
    return isinstance(value, list) and any(isinstance(item, (str, Mapping)) for item in value)


def _table(rows: Sequence[Mapping[str, Any]], indent: str) -> list[str]:
    """Return the lines of a table with an object in each row, or in each column if the table would be too wide."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    cells: Sequence[Sequence[str]] = [keys, *([_format(key, row.get(key)) for key in keys] for row in rows)]
    for _ in range(2):
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [indent + "  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
        if max(map(len, lines)) <= _LINE:
            break
        cells = list(zip(*cells, strict=True))
    return lines


def _format(key: str, value: object) -> str:
    """Format a value in one line."""
    if value is None or value in ([], {}):
        return _NULL.get(key, "none")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_format(name, entry)}" for name, entry in value.items())
    if isinstance(value, list):
        return ", ".join(_format(key, item) for item in value)
    if not isinstance(value, (int, float)):
        text = str(value)
        return printable(text[:_LONGEST_TEXT]) + "..." * (len(text) > _LONGEST_TEXT)
    if key.endswith("bytes"):
        return format_bytes(value)
    return f"{value:.2f}" if key == "seconds" else f"{value:,}" if isinstance(value, int) else f"{value:.5g}"


def _inspect_tensors(
    path: Path, vae: str | None, audio_vae: str | None, tensor: str | None, audio_tensor: str | None, grid: Grid | None
) -> Report:
    video_vae = None if vae is None else VideoVAE.from_pretrained(vae)
    audio_decoder = find_audio_decoder(audio_vae, vae)
    if (tensor, grid) == (None, None):
        file = open_tensor_file(path)
        if is_audio_alone(file.tensors, None if video_vae is None else video_vae.config.latent_channels):
            audio = find_audio_latents(file, is_alone=True, tensor=audio_tensor)
            assert audio is not None
            return _inspect_audio_latents(audio, audio_decoder)
        if file.tensors.keys() <= set(KEYFRAME_NAMES) and (keyframes := find_keyframes(file)):
            return _inspect_keyframes(keyframes)
    return _inspect_latents(path, video_vae, audio_decoder, tensor=tensor, audio_tensor=audio_tensor, grid=grid)


def _start_of(path: Path) -> bytes | None:
    """Return the first bytes of a file, or `None` if it cannot be read, which `locate` reports."""
    with suppress(OSError):
        if os.path.isfile(path):
            with path.open("rb") as file:
                return file.read(START_BYTES)
    return None


def _try_video(path: Path, vae: str | None) -> Report | None:
    """Describe a video. Returns `None` for a file that neither is a video nor has the name of one."""
    try:
        return inspect_video(path, None if vae is None else VideoVAE.from_pretrained(vae))
    except ReaderError:
        if is_exr(path):
            check_start(path)
        if path.suffix.lower() in _PICTURE_ENDINGS:
            raise
        return None


def _has_latents(archive: Archive, tensor: str | None) -> bool:
    """Return whether a safetensors file is latents. Raises a `CheckpointError` if it has neither them nor a network."""
    if has_networks([archive]) or has_networks([archive], UPSAMPLERS):  # of which an open is an error
        return False
    candidates = {name for name in archive.tensors if not is_audio_name(name) and name not in KEYFRAME_NAMES}
    is_clear = len(candidates) <= 1 or not candidates.isdisjoint(KNOWN_NAMES)
    if not archive.tensors or (tensor is None and not is_clear):
        names = list(archive.tensors)
        listing = excerpt(", ".join(names[:_NAMED_TENSORS])) + (", ..." if len(names) > _NAMED_TENSORS else "")
        content = f"{len(names)} tensors ({listing})" if names else "no tensor"
        raise CheckpointError(
            f"{archive.path}: expected a video VAE (vae.encoder.*, vae.decoder.* or the like) or latents "
            f"({', '.join(KNOWN_NAMES[:3])} or the like) and found {content}; if one of them is latents, name it with "
            "--tensor."
        )
    return True


# --- checkpoints: headers and configurations; no tensor is read -------------------------------------------------------


def _open_what_loads(location: Location, medium: Medium = PICTURES) -> Checkpoint:
    """Open a checkpoint with its networks. An encoder that would not load beside a decoder is left out, with a warning.

    Raises the `CheckpointError` of a load of the decoder, or of the encoder alone.
    """
    try:
        return open_checkpoint(location, medium=medium)
    except CheckpointError as error:
        with suppress(CheckpointError):
            checkpoint = open_checkpoint(location, encoder=False, medium=medium)
            warn(f"{error} It can decode, and not encode.")
            return checkpoint
        raise


def _find_audio_beside(location: Location) -> Report | None:
    """Describe the audio networks of a location. If it also has pictures, an error of the audio is a warning."""
    try:
        return _find_audio(location)
    except CheckpointError as error:
        if not has_networks(location.archives):
            raise
        warn(f"its audio is left out: {error}")
        return None


def inspect_checkpoint(checkpoint: Checkpoint) -> Report:
    """Describe a checkpoint, with plans of usual decodes on this machine.

    `configuration` is "stated" by the file or "inferred" from its tensors; `scale` is pixels per latent cell; a network
    that does not exist is null, `dtypes` counts its parameters stored in each dtype, and `weight_layout` is the axis
    order of its stored convolution weights; `receptive_field` is in latent frames and cells around the one of a pixel,
    null where it is unlimited; it and `lookahead`, the latent frames that the first frame needs, are null without a
    decoder in the configuration. Each of `plans` is a plan as `decode --dry-run --json` prints it, with
    `single_pass_peak_bytes`, null where a single pass is not possible.
    """
    config, networks = checkpoint.config, checkpoint.networks
    description = checkpoint.family.describe(config)
    paths = {info.path for archive in checkpoint.archives for info in archive.tensors.values()}
    spec = checkpoint.spec("decoder") if "decoder" in description else None
    return {
        "kind": "checkpoint",
        "name": checkpoint.name,
        "generation": checkpoint.config.generation,
        "class": checkpoint.class_name,
        "configuration": "inferred" if checkpoint.is_inferred else "stated",
        "file_bytes": sum(path.stat().st_size for path in paths),
        "vae_bytes": sum(stored.num_bytes for stored in networks.values()),
        "latent_channels": config.latent_channels,
        "scale": config.scale._asdict(),
        **{name: value for name, value in description.items() if name not in NETWORKS},
        "receptive_field": None if spec is None else receptive_field(spec)._asdict(),
        "lookahead": None if spec is None else lookahead(spec),
        **_networks(NETWORKS, networks, description),
        "plans": _plans(checkpoint) if "decoder" in networks else [],
    }


def _networks(names: Iterable[str], stored: Mapping[str, StoredNetwork], description: Mapping[str, Any]) -> Report:
    """Describe the networks of a checkpoint. One that does not exist is null."""
    reports: dict[str, Report | None] = dict.fromkeys(names)
    for name, network in stored.items():
        dtypes = network.parameters_by_dtype
        report = {**description.get(name, {}), "parameters": dtypes.total(), "dtypes": dict(dtypes)}
        report["bytes"] = network.num_bytes
        if kinds := sorted({(info.bits, info.group_size) for info in network.quantized}):
            report["quantization"] = [{"bits": bits, "group_size": size} for bits, size in kinds]
        reports[name] = report | {"weight_layout": network.layout.value}
    return reports


def _describe(checkpoint: Checkpoint, network: str) -> NetworkHandle[Any] | None:
    """Return a network of a checkpoint for plans."""
    return described_network(checkpoint, network, checkpoint.cast_dtype(network, None) or checkpoint.dtype(network))


def _plans(checkpoint: Checkpoint) -> list[Report]:
    """Plan decodes of the smallest videos of at least the usual sizes here, and their single passes if possible."""
    reports, vae = [], VideoVAE(checkpoint.config, None, _describe(checkpoint, "decoder"))
    for video in _USUAL_VIDEOS:
        shape = (1, vae.config.latent_channels, *vae.config.scale.covering_latent_grid(video))
        single = None
        with suppress(PlanError):
            single = vae.plan(shape, mode="single").peak_bytes
        reports.append({**vae.plan(shape).as_dict(), "single_pass_peak_bytes": single})
    return reports


def _find_audio(source: str | Location) -> Report | None:
    """Describe the audio networks of a path, or of a location that has been opened. Returns `None` without any."""
    try:
        location = source if isinstance(source, Location) else locate(source, AUDIO)
        if not has_networks(location.archives, AUDIO):
            return None
    except CheckpointError:
        return None
    checkpoint = _open_what_loads(location, AUDIO)
    config, networks = cast(AudioConfig, checkpoint.config), checkpoint.networks
    plans: list[Report] = []
    if {"decoder", "vocoder"} <= networks.keys():
        decoder = _describe(checkpoint, "decoder")
        vae = AudioVAE(config, None, decoder, described_network(checkpoint, "vocoder", mx.float32))
        plans = [vae.plan(round(seconds * config.latents_per_second)).as_dict() for seconds in _SECONDS]
    return {
        "kind": "audio checkpoint",
        "name": checkpoint.name,
        "generation": config.generation,
        "configuration": "inferred" if checkpoint.is_inferred else "stated",
        **checkpoint.family.describe(config),
        **_networks(AUDIO.networks, networks, {}),
        "plans": plans,
    }


# --- latents ----------------------------------------------------------------------------------------------------------


def _inspect_latents(
    path: Path,
    vae: VideoVAE | None,
    audio_vae: AudioVAE | None,
    *,
    tensor: str | None,
    audio_tensor: str | None,
    grid: Grid | None,
) -> Report:
    """Describe a latent file. The arguments are `open_latents`'; the errors also `LatentsFile.read`'s.

    `audio_vae` is the checkpoint of the audio latents in it. Warns if the audio latents or keyframes cannot be read.

    `generation`, `vae_fingerprint`, `fps`, `normalized` and `stated` are read from the file. `statistics` are of the
    normalized values of as many latent frames as `frames_read`, which are all frames, or spread over a clip of more
    than 2**26 values; they are null where a single frame has more. The lowest and highest ones are of single channels.
    `video` is one item of the batch: its `vae` is null if the usual `scale` was assumed; without `fps` its `seconds`
    are at 24 frames per second.
    """
    channels, vae_scale = (None, None) if vae is None else (vae.config.latent_channels, vae.config.scale)
    title = DEFAULT_VAE_NAME if vae is None else vae.source.title
    file = open_latents(path, latent_channels=channels, tensor=tensor, grid=grid, scale=vae_scale, vae=title)
    normalization = None if vae is None else vae.statistics
    if file.normalized is False and normalization is None:
        raise LatentsError(f"{path}: these latents are unnormalized; give -m VAE, whose statistics normalize them.")
    info, shape = file.info, file.shape
    numbers = sampled_frames(shape.frames, MAX_INSPECTED_VALUES * shape.frames // math.prod(shape))
    statistics, notices = _statistics(file.map(statistics=normalization), numbers) if numbers else (None, [])
    if not numbers:
        notices.append("no values were read, since a single latent frame has too many")
    elif len(numbers) < shape.frames:
        notices.append(f"the statistics are of {len(numbers):,} of {shape.frames:,} latent frames, over the whole clip")
    if file.normalized is False and vae is not None:
        notices.append(f"the statistics are of the latents after their normalization with {vae.source.name}")
    fps = info.fps or DEFAULT_FPS
    if info.fps is None:
        notices.append(f"the file states no frame rate; the seconds are at {float(fps):g} fps")
    scale = vae_scale or DEFAULT_SCALE
    frames, height, width = scale.video_grid(shape.grid)
    file_grid = (info.num_frames, info.height, info.width)
    if None not in file_grid and file_grid != (frames, height, width):
        notices.append(f"the file states {info.num_frames} frames of {info.width}x{info.height}")
    if vae is None:
        notices.append("the scale is the usual one; give -m VAE to be sure")
    elif problem := vae.describe_mismatch(info.space):
        notices.append(f"the latents are {problem}")
    keyframes, audio = _find_or_warn(file.find_keyframes), _find_or_warn(partial(file.find_audio, audio_tensor))
    has_decoder = vae is not None and "decoder" in vae.source.networks
    if keyframes and vae is not None and has_decoder and (warning := vae.spec("decoder").keyframe_warning):
        notices.append(warning.rstrip("."))
    source_frames = file.count_source_frames(scale)
    if source_frames < frames:
        notices.append(
            f"the source has {source_frames} frames; a decode leaves out {frames - source_frames} of padding"
        )
    return {
        "kind": "latents",
        "name": info.source,
        "tensor": info.tensor,
        "stored_shape": list(info.stored_shape),
        "stored_dtype": file.stored_dtype,
        "layout": file.layout,
        "shape": list(shape),
        "generation": info.space.generation,
        "vae_fingerprint": info.space.fingerprint,
        "fps": None if info.fps is None else float(info.fps),
        "normalized": file.normalized,
        "stated": {
            "frames": info.num_frames,
            "width": info.width,
            "height": info.height,
            "carry": info.carry,
            "source_frames": info.source_frames,
        },
        "frames_read": len(numbers),
        "statistics": statistics,
        "video": {
            "frames": source_frames,
            "width": width,
            "height": height,
            "seconds": float(source_frames / fps),
            "scale": scale._asdict(),
            "vae": vae and vae.source.name,
        },
        "keyframes": keyframes and _inspect_keyframes(keyframes),
        "audio": audio and _inspect_audio_latents(audio, audio_vae, frames / fps),
        "notices": notices,
    }


def _find_or_warn(find: Callable[[], FileT | None]) -> FileT | None:
    """Find other content of a latent file. Warns, and returns `None`, if it cannot be read."""
    try:
        return find()
    except LatentsError as error:
        warn(str(error))
        return None


def _statistics(latents: MappedLatents, numbers: Sequence[int]) -> tuple[dict[str, float], list[str]]:
    """Return statistics of some frames, with the extremes of single channels, and a notice if they are unusual.

    One frame is read at a time.
    """
    lows, highs, moments = [], [], []
    for values in read_frames(latents, numbers):
        lows.append(to_float(values.min()))
        highs.append(to_float(values.max()))
        moments.append(frame_moments(values))
    means, stds = join_moments(moments)
    unusual, channels = count_unusual(stds), latents.shape.channels
    statistics = {
        "mean": float(means.mean()),
        "std": float(np.sqrt((stds**2).mean() + means.var())),
        "min": min(lows),
        "max": max(highs),
        "lowest_channel_mean": float(means.min()),
        "highest_channel_mean": float(means.max()),
        "lowest_channel_std": float(stds.min()),
        "highest_channel_std": float(stds.max()),
        "channels_far_from_1": unusual,
    }
    notice = f"{unusual} of {channels} channels have a std far from 1: perhaps not normalized, or a plain, still clip"
    return statistics, [notice] if are_unusual(stds, math.prod(latents.shape) // channels) else []


def _inspect_keyframes(file: KeyframesFile) -> Report:
    """Describe keyframes without reading their values. `frames` are the frame numbers."""
    return {
        "kind": "keyframes",
        "name": file.source,
        "frames": list(file.frames),
        "shape": list(file.shape),
        "stored_dtype": file.stored_dtype,
        "normalized": file.normalized,
    }


def _inspect_audio_latents(
    file: AudioLatentsFile, vae: AudioVAE | None, video_seconds: Fraction | None = None
) -> Report:
    """Describe audio latents. `vae` decodes them, if there is one.

    `video_seconds` is the length of the video in the same file. `None` means audio alone.

    `statistics` are of all values, as they are stored. `audio` is one item of the batch: without a `vae`, its length is
    the published releases', and `samples` and `sample_rate` are null.
    """
    seconds = float(Fraction(file.length, _LATENTS_PER_SECOND) - _MISSING_SECONDS)
    samples, rate, notices = None, None, []
    if vae is None:
        notices.append(f"the length is at the usual {_LATENTS_PER_SECOND} latents per second; --audio-model to be sure")
    else:
        config = vae.config
        samples, rate = config.num_samples(file.length), config.sample_rate
        seconds = samples / rate
    difference = 0 if video_seconds is None else seconds - float(video_seconds)
    if abs(difference) > SLACK:
        distance = f"{abs(difference):.2f} s {'after' if difference > 0 else 'before'} the video"
        notices.append(f"the audio ends {distance}; a decode fills or cuts at most {float(SLACK):g} s")
    array = file.read_stored().astype(mx.float32)
    functions = {"mean": mx.mean, "std": mx.std, "min": mx.min, "max": mx.max}
    return {
        "kind": "audio latents",
        "name": file.source,
        "tensor": file.tensor,
        "stored_shape": list(file.stored_shape),
        "stored_dtype": file.stored_dtype,
        "layout": file.layout,
        "batch": file.batch,
        "latents": file.length,
        "normalized": file.normalized,
        "statistics": {name: to_float(function(array)) for name, function in functions.items()},
        "audio": {"seconds": seconds, "samples": samples, "sample_rate": rate, "vae": vae and vae.source.name},
        "notices": notices,
    }


# --- videos -----------------------------------------------------------------------------------------------------------


def inspect_video(path: Path, vae: VideoVAE | None) -> Report:
    """Describe a video or an image. Raises a `ReaderError` for anything else.

    `frames` and `seconds` are by the times in the file, as a `VideoReader` returns frames; nothing but the first frame
    is decoded. An unknown number is null, and so are `fps` and `seconds`, which images do not have; if `is_variable`,
    `fps` is the average, or of an animation the usual rate. Colors have ffmpeg's names, with "unknown" for a color that
    the file does not state; the size is after a `rotation` in degrees. `nearest` is the nearest size that encodes at
    the `scale` of `vae`, or at the usual scale if `vae` is null; it has no more frames than the video, but at least
    one.
    """
    check_text(path)
    info = probe(str(path), path, input_arguments(path))
    frames = estimate_num_frames(info, info.fps)
    scale = DEFAULT_SCALE if vae is None else vae.config.scale
    (width, height), shape = info.size, info.pixel_shape
    shown_width, shown_height = info.shown_size
    cells = (
        1 + ((frames or 1) - 1) // scale.time,
        max(1, round(shown_height / scale.height)),
        max(1, round(shown_width / scale.width)),
    )
    nearest = scale.video_grid(cells)
    rule = f"1 + {scale.time}k frames of multiples of {format_size(scale.width, scale.height)}"
    notices = [f"nearest is what encodes: {rule}{'' if vae else ', as usual; give -m VAE to be sure'}"]
    return {
        "kind": "video",
        "name": str(path),
        "frames": frames,
        "width": width,
        "height": height,
        "fps": info.fps and float(info.fps),
        "is_variable": info.is_variable,
        "seconds": info.seconds and float(info.seconds),
        "codec": info.codec,
        "pixel_format": info.frames.pixel_format,
        "is_interlaced": info.is_interlaced,
        "pixel_shape": [shape.numerator, shape.denominator],
        "rotation": info.rotation,
        "matrix": info.frames.matrix,
        "primaries": info.frames.primaries,
        "transfer": info.frames.transfer,
        "range": info.frames.levels,
        "nearest": {"frames": nearest[0], "width": nearest[2], "height": nearest[1]},
        "scale": scale._asdict(),
        "vae": vae and vae.source.name,
        "metadata": read_metadata(path),
        "notices": notices,
    }
