"""`mlx_ltx_vae convert`: convert a checkpoint to a folder that MLX loads faster, or verify such a folder.

It also converts saved latents to a file for ComfyUI.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from functools import partial

import mlx.core as mx

from .. import VideoVAE
from ..conversion import check_folder_name, convert_checkpoint, convert_latents, open_networks, verify_conversion
from ..errors import printable
from ..files import check_distinct, check_new_folder, is_pipe
from ..latents import is_for_comfyui
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
        return run_command(_convert, arguments)
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
    """Convert a checkpoint, or verify a conversion."""
    is_silent, start, summary = arguments.quiet or arguments.json, time.perf_counter(), ""
    progress = partial(Bar, unit="tensor", disable=is_silent or not sys.stderr.isatty())
    if arguments.verify:
        source, converted = (open_networks(path, arguments.only) for path in arguments.verify)
        verification = verify_conversion(source, converted, progress=progress)
        values = asdict(verification)
    else:
        check_new_folder(arguments.output)
        source, dtype = open_networks(arguments.source, arguments.only), _dtype(arguments)
        conversion = convert_checkpoint(source, arguments.output, dtype=dtype, progress=progress)
        values = {**asdict(conversion), "seconds": time.perf_counter() - start}
        verification, written = conversion.verification, conversion.written
        summary = (
            f"{printable(conversion.output)}: {' and '.join(conversion.networks)} ({conversion.generation}), "
            f"{written.tensors} tensors in {' and '.join(written.dtypes)}, {format_bytes(written.bytes)}, "
            f"in {values['seconds']:.1f} s\n"
        )
    peak, (before, after) = mx.get_peak_memory(), verification.load_seconds
    if arguments.json:
        print_report(json.dumps({**values, "peak_memory_bytes": peak}))
    elif not arguments.quiet:
        loading = f"Loading: {after:.2f} s, the source {before:.2f} s"
        print_report(f"{summary}Verified: {verification}\n{loading}\nPeak MLX memory: {format_bytes(peak)}")


def _convert_latents(arguments: argparse.Namespace) -> None:
    """Write the latents of a file as ComfyUI's node LoadLatent reads them."""
    source, output, start = arguments.source, arguments.output, time.perf_counter()
    tensor, grid = arguments.tensor, arguments.grid
    if VideoVAE.is_remote(arguments.model) and source != "-" and not is_pipe(source):
        open_without_vae(source, tensor=tensor, grid=grid)
    check_distinct([output], [source])
    name, shape, dtype = convert_latents(
        source,
        output,
        model=arguments.model,
        tensor=tensor,
        grid=grid,
        unnormalized=arguments.unnormalized,
        dtype=_dtype(arguments),
        overwrite=arguments.overwrite or (os.path.isfile(output) and ask_to_replace([output])),
    )
    if arguments.json:
        seconds = time.perf_counter() - start
        print_report(json.dumps({"source": source, "output": name, "latent_shape": shape, "seconds": seconds}))
    elif not arguments.quiet:
        dtype_name = str(dtype).rpartition(".")[2]
        print_report(f"{printable(name)}: latents {tuple(shape)}, {dtype_name}, for ComfyUI's LoadLatent")


def _dtype(arguments: argparse.Namespace) -> mx.Dtype | None:
    return getattr(mx, arguments.dtype or "", None)
