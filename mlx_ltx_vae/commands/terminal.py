"""Run of a command: exit codes, reports, and one-line errors and warnings."""

import argparse
import atexit
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

import mlx.core as mx
from tqdm import tqdm

from .. import DecodeError, DistributedError, WriterError
from ..backend.device import explained_device_errors, has_reference_blas
from ..distributed import end_time_limit, is_lost_peer
from ..errors import OutputClosed, describe_error, one_line, printable, speaking_of_options, telling_notes, warn
from ..pipeline.progress import Bar
from ..process import ended_by_signals
from ..startup import is_command
from .cli import (
    BROKEN_PIPE,
    colored,
    describe_output_error,
    finish_output,
    leave_it_to_the_first_rank,
    rank_if_launched,
)


def run_command(
    command: Callable[[argparse.Namespace], None], arguments: argparse.Namespace, *, computes: bool = False
) -> int:
    """Run a command and return its exit code. `computes` means that it runs a network in this process.

    0: done. 1: failed, with one line on standard error. 130, 143, 129, 131: ended by SIGINT, SIGTERM, SIGHUP, SIGQUIT.
    (`CommandParser` exits with 2.) A warning is one line on standard error.
    """
    # MLX requires this call before Python shuts down; some versions are reported to abort at exit (134) without it.
    atexit.unregister(mx.clear_streams)
    atexit.register(mx.clear_streams)
    code = _run(command, arguments, computes)
    if (problem := finish_output()) and code == 0:
        code, message = problem
        _print_error(message)
    return code


def _run(command: Callable[[argparse.Namespace], None], arguments: argparse.Namespace, computes: bool) -> int:
    if is_command():
        tqdm.set_lock(Bar.get_lock())  # for the bars of downloads
    try:
        # Signals are ignored after this block, so that only the error is printed.
        with (
            explained_device_errors(),
            ended_by_signals(_is_silent),
            warnings.catch_warnings(),
            speaking_of_options(),
            telling_notes(note_printer(arguments)),
        ):
            warnings.showwarning = _show_warning
            if computes and not rank_if_launched() and has_reference_blas():
                warn(
                    "MLX computes with the reference BLAS, several times slower than with OpenBLAS; install "
                    "libopenblas0-pthread (Debian, Ubuntu) and start the command with LD_PRELOAD=libopenblas.so.0."
                )
            command(arguments)
    except KeyboardInterrupt:  # if another program calls the command's function
        _print_error("interrupted\n")
        return 130
    except (BrokenPipeError, OutputClosed):  # of standard output; errors of ffmpeg's pipes name a file instead
        return BROKEN_PIPE
    except Exception as error:  # every failure becomes one line and an exit code
        if arguments.debug:
            print_traceback(error)
        _print_error(f"error: {_describe_for_rank(error)}\n")
        return 1
    return 0


def _print_error(text: str) -> None:
    with suppress(OSError):  # only the exit code can report the error then
        sys.stderr.write(colored(text, sys.stderr))
        sys.stderr.flush()


def _is_silent(number: signal.Signals) -> bool:
    """Return whether another rank reports the signal. The launcher ends all ranks when one has failed."""
    rank = rank_if_launched()
    return rank is not None and (rank > 0 or number is not signal.SIGINT)


def _describe_for_rank(error: Exception) -> str:
    """Describe an error in one line. If the first rank may report it, wait, and return only if that rank does not."""
    rank = rank_if_launched()
    if rank is None:
        return describe_error(error)
    end_time_limit()
    is_lost = is_lost_peer(error)
    text = "another rank has ended before the work was done." if is_lost else describe_error(error)
    if rank == 0:
        return text
    if is_lost or isinstance(error, (DecodeError, DistributedError)):  # all ranks raise it, or another one caused it
        leave_it_to_the_first_rank()
    return f"rank {rank}: {text}"


def print_report(report: object, file: TextIO | None = None) -> None:
    """Print the `printable` form of a text of several lines. Names in it must already be `printable`."""
    print(_escape_lines(report), file=file)


def print_traceback(error: Exception) -> None:
    """Print the traceback as Python does, in its `printable` form."""
    _print_error(_escape_lines("".join(traceback.format_exception(error))))


def _escape_lines(text: object) -> str:
    return "\n".join(map(printable, str(text).split("\n")))


def write_line(text: str, file: TextIO) -> None:
    """Print the `printable` form of a line, flush it, and keep a progress bar intact."""
    try:
        Bar.write(colored(printable(text), file), file=file)
        file.flush()
    except OSError as error:
        if file is sys.stderr:
            return
        if isinstance(error, BrokenPipeError):
            raise
        raise WriterError(describe_output_error(error)) from error


def is_in_terminal() -> bool:
    """Return whether somebody may answer a question."""
    return bool(sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty())


def ask_to_replace(existing: Sequence[str], num_outputs: int = 1) -> bool:
    """Ask whether these of so many outputs, which exist, are replaced. Where nobody may answer, they are not."""
    if not is_in_terminal():
        return False
    question = f"{existing[0]}: already exists; replace it?"
    if len(existing) > 1:
        question = (
            f"{len(existing)} of {num_outputs} outputs already exist, such as {existing[0]}; replace all of them?"
        )
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes", "a", "all")


def note_printer(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Return a function that prints a note on standard error, unless -q is set. One rank prints for all."""
    is_silent = getattr(arguments, "quiet", False) or bool(rank_if_launched())
    return lambda text: None if is_silent else write_line(one_line(text), sys.stderr)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    write_line(f"warning: {one_line(message)}", sys.stderr)
