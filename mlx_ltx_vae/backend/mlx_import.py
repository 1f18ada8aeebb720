"""Names that are imported when they are first used, and whether MLX can be. Imports nothing that takes long."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


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
