"""Checkpoints: files, folders and hub repositories in; a configuration and weights out."""

from .load import load_network
from .open import Checkpoint, open_checkpoint
from .stored_network import StoredNetwork

__all__ = ["Checkpoint", "StoredNetwork", "load_network", "open_checkpoint"]
