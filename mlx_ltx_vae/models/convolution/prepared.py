"""Modules whose weights are laid out for the device once, when they are loaded."""

from abc import ABC, abstractmethod

import mlx.nn as nn


class PreparedModule(nn.Module, ABC):
    """A module that lays out its weights once."""

    @abstractmethod
    def prepare(self, *, keeps_dtype: bool = False) -> None:
        """Lay out the weights for the default device, evaluated, also in a more accurate dtype unless `keeps_dtype`.

        Its own weights may be views, which it copies. Those of modules that it contains are loaded and prepared.
        """


def prepared_modules(network: nn.Module) -> dict[str, PreparedModule]:
    """Those of a network, by their paths."""
    return {path: module for path, module in network.named_modules() if isinstance(module, PreparedModule)}


def prepare(network: nn.Module, *, keeps_dtype: bool) -> None:
    """Lay out the weights of all modules of a network, one by one."""
    for module in reversed(prepared_modules(network).values()):  # modules follow those that contain them
        module.prepare(keeps_dtype=keeps_dtype)
