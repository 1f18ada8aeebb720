"""Steps before slow imports: names that are imported at their first use, and a command's process.

Ctrl-C prints a traceback until the process is prepared. Before that, a command loads three files: the package, this
module, and its own (`decode.py`). They import nothing that Python has not loaded.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

STANDARD_ERROR = 2

_is_command = False
_given_back: "list[Callable[[], object]]" = []  # what returns the process to the state before it was a command


def is_command() -> bool:
    """Return whether this process is a command, which may set signal handlers and exit."""
    return _is_command


def entry_point(name: str) -> "Callable[..., int]":
    """Return the function `main(argv=None)` of a command."""

    def main(argv: list[str] | None = None) -> int:
        """Run the command, see `prepare_process`; returns the exit code."""
        if argv is None:
            prepare_process()
        return import_name(f"{__package__}.commands.entry:run")(name, argv)

    return main


def prepare_process() -> None:
    """Make this process a command.

    The process of a program that calls the `main` of a command as a function, with an `argv`, stays as it is.
    """
    import _signal as signal  # type: ignore[import-not-found]  # the module `signal` imports enum, during which Ctrl-C could come

    # Until the command begins, nothing has to be cleaned up: Ctrl-C ends the imports without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _given_back.append(lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    # Where it is ignored, no exit code of a program is known.
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _given_back.append(lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    global _is_command
    _is_command = True
    _open_standard_files()
    import atexit

    atexit.register(_drop_errors)
    _given_back.append(lambda: atexit.unregister(_drop_errors))
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        before = {"errors": sys.stdout.errors, "write_through": getattr(sys.stdout, "write_through", False)}
        _given_back.append(lambda: reconfigure(**before))
        # Any file name is printed, also where the encoding lacks its letters. What is printed is written at the end,
        # where errors are expected, also with `python -u`.
        reconfigure(errors="backslashreplace", write_through=False)


def _drop_errors() -> None:
    """Drop what standard error did not accept. Python would try again, and from 3.14 on exit with 120 if that fails."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), STANDARD_ERROR)


def release_process() -> None:
    """Return this process to the state in which Python starts a program, which then runs in it."""
    global _is_command
    _is_command = False
    while _given_back:
        _given_back.pop()()


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
    """MLX cannot be imported. Plans can be made without it."""


def check_mlx() -> None:
    """Raise a `MissingBackend` that says what to install, where MLX cannot be imported."""
    from importlib import import_module

    try:
        import_module("mlx.core")
    except ImportError as error:
        raise MissingBackend(
            "MLX has no backend on this machine: on Linux install mlx_ltx_vae[cpu] or mlx_ltx_vae[cuda13]; on macOS "
            "MLX needs Apple Silicon and a native (arm64) Python."
        ) from error


def import_name(path: str) -> "Any":
    """Import what "module:name" names, or a module. Where MLX cannot be imported, a `MissingBackend`."""
    from importlib import import_module

    module, _, name = path.partition(":")
    try:
        imported = import_module(module)
    except ImportError:
        check_mlx()
        raise
    return getattr(imported, name) if name else imported


def import_command(path: str) -> "Any":
    """Import what "module:name" names. Where MLX cannot be imported, this exits with 1 and says what to install."""
    try:
        return import_name(path)
    except MissingBackend as error:
        raise SystemExit(f"error: {error}") from error


def lazy_names(package: str, modules: "Mapping[str, str]") -> "Callable[[str], Any]":
    """Return the `__getattr__` of a package, some of whose names are imported from `modules` when they are first used.

    The name of a module there stands for the module itself.
    """

    def get(name: str) -> "Any":
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = package + modules[name]
        value = import_name(module if modules[name] == f".{name}" else f"{module}:{name}")
        setattr(sys.modules[package], name, value)
        return value

    return get
