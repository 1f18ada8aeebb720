"""The start of every command, by whichever name it was called. Imports nothing that takes long."""

from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType

from ..startup import check_mlx, prepare_process


def entry_point(name: str) -> Callable[..., int]:
    """The function `main(argv=None)` of a command. What computes is imported when its arguments are right."""

    def main(argv: list[str] | None = None) -> int:
        """Run the command, see `begin`; returns the exit code."""
        begin(argv)
        from . import parsers  # only now, since it takes longer than to prepare the process

        parser = getattr(parsers, f"{name}_parser")()
        arguments = parser.parse_inputs(argv)
        return import_command(f"{__package__}.{name}_command").run(parser, arguments)

    return main


def begin(argv: Sequence[str] | None) -> None:
    """Begin a command. Without `argv` its arguments are those of the process, which is then prepared as a command.

    With `argv`, another program calls the command as a function, and its process stays as it is.
    """
    if argv is None:
        prepare_process()


def import_command(module: str) -> ModuleType:
    """The module of a command. Where MLX cannot be imported, this exits with 1 and says what to install."""
    try:
        return import_module(module)
    except ImportError:
        try:
            check_mlx()
        except ImportError as error:
            raise SystemExit(f"error: {error}") from error
        raise
