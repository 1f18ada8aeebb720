"""Shared parts of the commands: exit codes, one-line errors and warnings, progress, and argument types."""

import argparse
import atexit
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import mlx.core as mx
from tqdm import tqdm

from .dtypes import DTYPES
from .errors import LTXVAEError
from .frame_rate import parse_fps
from .latents import parse_grid
from .tiling.config import parse_tile

Item = TypeVar("Item")
Value = TypeVar("Value")


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def add_plan_options(group: argparse._ArgumentGroup) -> None:
    """Add the options of commands that run a network: how they may use memory, and in which precision."""
    group.add_argument("--tile-batch-size", type=positive, default=1, metavar="N", help="tiles per batch (default: 1)")
    group.add_argument("--memory-budget", metavar="SIZE", help="limit of total memory: 8GB, 50%% (default: 50%%)")
    group.add_argument("--dtype", choices=list(DTYPES), help="compute in this precision (default: the checkpoint's)")
    group.add_argument("--dry-run", action="store_true", help="print the plan and stop")


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that write a file and report on it."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress and no report")


def run_command(command: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> int:
    """Run a command and return its exit code.

    0: done. 1: failed, with one line on standard error. 130: interrupted. (argparse exits with 2 for wrong usage.)
    Each warning is one line on standard error.
    """
    # MLX asks for this before Python shuts down; some versions are reported to abort at exit (134) without it.
    atexit.unregister(mx.clear_streams)
    atexit.register(mx.clear_streams)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            command(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # every failure becomes one line and an exit code
        if arguments.debug:
            traceback.print_exc()
        print(f"error: {_describe(error)}", file=sys.stderr)
        return 1
    return 0


def _describe(error: Exception) -> str:
    """An error in one line, with the class name of errors that are not this package's own."""
    text = " ".join(str(error).split())
    return text if isinstance(error, LTXVAEError) else f"{type(error).__name__}: {text}".rstrip(": ")


def with_progress(
    items: Iterable[Item], count: Callable[[Item], int], num_frames: int | None, arguments: argparse.Namespace
) -> Iterator[Item]:
    """The items unchanged, with a progress bar on standard error if it is a terminal.

    Args:
        count: the number of frames in an item.
        num_frames: the total; None if it is unknown.
        arguments: parsed with `add_report_options`.
    """
    hidden = arguments.quiet or arguments.json or not sys.stderr.isatty()
    with tqdm(total=num_frames, unit="frame", disable=hidden) as bar:
        for item in items:
            yield item
            bar.update(count(item))


def frame_size(text: str) -> tuple[int, int]:
    """The type of `--size 768x512`: (width, height)."""
    match = re.fullmatch(r"([0-9]+)x([0-9]+)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a width and a height such as 768x512")
    return int(match[1]), int(match[2])


def positive(text: str) -> int:
    """The type of `--chunk 2`: a whole number above 0."""
    if not re.fullmatch(r"[0-9]+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _argument_type(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """An argparse type that shows the message of `parse`'s ValueError, which argparse would replace."""

    def convert(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


#: The type of `--fps 23.976`: an exact Fraction.
frame_rate = _argument_type(parse_fps)
#: The type of `--grid 16x22x40`: (F', H', W').
grid = _argument_type(parse_grid)
#: The type of `--tile 512:64`: (size, overlap).
tile = _argument_type(parse_tile)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    # Through tqdm, which keeps the progress bar intact.
    tqdm.write(f"warning: {' '.join(str(message).split())}", file=sys.stderr)
