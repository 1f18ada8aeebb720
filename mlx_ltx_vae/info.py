"""`python -m mlx_ltx_vae.info`: describes a checkpoint or a latent file."""

import sys

from .commands.info_command import build_parser, main

__all__ = ["build_parser", "main"]

if __name__ == "__main__":
    sys.exit(main())
