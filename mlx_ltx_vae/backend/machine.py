"""The properties of a machine that plans depend on. No MLX."""

import enum
from dataclasses import dataclass
from typing import Literal

FLOAT32_BYTES = 4

#: What `--dtype` accepts.
DtypeName = Literal["float32", "bfloat16", "float16"]


class Backend(enum.Enum):
    """The backend whose kernels run. Backends allocate different amounts of scratch memory."""

    CPU = "cpu"
    METAL = "metal"
    CUDA = "cuda"


@dataclass(frozen=True)
class Machine:
    """The machine and precision that a network runs in."""

    backend: Backend = Backend.CPU
    itemsize: int = FLOAT32_BYTES  # of the network's dtype
    available: int | None = None  # bytes of memory for a plan; None for unlimited
    keeps_dtype: bool = False  # convolutions take operands in the network's dtype although another is more accurate
    largest_buffer: int | None = None  # bytes of the largest array; None for unlimited
