"""`mlx_ltx_vae export`: export a decode as MLX functions, which other programs run."""

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from .. import VideoVAE
from ..backend.device import backend, computing_for
from ..backend.machine import Backend
from ..conversion import check_folder_name
from ..errors import printable
from ..files import check_new_folder
from ..pipeline.export import find_exported
from ..shapes import Size
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
    sizes = dict.fromkeys(arguments.size)
    folders = {os.path.join(arguments.output, f"{width}x{height}"): (width, height) for width, height in sizes}
    if is_single := len(sizes) == 1:
        folders = {arguments.output: arguments.size[0]}
    existing = {name: files for name in folders if (files := find_exported(Path(name)))}
    reports: list[dict[str, Any]] = []
    if arguments.skip_existing:
        for name in existing:
            del folders[name]
            reports.append({"output": name, "skipped": True})
            if not arguments.json and not arguments.quiet:
                print_report(f"{printable(name)}: skipped, found an export")
    elif existing and not (arguments.overwrite or ask_to_replace([*existing], len(folders))):
        raise existing_outputs_error([*existing], len(folders))
    for name in folders:
        check_new_folder(name, existing.get(name, ()), makes_folders=not is_single)
    if folders:
        replaced = existing.keys() & folders.keys()
        reports += _export_folders(arguments, folders, replaced, shares_weights=not is_single)
    if arguments.json:
        print_report(json.dumps(reports[0] if len(reports) == 1 else {"exports": reports}))


def _export_folders(
    arguments: argparse.Namespace, folders: Mapping[str, Size], replaced: Set[str], *, shares_weights: bool
) -> Iterator[dict[str, Any]]:
    """Write a folder for each size, of which some are replaced, print what it has, and yield its report."""
    start = time.perf_counter()
    networks = {"encoder": arguments.encoder, "decoder": not arguments.encoder}
    names = ("encoder", "reader", "memory_budget")
    options: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    with computing_for(Backend(arguments.backend) if arguments.backend else backend()):
        vae = VideoVAE.before_download(arguments.model, dtype=arguments.dtype, **networks)
        if vae is not None:
            for size in folders.values():
                vae.plan_export(size, **options)
        if vae is None or VideoVAE.is_remote(arguments.model):
            vae = VideoVAE.from_pretrained(arguments.model, dtype=arguments.dtype, **networks)
        options |= {name: getattr(arguments, name) for name in ("seed", "timestep", "noise_scale", "like")}
        for name, size in folders.items():
            exported = vae.export(name, size, shares_weights=shares_weights, overwrite=name in replaced, **options)
            if not arguments.json and not arguments.quiet:
                print_report(exported)
            yield exported.as_dict() | {"seconds": time.perf_counter() - start}
