"""`python -m mlx_ltx_vae.bench`: measures time and memory on the machine at hand."""

import sys

from ..commands.entry import entry_point

main = entry_point("mlx_ltx_vae.bench.bench_command")

if __name__ == "__main__":
    sys.exit(main())
