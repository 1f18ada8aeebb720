"""`mlx_ltx_vae export`: export a decode as MLX functions, which other programs run."""

import argparse
import json
import time
from pathlib import Path

from .. import VideoVAE
from ..backend.device import backend, computing_for
from ..backend.machine import Backend
from ..conversion import check_folder_name
from ..errors import printable
from ..files import check_new_folder
from ..pipeline.export import find_exported
from .cli import CommandParser
from .items import existing_outputs_error
from .model_choice import choose_by_environment
from .terminal import ask_to_replace, print_report, run_command


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    choose_by_environment(arguments)
    for value, missing in (
        (arguments.model, "-m VAE is missing: the checkpoint"),
        (arguments.output, "-o FOLDER is missing: where to write the functions"),
        (arguments.size, "--size WxH is missing: the size of the videos, such as 768x512"),
    ):
        if not value:
            parser.error(missing)
    with parser.wrong_usage():
        check_folder_name(arguments.output)
    return run_command(_export, arguments)


def _export(arguments: argparse.Namespace) -> None:
    start, folder = time.perf_counter(), Path(arguments.output)
    exported_files = find_exported(folder)
    if exported_files and arguments.skip_existing:
        if arguments.json:
            print_report(json.dumps({"folder": arguments.output, "skipped": True}))
        elif not arguments.quiet:
            print_report(f"{printable(arguments.output)}: skipped, found an export")
        return
    overwrite = arguments.overwrite or bool(exported_files and ask_to_replace([arguments.output]))
    if exported_files and not overwrite:
        raise existing_outputs_error([arguments.output], 1)
    check_new_folder(arguments.output, exported_files)
    target = Backend(arguments.backend) if arguments.backend else backend()
    with computing_for(target):
        vae = VideoVAE.from_pretrained(
            arguments.model, dtype=arguments.dtype, encoder=arguments.encoder, decoder=not arguments.encoder
        )
        exported = vae.export(
            arguments.output,
            arguments.size,
            encoder=arguments.encoder,
            reader=arguments.reader,
            memory_budget=arguments.memory_budget,
            weights=arguments.weights,
            overwrite=overwrite,
            seed=arguments.seed,
            timestep=arguments.timestep,
            noise_scale=arguments.noise_scale,
            like=arguments.like,
        )
    if arguments.json:
        print_report(json.dumps({**exported.as_dict(), "seconds": time.perf_counter() - start}))
    elif not arguments.quiet:
        print_report(exported)
