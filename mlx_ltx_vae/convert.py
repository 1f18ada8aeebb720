"""`python -m mlx_ltx_vae.convert`: converts a checkpoint to a folder that MLX loads faster."""

import sys

from .commands.convert_command import build_parser, main

__all__ = ["build_parser", "main"]

if __name__ == "__main__":
    sys.exit(main())
