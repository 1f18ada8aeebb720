"""Small MLX helpers, most of them for gaps in MLX's type stubs, which are worked around here and nowhere else."""

from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten


def to_float(array: mx.array) -> float:
    """The value of a one-element array. Waits for it."""
    return float(cast(Any, array.item()))


def to_int(array: mx.array) -> int:
    """The value of a one-element array of integers. Waits for it."""
    return int(cast(Any, array.item()))


def to_bool(array: mx.array) -> bool:
    """The value of a one-element array of booleans. Waits for it."""
    return bool(array.item())


def to_list(array: mx.array) -> list[Any]:
    """The values of an array of at least one axis. Waits for them."""
    return cast(list[Any], array.tolist())


def split(array: mx.array, parts: int, axis: int = 0) -> list[mx.array]:
    """`mx.split`, whose stub promises a single array."""
    return list(cast(Any, mx.split(array, parts, axis=axis)))


def count_nonfinite(array: mx.array) -> int:
    """How many values are NaN or infinite. Waits for the array."""
    return array.size - to_int(mx.isfinite(array).sum())


def load_safetensors(path: Path) -> dict[str, mx.array]:
    """The tensors of a safetensors file by name, lazy.

    Raises:
        RuntimeError: the file cannot be read, or one of its tensors has a type that MLX does not know.
    """
    return cast(dict[str, mx.array], mx.load(str(path), format="safetensors"))


def named_parameters(module: nn.Module) -> dict[str, mx.array]:
    """The parameters of a module by their dotted names."""
    return dict(cast(Any, tree_flatten(module.parameters())))
