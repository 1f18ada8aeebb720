"""Imported first: prepares a process that is one of this package's commands, and changes nothing in any other."""

import os
import signal
import sys

_PACKAGES = ("mlx_ltx_vae", "weights_convert")
STANDARD_ERROR = 2


def _runs_a_command() -> bool:
    """Whether Python was started as `python -m mlx_ltx_vae.decode`, or by the console script of that name."""
    arguments: list[str] = getattr(sys, "argv", [])
    if not arguments:
        return False
    if os.path.basename(arguments[0]).startswith(_PACKAGES[0] + "."):
        return True
    # The module's name is followed by as many words as the program has arguments.
    *_, option, module = ["", "", *sys.orig_argv[: len(sys.orig_argv) - len(arguments) + 1]]
    if module.startswith("-m"):
        module = module[2:]
    elif not (option.startswith("-") and option.endswith("m")):
        return False
    return module.split(".")[0] in _PACKAGES


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


def _prepare() -> None:
    # Until the command begins, nothing has to be cleaned up: Ctrl-C ends the imports without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _open_standard_files()
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        # Any file name is printed, also where the encoding lacks its letters. What is printed is written at the end,
        # where errors are expected, also with `python -u`.
        reconfigure(errors="backslashreplace", write_through=False)


#: Whether this process is a command, which may set signal handlers and exit.
IS_COMMAND = _runs_a_command()
if IS_COMMAND:
    _prepare()
