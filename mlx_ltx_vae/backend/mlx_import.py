"""Names that are imported when they are first used, and whether MLX can be. Imports nothing that takes long."""

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_was_forked = False


def _note_fork() -> None:
    global _was_forked
    peak_memory = getattr(sys.modules.get("mlx.core"), "get_peak_memory", None)
    _was_forked = peak_memory is not None and peak_memory() > 0  # the parent has made arrays


os.register_at_fork(after_in_child=_note_fork)


def was_forked() -> bool:
    """Whether this process was forked from one that had used MLX, and had imported this package."""
    return _was_forked


def check_mlx() -> None:
    """Raise an `ImportError` that says what to install, where MLX cannot be imported. Plans can be made without it."""
    try:
        import mlx.core  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "MLX has no backend on this machine: on Linux install mlx_ltx_vae[cpu] or mlx_ltx_vae[cuda13]; on macOS "
            "MLX needs Apple Silicon and a native (arm64) Python."
        ) from error


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package, some of whose names are imported from `modules` when they are first used.

    The name of a module there stands for the module itself.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(modules[name], package)
        except ImportError:
            check_mlx()
            raise
        value = module if modules[name] == f".{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return get
