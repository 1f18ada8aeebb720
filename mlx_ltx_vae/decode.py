"""`python -m mlx_ltx_vae.decode`: decodes latents to videos."""

import sys

from .commands.decode_command import build_parser, main

__all__ = ["build_parser", "main"]

if __name__ == "__main__":
    sys.exit(main())
