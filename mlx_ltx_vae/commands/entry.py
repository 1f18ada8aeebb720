"""The start of every command, by whichever name it was called. Imports nothing that takes long."""

from collections.abc import Callable, Sequence
from importlib import import_module

from ..backend.mlx_import import check_mlx
from ..startup import prepare_process


def entry_point(module: str) -> Callable[..., int]:
    """The function `main(argv=None)` of a command: that of a module, which is imported when the command has begun."""

    def main(argv: list[str] | None = None) -> int:
        """Run the command, see `begin`; returns the exit code."""
        begin(argv)
        return import_module(module).main(argv)

    return main


def begin(argv: Sequence[str] | None) -> None:
    """Begin a command. Without `argv` its arguments are those of the process, which is then prepared as a command.

    With `argv`, another program calls the command as a function, and its process stays as it is. Where MLX cannot be
    imported, this exits with 1 and says what to install.
    """
    if argv is None:
        prepare_process()
    try:
        check_mlx()
    except ImportError as error:
        raise SystemExit(f"error: {error}") from error
