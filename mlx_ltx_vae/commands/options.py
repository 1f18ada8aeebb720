"""The options that several commands have, and what becomes of them below the commands: typed values."""

import argparse
from dataclasses import fields
from typing import Any, TypeVar, get_args

from ..backend.machine import DEFAULT_TIMEOUT, DtypeName, Work
from .cli import add_report_options, grid, memory_budget, positive

ValueT = TypeVar("ValueT")


def add_network_options(parser: argparse.ArgumentParser, *, demo: str, metavar: str = "VAE") -> None:
    """Add the options that choose the checkpoint."""
    files = "the checkpoint: file, folder, folder:file, or hub id"
    parser.add_argument("-m", "--model", metavar=metavar, help=files)
    parser.add_argument("--demo", action="store_true", help=f"use {demo}")


def add_latents_options(group: argparse._ActionsContainer) -> None:
    """Add the options of commands that read latents."""
    group.add_argument("--tensor", metavar="NAME", help="which tensor of a latent file that has several")
    sizes = "latent frames, rows and columns of packed latents (B, tokens, C), such as 16x22x40"
    group.add_argument("--grid", type=grid, metavar="FxHxW", help=sizes)


def add_tile_batch_option(how: argparse._ActionsContainer) -> None:
    """Add the option of commands that take tiles."""
    batch = "tiles that run together (default: 1)"
    how.add_argument("--tile-batch-size", type=positive, default=1, metavar="N", help=batch)


def add_job_options(parser: argparse.ArgumentParser, group: argparse._ActionsContainer) -> None:
    """Add the options of commands that run a network.

    To the `group`, how they may use memory, and in which precision; to the parser, what to do with outputs that exist,
    what to report, and those of every command.
    """
    budget = """the most memory that this may take, weights and MLX's buffer cache included: 8GB, 500MB, or 50%% of what
        is available; what does not fit is refused (default: 50%%, or more if nothing fits in that)"""
    group.add_argument("--memory-budget", type=memory_budget, metavar="SIZE", help=budget)
    group.add_argument(
        "--dtype", choices=get_args(DtypeName), help="compute in this precision (default: the checkpoint's)"
    )
    shared = """with mlx.launch, what its ranks share. rows: one video, each computes a band of its rows, exactly; the
        memory budget is that of each. batch: several videos, each computes and writes whole ones. off: the first rank
        works alone. auto (default): batch for several videos, rows for one"""
    group.add_argument("--distributed", choices=["auto", *(work.value for work in Work)], default="auto", help=shared)
    timeout = """with mlx.launch, end if the ranks exchange nothing for this long, because one is stopped or asleep
        (default: %(default)s)"""
    group.add_argument("--rank-timeout", type=positive, default=DEFAULT_TIMEOUT, metavar="SECONDS", help=timeout)
    group.add_argument("--dry-run", action="store_true", help="print the plan with its peak memory, and stop")
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--skip-existing", action="store_true", help="leave out inputs whose output exists")
    existing.add_argument("-y", "--overwrite", action="store_true", help="replace outputs that exist (default)")
    absent = "fail for inputs whose output exists, and replace nothing"
    existing.add_argument("-n", "--no-overwrite", action="store_true", help=absent)
    add_report_options(parser)


def take(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The arguments of these names, by name."""
    return {name: getattr(arguments, name) for name in names}


def pick(kind: type[ValueT], arguments: argparse.Namespace, **values: object) -> ValueT:
    """A dataclass of the arguments that have the names of its fields, and of other values."""
    names = {field.name for field in fields(kind)} - values.keys()  # type: ignore[arg-type]
    return kind(**take(arguments, *names), **values)
