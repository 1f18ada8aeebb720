"""What a file is, in a few lines or as JSON: a checkpoint by its headers, latents by their values."""

from .checkpoint import CheckpointSummary, summarise_checkpoint
from .kind import summarise
from .latents import LatentsSummary, summarise_latents

__all__ = ["CheckpointSummary", "LatentsSummary", "summarise", "summarise_checkpoint", "summarise_latents"]
