"""Checkpoints: their files, configurations, networks and tensors."""

from .checkpoint import (
    VERSION_KEY,
    Arrays,
    Checkpoint,
    GivenConfig,
    VAESource,
    find_cached,
    open_checkpoint,
    open_weights,
)

__all__ = [
    "VERSION_KEY",
    "Arrays",
    "Checkpoint",
    "GivenConfig",
    "VAESource",
    "find_cached",
    "open_checkpoint",
    "open_weights",
]
