"""`mlx_ltx_vae info`: describe a checkpoint, a latent file or a video, or plan a decode without a file."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from .. import LTXVAEError, VideoVAE
from ..errors import ItemsError, describe_error, printable, telling_warnings
from ..inspect import format_report, inspect, summarize
from ..options import OutputOptions, PlanOptions
from .cli import CommandParser
from .items import files_in
from .jobs import plan_report
from .options import read_options
from .terminal import print_report, run_command, write_line

_SHARED_OPTIONS = ("json", "debug")
_PLAN_OPTIONS = ("size", "frames", "memory_budget", "dtype", "mode", "order")
_FILE_OPTIONS = ("all", "model", "audio_model", "tensor", "audio_tensor", "grid")


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if arguments.size is None and arguments.frames is None:
        allowed_options = (*_FILE_OPTIONS, *_SHARED_OPTIONS)
        parser.refuse_others(arguments, allowed_options, "a plan without a file needs --size WxH and --frames N")
        return run_command(_info, arguments)
    reason = "--size and --frames plan a decode without a file"
    parser.refuse_others(arguments, (*_PLAN_OPTIONS, *_SHARED_OPTIONS), reason)
    if arguments.size is None or arguments.frames is None:
        parser.error("a plan without a file needs --size WxH and --frames N, of the video")
    width, height = arguments.size
    with parser.wrong_usage():
        options = read_options(PlanOptions, arguments, holds_latents=False, outputs=(OutputOptions().frames,))
        vaes = [VideoVAE.published(name, dtype=arguments.dtype) for name in arguments.file]
        for vae in vaes:
            vae.config.scale.latent_grid((arguments.frames, height, width))
    return run_command(partial(_print_plans, vaes, options), arguments)


def _print_plans(vaes: Sequence[VideoVAE], options: PlanOptions, arguments: argparse.Namespace) -> None:
    """Print the plans that `decode` would follow for a file, with frames of 8 bits."""
    width, height = arguments.size
    for index, vae in enumerate(vaes):
        plan = vae.plan_video((arguments.frames, height, width), options)
        values, text = plan_report(plan, {"vae": vae.source.networks["decoder"]})
        text = json.dumps({"kind": "plan", **values}) if arguments.json else text
        print_report(f"\n{text}" if index and not arguments.json else text)


def _info(arguments: argparse.Namespace) -> None:
    """Print a report of each file, or a line for each in a folder. An error does not stop the other files."""
    num_failed, has_text = 0, False
    files = [(file, len(paths) > 1) for paths in map(_find_files, arguments.file) for file in paths]
    for file, is_in_folder in files:
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
        summary = printable(summarize(report))
        if arguments.json:
            print_report(json.dumps(report))
        elif is_in_folder and not arguments.all:
            print_report(f"{printable(file)}: {summary}")
        else:
            text = f"{summary}\n\n{format_report(report)}"
            print_report(f"\n{text}" if has_text else text)
        has_text = True
    if num_failed:
        raise ItemsError(f"{num_failed} of {len(files)} files cannot be described.")


def _find_files(source: str) -> list[str]:
    """Return the files of a folder of latents, or the source itself, such as a folder that is a checkpoint."""
    if not os.path.isdir(source):
        return [source]
    try:
        files = files_in(source, of_videos=False)
    except LTXVAEError:
        return [source]
    with telling_warnings(lambda text: None):  # of a file that is described alone or with its folder below
        for file in files:
            with suppress(LTXVAEError):  # the first one that can be read tells
                is_of_latents = inspect(file)["kind"] in ("latents", "audio latents", "keyframes")
                return files if is_of_latents else [source]
    return [source]
