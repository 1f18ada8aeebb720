"""Convert an LTX video VAE, from any layout that people have, to a folder that MLX loads as it is; and verify it."""

from .convert import Conversion, convert
from .verify import CheckpointsDiffer, Likeness, Verification, verify

__all__ = ["CheckpointsDiffer", "Conversion", "Likeness", "Verification", "convert", "verify"]
