"""The machine that plans depend on, and this process among the processes that compute together. No MLX."""

import enum
import os
import re
from dataclasses import dataclass
from typing import Literal

from ..errors import DistributedError, quote

FLOAT32_BYTES = 4
#: Values that are checked at a time: MLX makes three flags of each.
VALUES_AT_ONCE = 2**20
# Seconds in which ranks exchange nothing: more than the reader of an output pauses, or a checkpoint takes to be read.
DEFAULT_TIMEOUT = 1800

#: What `--dtype` accepts.
DtypeName = Literal["float32", "bfloat16", "float16"]
#: What other programs call them.
OTHER_DTYPE_NAMES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}


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
    memory: int | None = None  # bytes of memory for a plan if nothing else is in it; None for unlimited
    compiles: bool = True  # chains of operations are single kernels, which on a CPU takes a compiler


#: Set by `mlx.launch` for its backends, and by the launchers of MPI.
RANK_VARIABLES = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


class Work(enum.Enum):
    """Work that ranks share."""

    ROWS = "rows"  # one video: each computes a band of rows
    BATCH = "batch"  # several videos: each computes whole ones
    OFF = "off"  # nothing: the first rank does everything


def launched_rank() -> int | None:
    """The rank of this process; None if no launcher has started it."""
    name = next((name for name in RANK_VARIABLES if name in os.environ), None)
    if name is None:
        return None
    text = os.environ[name]
    if not re.fullmatch("[0-9]{1,9}", text):
        raise DistributedError(
            f"{name} is {quote(text)}, which is not the number of a rank; unset it, or use mlx.launch."
        )
    return int(text)
