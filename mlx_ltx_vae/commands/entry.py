"""The table of commands, and the start of each by whichever name it was called. Imports nothing that takes long."""

from ..startup import import_command, prepare_process

TYPE_CHECKING = False  # as in startup.py
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: What each command does. Its parser is in `parsers.PARSERS`, and `run(parser, arguments)` in `NAME_command.py`.
COMMANDS = {
    "decode": "latents to videos",
    "preview": "latents to small videos or pictures, in seconds",
    "encode": "videos to latents",
    "info": "describe a checkpoint or a latent file",
    "convert": "a checkpoint to a folder that MLX loads faster",
    "bench": "measure time and memory on this machine",
    "run": "an MLX app, with its decoder replaced by this one",
}


def entry_point(name: str) -> "Callable[..., int]":
    """The function `main(argv=None)` of a command. What computes is imported when its arguments are right."""

    def main(argv: list[str] | None = None) -> int:
        """Run the command, see `begin`; returns the exit code."""
        begin(argv)
        from .parsers import PARSERS  # only now, since it takes longer than to prepare the process

        parser = PARSERS[name]()
        parser.commands = PARSERS
        arguments = parser.parse_inputs(argv)
        return import_command(f"{__package__}.{name}_command:run")(parser, arguments)

    return main


def begin(argv: "Sequence[str] | None") -> None:
    """Begin a command. Without `argv` its arguments are those of the process, which is then prepared as a command.

    With `argv`, another program calls the command as a function, and its process stays as it is.
    """
    if argv is None:
        prepare_process()
