"""Commands: their table, and their run. This module imports nothing that takes long."""

from ..startup import import_command

#: Commands by name, with their descriptions. Parsers are in `parsers.PARSERS`, and `run(parser, arguments)` in
#: `NAME_command.py`.
COMMANDS = {
    "decode": "latents to videos",
    "preview": "latents to small videos or pictures, in seconds",
    "encode": "videos to latents",
    "upscale": "latents to larger ones, before they are decoded",
    "info": "describe a checkpoint or a latent file",
    "convert": "a checkpoint to a folder that MLX loads faster",
    "export": "a decode to MLX functions, for programs in C++, Swift or Python",
    "bench": "measure time and memory on this machine",
    "run": "an MLX app, with its decoder replaced by this one",
}


def run(name: str, argv: "list[str] | None") -> int:
    """Run a command and return the exit code. Modules that import MLX are imported after the arguments are checked."""
    from .parsers import PARSERS  # a slow import

    parser = PARSERS[name]()
    parser.commands = PARSERS
    arguments = parser.parse_inputs(argv)
    parser.expand_paths(arguments)
    return import_command(f"{__name__}.{name}_command:run")(parser, arguments)
