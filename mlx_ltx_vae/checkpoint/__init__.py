"""Checkpoints: files, folders and hub repositories in; a configuration and weights out.

Whatever is missing, damaged, ambiguous or not supported is a `CheckpointError`.
"""

from .open import Checkpoint, load_network, open_checkpoint, open_weights
from .stored_network import StoredNetwork

__all__ = ["Checkpoint", "StoredNetwork", "load_network", "open_checkpoint", "open_weights"]
