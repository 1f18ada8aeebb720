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
        return import_module(f".{name}", __package__).main(arguments)
    from .commands.cli import (  # only now, since it takes long
        CommandParser,
        add_common_options,
        print_report,
        run_command,
    )
    from .errors import suggest

    commands = "\n".join(f"  python -m mlx_ltx_vae.{each:8} {what}" for each, what in COMMANDS.items())
    parser = CommandParser(
        prog="python -m mlx_ltx_vae",
        usage="%(prog)s COMMAND [options]",
        description="Decode and encode LTX video latents on MLX, exactly, in memory that does not grow with the clip.",
        epilog=f"commands:\n{commands}\n\nTo begin with: python -m mlx_ltx_vae.decode --demo\n"
        "The options of a command: python -m mlx_ltx_vae.decode --help",
    )
    shells = "print what the shell is to complete: bash, zsh or tcsh (see docs/usage.md)"
    add_common_options(parser)
    parser.add_argument("--completion", metavar="SHELL", help=shells)
    if name and not name.startswith("-"):
        parser.error(f"there is no command {name!r}{suggest(name, COMMANDS)}; choose one of {', '.join(COMMANDS)}")
    options = parser.parse_args([name, *arguments] if name else [])
    if options.completion is None:
        parser.print_help()
        return 0
    from .commands.parsers import SHELLS, completion

    if options.completion not in SHELLS:
        parser.error(f"--completion is for {', '.join(SHELLS)}, not {options.completion}")
    return run_command(lambda _: print_report(completion(options.completion, COMMANDS)), options)


if __name__ == "__main__":
    sys.exit(main())
