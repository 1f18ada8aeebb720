"""`python -m mlx_ltx_vae.preview`: shows what is in latents, in seconds."""

import sys

from .commands.preview_command import build_parser, main

__all__ = ["build_parser", "main"]

if __name__ == "__main__":
    sys.exit(main())
