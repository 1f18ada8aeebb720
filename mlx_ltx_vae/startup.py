"""Prepares a process that is one of this package's commands. Imports nothing that takes long."""

import os
import signal
import sys

STANDARD_ERROR = 2

_is_command = False


def is_command() -> bool:
    """Whether this process is a command, which may set signal handlers and exit."""
    return _is_command


def prepare_process() -> None:
    """Make this process a command."""
    global _is_command
    _is_command = True
    # Until the command begins, nothing has to be cleaned up: Ctrl-C ends the imports without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _open_standard_files()
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        # Any file name is printed, also where the encoding lacks its letters. What is printed is written at the end,
        # where errors are expected, also with `python -u`.
        reconfigure(errors="backslashreplace", write_through=False)


def _open_standard_files() -> None:
    """Open what was closed at the start, so that no output file gets its number, and warnings go nowhere else."""
    for descriptor in range(STANDARD_ERROR + 1):
        try:
            os.fstat(descriptor)
        except OSError:
            # Standard output cannot be written then, which is an error of what is printed there.
            os.open(os.devnull, os.O_WRONLY if descriptor == STANDARD_ERROR else os.O_RDONLY)
    if sys.stderr is None:
        sys.stderr = open(STANDARD_ERROR, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
