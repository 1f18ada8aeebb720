"""`python -m mlx_ltx_vae.bench`: measures time and memory on the machine at hand."""

import sys

from ..commands.entry import begin
from ..startup import import_command


def main(argv: list[str] | None = None) -> int:
    """Run the command, see `begin`; returns the exit code."""
    begin(argv)
    from .parsers import parse  # only now, since it takes longer than to prepare the process

    parser, options = parse(sys.argv[1:] if argv is None else argv)
    name = "metal_command" if options.metal else "bench_command"
    return int(import_command(f"mlx_ltx_vae.bench.{name}:run")(parser, options))


if __name__ == "__main__":
    sys.exit(main())
