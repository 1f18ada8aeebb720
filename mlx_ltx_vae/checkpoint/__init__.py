"""Checkpoints: files and folders in, a configuration and weights out."""

from .load import Checkpoint, CheckpointHeaders, load_checkpoint, read_headers

__all__ = ["Checkpoint", "CheckpointHeaders", "load_checkpoint", "read_headers"]
