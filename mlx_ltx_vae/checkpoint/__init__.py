"""Checkpoints: their files, configurations, networks and tensors."""

from .checkpoint import (
    VERSION_KEY,
    Arrays,
    Checkpoint,
    GivenConfig,
    VAESource,
    open_checkpoint,
    open_weights,
)

__all__ = ["VERSION_KEY", "Arrays", "Checkpoint", "GivenConfig", "VAESource", "open_checkpoint", "open_weights"]
