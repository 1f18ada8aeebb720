"""`mlx_ltx_vae export`: export a decode as MLX functions, which other programs run."""

import argparse
import json
import time

from ..backend.device import backend, computing_for
from ..backend.machine import Backend
from ..checkpoint import open_checkpoint
from ..conversion import check_folder_name
from ..vae import VideoVAE
from .cli import CommandParser
from .model_choice import choose_by_environment
from .terminal import print_report, run_command


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
    start = time.perf_counter()
    target = Backend(arguments.backend) if arguments.backend else backend()
    with computing_for(target):
        networks = {"encoder": arguments.encoder, "decoder": not arguments.encoder}
        vae = VideoVAE.from_pretrained(open_checkpoint(arguments.model, **networks), dtype=arguments.dtype, **networks)
        exported = vae.export(
            arguments.output,
            arguments.size,
            encoder=arguments.encoder,
            reader=arguments.reader,
            memory_budget=arguments.memory_budget,
            weights=arguments.weights,
            seed=arguments.seed,
            timestep=arguments.timestep,
            noise_scale=arguments.noise_scale,
            like=arguments.like,
        )
    if arguments.json:
        print_report(json.dumps({**exported.as_dict(), "seconds": time.perf_counter() - start}))
    elif not arguments.quiet:
        print_report(exported)
