"""Properties of the machine that plans depend on. No MLX."""

import enum
from dataclasses import dataclass
from typing import Literal, NamedTuple

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


class Reader(NamedTuple):
    """Version of the MLX in a program that runs exported functions."""

    major: int
    minor: int
    patch: int

    @property
    def file_format(self) -> int:
        """Format of the files of functions that it reads: 2 since MLX 0.32.1, whose header has metadata, or else 1."""
        return 2 if self >= (0, 32, 1) else 1

    @property
    def bounds_winograd(self) -> bool:
        """Return whether Metal's Winograd convolutions can take one frame at a time, as since MLX 0.32.2."""
        return self >= (0, 32, 2)

    def __str__(self) -> str:
        return ".".join(map(str, self))


#: Names that `--for` accepts: "mlx", the MLX that is installed here, and those in `READERS`.
ReaderName = Literal["mlx", "mlx-swift", "mlx-c", "mlx-rs"]
#: The MLX in mlx-swift 0.31.1 to 0.31.6, in mlx-c 0.6.0, and in mlx-rs's main branch.
READERS = {"mlx-swift": Reader(0, 31, 1), "mlx-c": Reader(0, 31, 1), "mlx-rs": Reader(0, 30, 6)}


@dataclass(frozen=True)
class Machine:
    """Machine and precision that a network runs in."""

    backend: Backend = Backend.CPU
    itemsize: int = FLOAT32_BYTES  # of the network's dtype
    available: int | None = None  # bytes of memory for a plan; `None` means unlimited
    keeps_dtype: bool = False  # convolutions take operands in the network's dtype, even if another is more accurate
    largest_buffer: int | None = None  # bytes of the largest array; `None` means unlimited
    memory: int | None = None  # bytes of memory for a plan if nothing else is in memory; `None` means unlimited
    bounds_winograd: bool = True  # Metal's Winograd convolutions take the scratch memory of one frame, not of all
    compiles: bool = True  # chains of operations are single kernels, which needs a compiler on a CPU
