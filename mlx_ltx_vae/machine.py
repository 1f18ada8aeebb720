"""Where a network runs, as far as a plan depends on it. No MLX."""

import enum
from dataclasses import dataclass

FLOAT32_BYTES = 4


class Backend(enum.Enum):
    """Whose kernels run. They differ in the scratch that they allocate."""

    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True)
class Machine:
    """Where a network runs.

    Attributes:
        backend: whose kernels.
        itemsize: bytes of a number in the network's dtype.
        available: bytes of memory to plan with; None for no bound.
    """

    backend: Backend = Backend.CPU
    itemsize: int = FLOAT32_BYTES
    available: int | None = None
