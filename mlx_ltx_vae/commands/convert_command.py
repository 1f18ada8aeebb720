"""`mlx_ltx_vae convert`: convert a checkpoint to a folder that MLX loads faster, or verify such a folder.

It also converts saved latents to a file for ComfyUI.
"""

import argparse
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from .. import CheckpointError, VideoVAE
from ..backend.mlx_utils import DTYPES, dtype_name
from ..checkpoint import Checkpoint, open_checkpoint
from ..conversion import Progress, Verification, check_folder_name, convert_checkpoint, verify_conversion
from ..errors import printable, warn
from ..files import check_distinct, check_file, check_new_folder, is_pipe
from ..latents import LatentsWriter, is_for_comfyui, open_latents
from ..networks.base import AUDIO
from ..pipeline.inputs import open_without_vae
from ..pipeline.progress import Bar
from ..units import format_bytes
from .cli import CommandParser
from .terminal import ask_to_replace, print_report, run_command


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if arguments.verify:
        if arguments.source or arguments.output or arguments.dtype:
            parser.error("--verify A B writes nothing; leave out SOURCE, -o and --dtype")
        return run_command(_verify, arguments)
    if not arguments.source:
        parser.error("SOURCE is missing (or --verify A B)")
    if not arguments.output:
        parser.error("-o FOLDER is missing: where to write the converted checkpoint")
    if is_for_comfyui(arguments.output):
        if arguments.only:
            parser.error(f"--only is for checkpoints, and {arguments.output} is for latents; leave it out")
        return run_command(_convert_latents, arguments)
    for name in ("model", "unnormalized", "tensor", "grid", "overwrite"):
        if getattr(arguments, name):
            parser.error(f"--{name} is for latents; name a file for them, such as -o clip.latent")
    with parser.wrong_usage():
        check_folder_name(arguments.output)
    return run_command(_convert, arguments)


def _convert(arguments: argparse.Namespace) -> None:
    start = time.perf_counter()
    check_new_folder(arguments.output)
    checkpoint, dtype = _open(arguments.source, arguments.only), DTYPES.get(arguments.dtype)
    conversion = convert_checkpoint(checkpoint, arguments.output, dtype=dtype, progress=_progress(arguments))
    seconds, written = time.perf_counter() - start, conversion.written
    summary = (
        f"{printable(conversion.output)}: {' and '.join(conversion.networks)} ({conversion.generation}), "
        f"{written.tensors} tensors in {' and '.join(written.dtypes)}, {format_bytes(written.bytes)}, "
        f"in {seconds:.1f} s\n"
    )
    _report(arguments, {**asdict(conversion), "seconds": seconds}, summary, conversion.verification)


def _convert_latents(arguments: argparse.Namespace) -> None:
    """Write the latents of a file, some frames at a time, as ComfyUI's node LoadLatent reads them."""
    output, start = arguments.output, time.perf_counter()
    if VideoVAE.is_remote(arguments.model) and arguments.source != "-" and not is_pipe(arguments.source):
        open_without_vae(arguments.source, tensor=arguments.tensor, grid=arguments.grid)
    check_distinct([output], [arguments.source])
    overwrite = arguments.overwrite or (os.path.isfile(output) and ask_to_replace([output]))
    check_file(Path(output), overwrite=overwrite)
    checkpoint = None if arguments.model is None else open_checkpoint(arguments.model)
    channels, scale, statistics = None, None, None
    if checkpoint is not None:
        config, statistics = checkpoint.config, checkpoint.read_statistics()
        channels, scale = config.latent_channels, config.scale
    file = open_latents(
        arguments.source, latent_channels=channels, tensor=arguments.tensor, grid=arguments.grid, scale=scale
    )
    latents = file.map(statistics=statistics, unnormalized=arguments.unnormalized)
    parts = ["audio"] * (file.find_audio() is not None) + ["keyframes"] * file.has_keyframes
    if parts:
        warn(f"{file.info.source}: ComfyUI reads no {' and no '.join(parts)} from {output}; they are left out.")
    dtype = DTYPES.get(arguments.dtype, latents.dtype)
    with LatentsWriter(output, overwrite=overwrite) as writer:
        for frame in range(file.shape.frames):
            writer.write(latents[:, :, frame : frame + 1].astype(dtype))
        sizes = {name: getattr(file.info, name) for name in ("num_frames", "height", "width", "source_frames", "carry")}
        new_path = writer.complete(fps=file.info.fps, sizes=sizes, space=file.info.space)
    name, seconds = str(new_path or output), time.perf_counter() - start
    if arguments.json:
        report = {"source": arguments.source, "output": name, "latent_shape": file.shape, "seconds": seconds}
        print_report(json.dumps(report))
    elif not arguments.quiet:
        print_report(f"{printable(name)}: latents {tuple(file.shape)}, {dtype_name(dtype)}, for ComfyUI's LoadLatent")


def _verify(arguments: argparse.Namespace) -> None:
    source, converted = (_open(path, arguments.only) for path in arguments.verify)
    verification = verify_conversion(source, converted, progress=_progress(arguments))
    _report(arguments, asdict(verification), "", verification)


def _open(source: str, only: str | None) -> Checkpoint:
    if only == "audio":
        return open_checkpoint(source, medium=AUDIO)
    try:
        return open_checkpoint(source, encoder=only != "decoder", decoder=only != "encoder")
    except CheckpointError:
        if only is not None or not os.path.exists(source):
            raise
        with suppress(CheckpointError):
            return open_checkpoint(source, medium=AUDIO)
        raise


def _report(arguments: argparse.Namespace, values: dict[str, Any], summary: str, verification: Verification) -> None:
    peak = mx.get_peak_memory()
    if arguments.json:
        print_report(json.dumps({**values, "peak_memory_bytes": peak}))
    elif not arguments.quiet:
        before, after = verification.load_seconds
        print_report(
            f"{summary}Verified: {verification}\n"
            f"Loading: {after:.2f} s, the source {before:.2f} s\n"
            f"Peak MLX memory: {format_bytes(peak)}"
        )


def _progress(arguments: argparse.Namespace) -> Progress:
    return partial(Bar, unit="tensor", disable=arguments.quiet or arguments.json or not sys.stderr.isatty())
