"""The rank of this process among several that compute together, and what they share. No MLX."""

import enum
import os
import re

from ..errors import DistributedError, quote

DEFAULT_TIMEOUT = 1800  # seconds; longer than the reader of an output pauses, or a checkpoint takes to be read

#: Set by `mlx.launch` for its backends, and by the launchers of MPI.
RANK_VARIABLES = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


class Work(enum.Enum):
    """What ranks share."""

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
