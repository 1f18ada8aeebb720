"""What a file is, as text or JSON: a checkpoint by its headers, latents by their values."""

from .checkpoint import CheckpointReport
from .kind import inspect
from .latents import LatentsReport

__all__ = ["CheckpointReport", "LatentsReport", "inspect"]
