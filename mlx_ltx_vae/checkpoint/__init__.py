"""Checkpoints: files and folders in, a configuration and weights out."""

from .load import Checkpoint, load_checkpoint

__all__ = ["Checkpoint", "load_checkpoint"]
