"""Properties of the machine that plans depend on. No MLX."""

import enum
from dataclasses import dataclass
from typing import Literal

FLOAT32_BYTES = 4
#: Values that are checked at a time. MLX makes three flags for each value.
VALUES_AT_ONCE = 2**20

#: Dtypes that `--dtype` accepts.
DtypeName = Literal["float32", "bfloat16", "float16"]
#: Dtypes by their names in other programs.
OTHER_DTYPE_NAMES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}


class Backend(enum.Enum):
    """Backend whose kernels run. Backends allocate different amounts of scratch memory."""

    CPU = "cpu"
    METAL = "metal"
    CUDA = "cuda"


@dataclass(frozen=True)
class Machine:
    """Machine and precision that a network runs in."""

    backend: Backend = Backend.CPU
    itemsize: int = FLOAT32_BYTES  # of the network's dtype
    available: int | None = None  # bytes of memory for a plan; `None` means unlimited
    keeps_dtype: bool = False  # convolutions take operands in the network's dtype, even if another is more accurate
    largest_buffer: int | None = None  # bytes of the largest array; `None` means unlimited
    memory: int | None = None  # bytes of memory for a plan if nothing else is in memory; `None` means unlimited
    compiles: bool = True  # chains of operations are single kernels, which needs a compiler on a CPU
