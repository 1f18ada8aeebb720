"""`python -m mlx_ltx_vae.bench`: measures time and memory on the machine at hand."""

import sys

from ..commands.entry import begin, import_command


def main(argv: list[str] | None = None) -> int:
    """Run the command, see `begin`; returns the exit code."""
    begin(argv)
    return int(import_command("mlx_ltx_vae.bench.bench_command").main(argv))


if __name__ == "__main__":
    sys.exit(main())
