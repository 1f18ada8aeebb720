"""`python -m mlx_ltx_vae`: lists the commands, and runs one of them: `python -m mlx_ltx_vae decode ...`."""

import sys

from .startup import import_command, prepare_process


def main(argv: list[str] | None = None) -> int:
    """Run the command that `argv` begins with, or list the commands. Returns the exit code."""
    if argv is None:
        prepare_process()
    from .commands import COMMANDS, run

    name, *arguments = (sys.argv[1:] if argv is None else argv) or [""]
    if name == "help" and arguments:
        name, arguments = arguments[0], ["--help"]
    name = {"help": "--help", "version": "--version"}.get(name, name)
    if name in COMMANDS:
        return run(name, arguments)
    from .commands.cli import CommandParser, add_common_options
    from .commands.parsers import SHELLS
    from .errors import suggest

    commands = "\n".join(f"  python -m mlx_ltx_vae {command:8} {what}" for command, what in COMMANDS.items())
    parser = CommandParser(
        prog="python -m mlx_ltx_vae",
        usage="%(prog)s COMMAND [options]",
        description="Decode and encode LTX video latents on MLX, exactly, in memory that does not grow with the clip.",
        epilog=f"commands:\n{commands}\n\nTo begin with: python -m mlx_ltx_vae decode --demo\n"
        "The options of a command: python -m mlx_ltx_vae decode --help",
    )
    shells = "print the completion script of a shell: bash, zsh, tcsh or fish (see docs/usage.md)"
    add_common_options(parser)
    parser.add_argument("--completion", metavar="SHELL", help=shells)
    if name and not name.startswith("-"):
        names = [*COMMANDS, "help", "version"]
        parser.error(f"there is no command {name!r}{suggest(name, names)}; choose one of {', '.join(COMMANDS)}")
    options = parser.parse_args([name, *arguments] if name else [])
    if options.completion is None:
        parser.print_help()
        return 0
    if options.completion not in SHELLS:
        parser.error(f"--completion is for {', '.join(SHELLS)}, not {options.completion}")
    completion, run_command, print_report = (
        import_command(f"{__package__}.commands.{path}")
        for path in ("parsers:completion", "terminal:run_command", "terminal:print_report")
    )
    return run_command(lambda _: print_report(completion(options.completion, COMMANDS)), options)


if __name__ == "__main__":
    sys.exit(main())
