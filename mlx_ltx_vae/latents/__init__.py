"""Latent files: read every layout that programs write, write one."""

from .layouts import parse_grid
from .load import LatentsInfo, check_latents, load_latents, save_latents, to_numpy
from .writer import LatentsWriter

__all__ = ["LatentsInfo", "LatentsWriter", "check_latents", "load_latents", "parse_grid", "save_latents", "to_numpy"]
