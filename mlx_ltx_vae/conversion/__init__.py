"""Conversion of a checkpoint to a folder that MLX loads without changing a layout, and its verification."""

from .convert import Conversion, convert_checkpoint
from .verify import Comparison, Progress, Verification, verify_conversion

__all__ = ["Comparison", "Conversion", "Progress", "Verification", "convert_checkpoint", "verify_conversion"]
