"""`python -m mlx_ltx_vae.encode`: encodes videos to latents."""

import sys

from .commands.encode_command import build_parser, main

__all__ = ["build_parser", "main"]

if __name__ == "__main__":
    sys.exit(main())
