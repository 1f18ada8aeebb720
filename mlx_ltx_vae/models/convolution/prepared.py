"""Modules whose weights are laid out for the device once, when they are loaded, and the layouts of convolutions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from ...backend.device import is_cpu
from .rules import KernelLayout


class PreparedModule(nn.Module, ABC):
    """A module that lays out its weights once."""

    @abstractmethod
    def prepare(self, *, keeps_dtype: bool = False) -> None:
        """Lay out the weights for the default device, evaluated, also in a more accurate dtype unless `keeps_dtype`.

        Its own weights may be views, which it copies. Weights of modules that it contains are loaded and prepared.
        """


def prepared_modules(network: nn.Module) -> dict[str, PreparedModule]:
    """The prepared modules of a network, by their paths."""
    return {path: module for path, module in network.named_modules() if isinstance(module, PreparedModule)}


def prepare(network: nn.Module, *, keeps_dtype: bool) -> None:
    """Lay out the weights of all modules of a network, one by one."""
    for module in reversed(prepared_modules(network).values()):  # modules follow the modules that contain them
        module.prepare(keeps_dtype=keeps_dtype)


# The output channels that a CPU copies at a time where they become the last axis: in float32 they fill a cache line,
# and their weights are few enough to stay in the cache until every part of a line has been read.
_BLOCK = 16


def arrange(weight: mx.array, source: KernelLayout, target: KernelLayout) -> mx.array:
    """A weight in another layout, as a view."""
    if source is target:
        return weight
    return weight.transpose(*(source.value.index(axis) for axis in target.value))


def lay_out(
    weight: mx.array, source: KernelLayout, target: KernelLayout, order: Sequence[int] | None = None
) -> mx.array:
    """A weight in another layout, with the output channels in this order: lazy, and one copy, or the weight itself.

    `weight` may be a view whose axes have any order in memory.
    """
    if source is target and order is None:
        return weight
    view, axis = arrange(weight, source, target), target.value.index("O")
    outputs = range(view.shape[axis]) if order is None else order
    longest = _BLOCK if is_cpu() and axis == view.ndim - 1 else len(outputs)
    before = (slice(None),) * axis
    parts = [view[before + (run,)] for run in runs(outputs, longest)]
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=axis)


def runs(indices: Sequence[int], longest: int) -> list[slice]:
    """Indices of at least 0 as slices with a step, each of at most `longest`: what MLX takes without a copy."""
    found = []
    start = 0
    while start < len(indices):
        step = max(1, indices[start + 1] - indices[start]) if start + 1 < len(indices) else 1
        stop = start + 1
        while stop < min(len(indices), start + longest) and indices[stop] - indices[stop - 1] == step:
            stop += 1
        found.append(slice(indices[start], indices[stop - 1] + 1, step))
        start = stop
    return found
