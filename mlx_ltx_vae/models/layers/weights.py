"""The weights of modules, which have the names and the shapes that the specs list."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..specs import Shapes, Weights

_SCALES = ("weight", "gamma")  # vectors that multiply


def add_weights(module: nn.Module, weights: Weights, path: str = "") -> None:
    """Add those of a network's weights that lie below the `path` of a module, and that it does not have yet.

    A matrix `name.weight` becomes a linear layer `name`, unless the module has something else there. All else is an
    array, of ones if it scales, and otherwise of zeros. What no module stands for is an `nn.Module` of its own.
    """
    shapes, prefix = dict(weights), f"{path}." if path else ""
    for name in (name for name in shapes if name.startswith(prefix)):
        holder: Any = module
        *parents, own = name.removeprefix(prefix).split(".")
        is_matrix = own == "weight" and len(shapes[name]) == 2
        for index, part in enumerate(parents, 1):
            if not isinstance(holder, list) and part not in holder:
                is_linear = is_matrix and index == len(parents)
                holder[part] = linear(shapes, name.removesuffix(".weight")) if is_linear else nn.Module()
            holder = holder[int(part) if isinstance(holder, list) else part]
        if own not in holder:
            shape = shapes[name]
            holder[own] = mx.ones(shape) if len(shape) == 1 and own in _SCALES else mx.zeros(shape)


def linear(shapes: Shapes, name: str) -> nn.Linear:
    """The linear layer of this name."""
    outputs, inputs = shapes[f"{name}.weight"]
    return nn.Linear(inputs, outputs, bias=f"{name}.bias" in shapes)
