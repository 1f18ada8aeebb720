"""`python -m mlx_ltx_vae.bench`: measures time and memory on the machine at hand."""

import sys

from .bench_command import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
