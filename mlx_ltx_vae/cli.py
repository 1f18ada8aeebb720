"""What the command-line modules share: exit codes, errors and warnings of one line, progress, kinds of arguments."""

import argparse
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import TypeVar

from tqdm import tqdm

from .errors import LTXVAEError
from .frame_rate import parse_fps
from .latents import parse_grid

Item = TypeVar("Item")

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Options that every command has."""
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Options of the commands that make something and tell about it at the end."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress and no report")


def run_command(command: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> int:
    """Run a command and turn what happens into an exit code.

    0 done; 1 anything that failed, with one line on standard error; 130 interrupted. (argparse exits with 2.)
    Warnings are one line on standard error too.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            command(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception as error:  # the last frame of the program: whatever failed becomes a line and a code
        if arguments.debug:
            traceback.print_exc()
        print(f"error: {describe(error)}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def describe(error: Exception) -> str:
    """An error in one line; those that this package does not raise itself say their kind."""
    text = " ".join(str(error).split())
    if isinstance(error, LTXVAEError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def with_progress(
    items: Iterable[Item], count: Callable[[Item], int], num_frames: int | None, arguments: argparse.Namespace
) -> Iterator[Item]:
    """Runs of frames as they are, with a bar on standard error where a person looks at it.

    Args:
        items: each some frames.
        count: how many an item has.
        num_frames: of all of them; None where that is not known.
        arguments: with `add_report_options`.
    """
    hidden = arguments.quiet or arguments.json or not sys.stderr.isatty()
    with tqdm(total=num_frames, unit="frame", disable=hidden) as bar:
        for item in items:
            yield item
            bar.update(count(item))


def frame_rate(text: str) -> Fraction:
    """The type of an option such as `--fps 23.976`."""
    try:
        return parse_fps(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def frame_size(text: str) -> tuple[int, int]:
    """The type of an option such as `--size 768x512`: (width, height)."""
    match = re.fullmatch(r"([0-9]+)x([0-9]+)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a width and a height such as 768x512")
    return int(match[1]), int(match[2])


def grid(text: str) -> tuple[int, int, int]:
    """The type of an option such as `--grid 16x22x40`: (F', H', W') of latents."""
    try:
        return parse_grid(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def tile(text: str) -> tuple[int, int]:
    """The type of an option such as `--tile 512:64`: (size, overlap)."""
    match = re.fullmatch(r"([0-9]+)(?::([0-9]+))?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size and an overlap such as 512:64")
    return int(match[1]), int(match[2] or 0)


def positive(text: str) -> int:
    """The type of an option such as `--chunk 2`."""
    if not re.fullmatch(r"[0-9]+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _show_warning(message: Warning | str, *_: object) -> None:
    # Through tqdm, so that it stands above a progress bar, where there is one.
    tqdm.write(f"warning: {' '.join(str(message).split())}", file=sys.stderr)
