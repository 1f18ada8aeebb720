"""`mlx_ltx_vae bench`: measure time and peak memory of decodes and an encode of noise on this machine.

Modes alternate, so that a change of the machine's speed affects all of them.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from .. import CheckpointError, DecodePlan, EncodePlan, FrameChunk, LTXVAEError, VideoVAE
from ..backend.device import backend
from ..pipeline.progress import Bar
from ..shapes import format_size
from ..units import format_bytes, format_count
from .cli import CommandParser, launched_rank
from .terminal import print_report, run_command, write_line

#: The mode that is an encode.
ENCODE = "encode"

_NOISE_FRAMES = 8  # at a time

#: A mode, and the order of the exact mode.
Way = tuple[Any, Any]
#: What was measured of a way, with the settings.
Run = dict[str, Any]
#: Frames, height and width.
Video = tuple[int, int, int]


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if launched_rank() is not None:
        parser.error("it measures one process; start bench without a launcher")
    if arguments.order and "exact" not in (arguments.mode or ["exact"]):
        parser.error("--order belongs to the exact mode; add --mode exact")
    with parser.wrong_usage():
        name, channels = arguments.generation, arguments.base_width
        is_encoded = ENCODE in (arguments.mode or ()) and not arguments.model
        vae = VideoVAE.with_random_weights(name, base_channels=channels, encoder=is_encoded)
        if not arguments.model:  # the scale of a checkpoint is known when it is opened
            vae.config.scale.latent_grid(_video(arguments))
    return run_command(_bench, arguments, computes=True)


def _bench(arguments: argparse.Namespace) -> None:
    modes = arguments.mode or ["exact", "single"]
    if not arguments.mode:
        with suppress(CheckpointError):
            _open(arguments, is_encoder=True)
            modes.append(ENCODE)
    ways = [(mode, order) for mode in modes for order in (mode == "exact" and arguments.order) or ["auto"]]
    ways.sort(key=_is_encode)  # one network is loaded after the other
    turns = [way for _, group in groupby(ways, _is_encode) for way in [*group] * arguments.repeat]
    runs: dict[Way, list[Run]] = {way: [] for way in ways}
    errors: dict[Way, str] = {}
    as_json, vae = arguments.progress == "json", None
    for number, way in enumerate(Bar(turns, unit="run", disable=as_json or arguments.json or not sys.stderr.isatty())):
        if as_json:
            values = {"phase": "measuring", "name": _name(way), "fraction": number / len(turns)}
            write_line(json.dumps(values), sys.stderr)
        if vae is None or _is_encode(way) != _is_encode(turns[number - 1]):
            vae = None  # its memory is for the next one
            vae = _open(arguments, is_encoder=_is_encode(way))
        try:
            if way not in errors:
                runs[way].append(_measure(vae, _video(arguments), *way))
        except LTXVAEError as error:
            errors[way] = str(error)
    if len(errors) < len(ways):
        settings = {name: getattr(arguments, name) for name in ("model", "generation", "base_width")}
        settings |= {"width": arguments.size[0], "height": arguments.size[1], "frames": arguments.num_frames}
        rows = [settings | run for way in ways for run in runs[way]]
        rows += [settings | {"mode": mode, "order": order, "error": text} for (mode, order), text in errors.items()]
        document = {"machine": _describe_machine(), "runs": rows}
        if as_json:
            write_line(json.dumps({"phase": "done", "fraction": 1.0, "report": document}), sys.stderr)
        print_report(json.dumps(document) if arguments.json else _report(arguments, runs))
    if errors:
        way, text = next(iter(errors.items()))
        raise LTXVAEError(f"{len(errors)} of {len(ways)} measurements failed; the first, {_name(way)}: {text}")


def _video(arguments: argparse.Namespace) -> Video:
    width, height = arguments.size
    return arguments.num_frames, height, width


def _is_encode(way: Way) -> bool:
    return way[0] == ENCODE


def _open(arguments: argparse.Namespace, *, is_encoder: bool) -> VideoVAE:
    """Open a VAE with one of its networks: the checkpoint's, or with random weights."""
    dtype = arguments.dtype
    if arguments.model:
        return VideoVAE.from_pretrained(arguments.model, dtype=dtype, encoder=is_encoder, decoder=not is_encoder)
    name, channels = arguments.generation, arguments.base_width
    return VideoVAE.with_random_weights(
        name, base_channels=channels, dtype=dtype, encoder=is_encoder, decoder=not is_encoder
    )


def _measure(vae: VideoVAE, video: Video, mode: Any, order: Any) -> Run:
    """Run a decode of noise, or an encode. `planned_bytes` is the planned peak of MLX's memory."""
    plan: DecodePlan | EncodePlan
    vae.load()  # before the clock starts
    if mode == ENCODE:
        vae.config.scale.latent_grid(video)  # raises for frames that would be left out
        plan = vae.plan_encode((*video, 3))
        counts = map(_count_latents, vae.encode_stream(_noise_frames(video), plan))
    else:
        shape = (1, vae.config.latent_channels, *vae.config.scale.latent_grid(video))
        latents = mx.random.normal(shape, key=mx.random.key(0))
        mx.eval(latents)
        plan = vae.plan(shape, mode=mode, order=order, bit_depth=8)
        counts = map(_count_frames, vae.stream(latents, plan, bit_depth=8))  # map holds no chunk while it waits
    mx.clear_cache()
    mx.reset_peak_memory()
    start = time.perf_counter()
    arrivals = [(time.perf_counter() - start, count) for count in counts]
    return {
        "mode": mode,
        "order": plan.order.value,
        "dtype": str(vae.dtype).removeprefix("mlx.core."),
        "planned_bytes": plan.memory.active,
        "weights_bytes": plan.memory.weights,
        "num_outputs": sum(count for _, count in arrivals),
        "seconds": time.perf_counter() - start,
        "first_frame_seconds": arrivals[0][0],
        "peak_memory_bytes": mx.get_peak_memory(),
    }


def _count_frames(chunk: FrameChunk) -> int:
    return len(chunk.to_uint8())


def _count_latents(latents: mx.array) -> int:
    mx.eval(latents)
    return latents.shape[2]


def _noise_frames(video: Video) -> Iterator[np.ndarray]:
    """Yield frames (n, H, W, 3) uint8, the same each time."""
    random = np.random.default_rng(0)
    for start in range(0, video[0], _NOISE_FRAMES):
        num_frames = min(_NOISE_FRAMES, video[0] - start)
        yield random.integers(0, 256, (num_frames, *video[1:], 3), dtype=np.uint8)


def _describe_machine() -> dict[str, Any]:
    """Return the hardware and the software, on which results depend."""
    info = mx.device_info()
    return {
        "platform": platform.platform(),
        "processor": info.get("device_name") or platform.processor() or platform.machine(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "device": str(mx.default_device()),
        "backend": backend().value,
        "mlx": version("mlx"),
        "version": version("mlx_ltx_vae"),
        "tf32": os.environ.get("MLX_ENABLE_TF32"),
    }


def _name(way: Way) -> str:
    return ENCODE if _is_encode(way) else f"decode ({way[0]})"


def _report(arguments: argparse.Namespace, runs: Mapping[Way, list[Run]]) -> str:
    """Format medians as a Markdown table, below the machine and what ran."""
    machine = _describe_machine()
    dtype = next(way_runs[0]["dtype"] for way_runs in runs.values() if way_runs)
    width = f", {arguments.base_width} base channels" if arguments.base_width else ""
    # A table to publish has no path in it.
    random = f"{arguments.generation} with random weights{width}"
    weights = Path(arguments.model).name if arguments.model else random
    rows: list[tuple[str, ...]] = [("", "order", "seconds", "first frame", "peak MB", "planned MB", "weights MB")]
    rows += [_row(way, way_runs) for way, way_runs in runs.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    cells.insert(1, ["-" * width for width in widths])
    lines = [
        f"{machine['processor']}, {format_bytes(machine['memory_bytes'])}, {machine['platform']}, "
        f"{machine['backend']} backend, MLX {machine['mlx']}, mlx_ltx_vae {machine['version']}",
        f"{weights}, {dtype}, {format_count(arguments.num_frames, 'frame')} of {format_size(*arguments.size)}",
        "",
        *(f"| {' | '.join(row)} |" for row in cells),
        "",
        f"Medians of {format_count(arguments.repeat, 'run')} in turns. Peaks are of MLX's memory, weights included.",
    ]
    return "\n".join(lines)


def _row(way: Way, runs: list[Run]) -> tuple[str, ...]:
    if not runs:
        return _name(way), "", "failed", "", "", "", ""
    seconds, first_seconds = (statistics.median(run[key] for run in runs) for key in ("seconds", "first_frame_seconds"))
    peak, first_run = max(run["peak_memory_bytes"] for run in runs), runs[0]
    return (
        _name(way),
        first_run["order"] if way[0] == "exact" else "",
        f"{seconds:.2f}",
        "" if _is_encode(way) else f"{first_seconds:.2f}",
        *(f"{size / 1e6:.0f}" for size in (peak, first_run["planned_bytes"], first_run["weights_bytes"])),
    )
