"""`mlx_ltx_vae --completion SHELL`: what a shell completes when Tab is pressed.

The script is static: Tab starts no Python, which would take as long as an import of MLX.
"""

import argparse
from collections.abc import Mapping
from importlib import import_module

from ..errors import LTXVAEError
from . import parsers

SHELLS = ("bash", "zsh", "tcsh")
# Of arguments that are files or folders.
_PATHS = ("LATENTS", "VIDEO", "FILE", "OUT", "VAE", "MODEL", "AUDIO", "FOLDER", "SOURCE")


def completion(shell: str, commands: Mapping[str, str]) -> str:
    """The script for a shell, of commands with their descriptions. Raises `LTXVAEError` if shtab is missing."""
    try:
        import shtab
    except ImportError:
        raise LTXVAEError(
            'completion needs shtab, which is not installed; install it with: pip install "mlx_ltx_vae[completion]".'
        ) from None
    parser = argparse.ArgumentParser(prog="mlx_ltx_vae")
    subparsers = parser.add_subparsers()
    for name, description in commands.items():
        # That of bench needs MLX.
        make = import_module("..bench.bench_command", __package__).build_parser if name == "bench" else None
        own = (make or getattr(parsers, f"{name}_parser"))()
        added = subparsers.add_parser(name, parents=[own], add_help=False, help=description)
        for action in added._actions:
            if action.choices is None and (action.metavar in _PATHS or action.dest in _PATHS):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)
