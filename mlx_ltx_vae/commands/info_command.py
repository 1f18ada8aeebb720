"""`mlx_ltx_vae info`: describe a checkpoint, a latent file or a video."""

import argparse
import json
import os
import sys
from itertools import chain

from ..errors import ItemsError, LTXVAEError, describe_error, printable, telling_warnings
from ..inspect import format_report, inspect, summarize
from .cli import CommandParser
from .items import files_in
from .running import print_report, run_command, write_line


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    return run_command(_info, arguments)


def _info(arguments: argparse.Namespace) -> None:
    """Print a report of each file. The error of one among several does not stop the others."""
    num_failed, files = 0, list(chain.from_iterable(map(_find_files, arguments.file)))
    for index, file in enumerate(files):
        try:
            report = inspect(
                file,
                vae=arguments.model,
                audio_vae=arguments.audio_model,
                tensor=arguments.tensor,
                audio_tensor=arguments.audio_tensor,
                grid=arguments.grid,
            )
        except (LTXVAEError, OSError) as error:
            if len(files) == 1:
                raise
            num_failed += 1
            write_line(f"error: {describe_error(error)}", sys.stderr)
            continue
        summary = "" if arguments.json else printable(summarize(report))
        text = json.dumps(report) if arguments.json else format_report(report)
        text = f"{summary}\n\n{text}" if summary else text
        print_report(f"\n{text}" if index and not arguments.json else text)
    if num_failed:
        raise ItemsError(f"{num_failed} of {len(files)} files cannot be described.")


def _find_files(source: str) -> list[str]:
    """Return the files of a folder of latents, or the source itself, such as a folder that is a checkpoint."""
    if not os.path.isdir(source):
        return [source]
    try:
        files = files_in(source, of_videos=False)
        with telling_warnings(lambda text: None):  # of a file that is described alone or with its folder below
            is_of_latents = inspect(files[0])["kind"] in ("latents", "audio latents", "keyframes")
    except LTXVAEError:
        return [source]
    return files if is_of_latents else [source]
