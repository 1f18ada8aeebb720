"""The table of commands, and the run of each. Imports nothing that takes long."""

from ..startup import import_command

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


def run(name: str, argv: "list[str] | None") -> int:
    """Run a command on its arguments, and return the exit code. What computes is imported when these are right."""
    from .parsers import PARSERS  # which takes long

    parser = PARSERS[name]()
    parser.commands = PARSERS
    arguments = parser.parse_inputs(argv)
    parser.expand_paths(arguments)
    return import_command(f"{__package__}.{name}_command:run")(parser, arguments)
