"""Whether MLX can be imported. Where it cannot, plans can still be made."""

from collections.abc import Callable
from typing import NoReturn

try:
    import mlx.core  # noqa: F401
except ImportError as error:
    _reason: ImportError | None = error
else:
    _reason = None

HAS_MLX = _reason is None


def fail_without_mlx() -> NoReturn:
    """Raise an `ImportError` that says what to install."""
    raise ImportError(
        "MLX has no backend on this machine: on Linux install mlx_ltx_vae[cpu] or mlx_ltx_vae[cuda13]; on macOS MLX "
        "needs Apple Silicon and a native (arm64) Python."
    ) from _reason


def missing_names(package: str, *names: str) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a package without the names that need MLX."""

    def get(name: str) -> NoReturn:
        if name in names:
            fail_without_mlx()
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
