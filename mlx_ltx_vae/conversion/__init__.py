"""Conversion of a checkpoint to a folder that MLX loads without changing a layout, and its verification."""

from .convert import convert_checkpoint
from .result import Conversion
from .tensors import Progress
from .verify import Comparison, Verification, verify_conversion

__all__ = ["Comparison", "Conversion", "Progress", "Verification", "convert_checkpoint", "verify_conversion"]
