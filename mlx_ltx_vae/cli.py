"""What the command-line modules share: exit codes, and errors of one line."""

import argparse
import sys
import traceback
from collections.abc import Callable

from .errors import LTXVAEError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Options that every command has."""
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")


def run_command(command: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> int:
    """Run a command and turn what happens into an exit code.

    0 done; 1 anything that failed, with one line on standard error; 130 interrupted. (argparse exits with 2.)
    """
    try:
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
