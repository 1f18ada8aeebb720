"""The process of a command, and names that are imported at their first use."""

import atexit
import os
import signal
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

STANDARD_ERROR = 2

_is_command = False
_undo_functions: list[Callable[[], object]] = []  # undo `prepare_process`, called from the last to the first


def is_command() -> bool:
    """Return whether this process is a command, which may set signal handlers and exit."""
    return _is_command


def entry_point(name: str) -> Callable[..., int]:
    """Return the function `main(argv=None)` of a command."""

    def main(argv: list[str] | None = None) -> int:
        """Run the command and return the exit code; see `prepare_process`."""
        if argv is None:
            prepare_process()
        return import_name(f"{__package__}.commands:run")(name, argv)

    return main


def prepare_process() -> None:
    """Make this process a command.

    The process of a program that calls the `main` of a command as a function, with an `argv`, stays as it is.
    """
    # Ctrl-C ends the imports without a traceback. Nothing has to be cleaned up before the command begins.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _undo_functions.append(lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    # If SIGCHLD is ignored, the exit codes of programs are lost.
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _undo_functions.append(lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    global _is_command
    _is_command = True
    for name, mode in (("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:  # It was closed. Standard output then cannot be written, which is an error.
            setattr(sys, name, open(os.open(os.devnull, mode), "w", errors="backslashreplace"))  # noqa: SIM115
    atexit.register(_drop_errors)
    _undo_functions.append(lambda: atexit.unregister(_drop_errors))
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        names = ("errors", "write_through", "line_buffering")
        previous = {name: getattr(sys.stdout, name) for name in names if hasattr(sys.stdout, name)}
        _undo_functions.append(lambda: reconfigure(**previous))
        # File names are printed even if the encoding lacks their letters. Output is written at the end, also with
        # `python -u`, since errors are handled there; in a terminal by lines, between two drawings of a progress bar.
        reconfigure(errors="backslashreplace", write_through=False, line_buffering=sys.stdout.isatty())


def _drop_errors() -> None:
    """Drop text that standard error did not accept. Python would retry, and since 3.14 exit with 120 on failure."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), STANDARD_ERROR)


def release_process() -> None:
    """Restore the state in which Python starts a program, which then runs in this process."""
    global _is_command
    _is_command = False
    while _undo_functions:
        _undo_functions.pop()()


_was_forked = False


def _note_fork() -> None:
    global _was_forked
    peak_memory = getattr(sys.modules.get("mlx.core"), "get_peak_memory", None)
    _was_forked = peak_memory is not None and peak_memory() > 0  # the parent has made arrays


os.register_at_fork(after_in_child=_note_fork)


def was_forked() -> bool:
    """Return whether this process was forked from one that had used MLX, and had imported this package."""
    return _was_forked


class MissingBackend(ImportError):
    """Error of an import of MLX. Plans can be made without it."""


def check_mlx() -> None:
    """Check that MLX can be imported; otherwise raise a `MissingBackend` that says what to install."""
    try:
        import_module("mlx.core")
    except ImportError as error:
        raise MissingBackend(
            "MLX has no backend on this machine: on Linux install mlx_ltx_vae[cpu] or mlx_ltx_vae[cuda13]; on macOS "
            "MLX needs Apple Silicon and a native (arm64) Python."
        ) from error


def import_name(path: str) -> Any:
    """Import the object "module:name", or a module. Raise a `MissingBackend` if MLX cannot be imported."""
    module, _, name = path.partition(":")
    try:
        loaded_module = import_module(module)
    except ImportError:
        check_mlx()
        raise
    return getattr(loaded_module, name) if name else loaded_module


def import_command(path: str) -> Any:
    """Import the object "module:name". If MLX cannot be imported, exit with 1 and say what to install."""
    try:
        return import_name(path)
    except MissingBackend as error:
        raise SystemExit(f"error: {error}") from error


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports names at their first use, from the modules in `modules`.

    A name that is equal to the name of its module is the module itself.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = package + modules[name]
        value = import_name(module if modules[name] == f".{name}" else f"{module}:{name}")
        setattr(sys.modules[package], name, value)
        return value

    return get
