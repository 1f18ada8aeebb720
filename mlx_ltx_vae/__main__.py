"""`python -m mlx_ltx_vae`: lists the commands, and runs one of them: `python -m mlx_ltx_vae decode ...`."""

import sys
from importlib import import_module

from .commands.entry import begin

#: What each command does. Each is a module with a function `main(argv)`, which returns the exit code.
COMMANDS = {
    "decode": "latents to videos",
    "preview": "latents to small videos or pictures, in seconds",
    "encode": "videos to latents",
    "info": "describe a checkpoint or a latent file",
    "convert": "a checkpoint to a folder that MLX loads faster",
    "bench": "measure time and memory on this machine",
}


def main(argv: list[str] | None = None) -> int:
    """Run the command that `argv` begins with, or list the commands. Returns the exit code."""
    begin(argv)
    name, *arguments = (sys.argv[1:] if argv is None else argv) or [""]
    if name in COMMANDS:
        module = "bench.__main__" if name == "bench" else name
        return import_module(f".{module}", __package__).main(arguments)
    from .commands.cli import CommandParser  # only now, since it takes long
    from .errors import suggest

    commands = "\n".join(f"  python -m mlx_ltx_vae.{each:8} {what}" for each, what in COMMANDS.items())
    parser = CommandParser(
        prog="python -m mlx_ltx_vae",
        usage="%(prog)s COMMAND [options]",
        description="Decode and encode LTX video latents on MLX, exactly, in memory that does not grow with the clip.",
        epilog=f"commands:\n{commands}\n\nTo begin with: python -m mlx_ltx_vae.decode --demo\n"
        "The options of a command: python -m mlx_ltx_vae.decode --help",
    )
    if name and not name.startswith("-"):
        parser.error(f"there is no command {name!r}{suggest(name, COMMANDS)}; choose one of {', '.join(COMMANDS)}")
    parser.parse_args([name, *arguments] if name else [])
    parser.print_help()
    return 0


if __name__ == "__main__":
    sys.exit(main())
