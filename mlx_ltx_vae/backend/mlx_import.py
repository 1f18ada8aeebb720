"""Whether MLX can be imported. Where it cannot, plans can still be made."""

from collections.abc import Callable
from typing import NoReturn

#: What is wrong, and what to install; None where MLX can be imported.
MLX_ERROR: ImportError | None = None

try:
    import mlx.core  # noqa: F401
except ImportError as error:
    MLX_ERROR = ImportError(
        "MLX has no backend on this machine: on Linux install mlx_ltx_vae[cpu] or mlx_ltx_vae[cuda13]; on macOS MLX "
        "needs Apple Silicon and a native (arm64) Python."
    )
    MLX_ERROR.__cause__ = error


def missing_names(package: str, *names: str) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a package without the names that need MLX."""

    def get(name: str) -> NoReturn:
        raise (MLX_ERROR if MLX_ERROR and name in names else AttributeError(f"{package} has no attribute {name!r}"))

    return get
