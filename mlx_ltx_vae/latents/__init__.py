"""Latent files: every layout that programs write is read; one is written."""

from .check import check_latents
from .layouts import parse_grid
from .load import LatentsFile, LatentsInfo, load_latents, open_latents
from .save import check_latents_target, save_latents

__all__ = [
    "LatentsFile",
    "LatentsInfo",
    "check_latents",
    "check_latents_target",
    "load_latents",
    "open_latents",
    "parse_grid",
    "save_latents",
]
