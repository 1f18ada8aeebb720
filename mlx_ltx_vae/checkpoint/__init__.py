"""Checkpoints: files, folders and hub repositories in; a configuration and weights out.

Whatever is missing, damaged, ambiguous or not supported is a `CheckpointError`.
"""

from .open import Arrays, Checkpoint, GivenConfig, load_network, open_checkpoint, open_weights
from .stored_network import StoredNetwork

__all__ = ["Arrays", "Checkpoint", "GivenConfig", "StoredNetwork", "load_network", "open_checkpoint", "open_weights"]
