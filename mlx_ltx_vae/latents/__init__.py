"""Latent files: every layout that programs write is read; one is written."""

from .files import (
    LatentsFile,
    LatentsInfo,
    check_latents_name,
    check_latents_target,
    load_latents,
    looks_normalized_twice,
    looks_unnormalized,
    open_latents,
    save_latents,
)
from .mapped import MappedLatents
from .metadata import parse_grid

__all__ = ["LatentsFile", "LatentsInfo", "MappedLatents", "load_latents", "open_latents", "parse_grid", "save_latents"]
__all__ += ["check_latents_name", "check_latents_target", "looks_normalized_twice", "looks_unnormalized"]
