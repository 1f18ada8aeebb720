"""The group of the processes that a launcher has started."""

import os
from pathlib import Path

import mlx.core as mx

from ..errors import DistributedError


def join_group() -> mx.distributed.Group | None:
    """The group of all processes that the launcher has started; None if this is the only one.

    Raises:
        DistributedError: if the processes cannot connect.
    """
    hosts = os.environ.get("MLX_HOSTFILE")
    if hosts and Path(hosts).is_file() and not Path(hosts).read_text().strip():
        return None  # `mlx.launch -n 1`, whose empty list of hosts MLX cannot read
    try:
        group = mx.distributed.init()
    except RuntimeError as error:
        raise DistributedError(f"the ranks cannot connect ({error}); check the hosts given to mlx.launch.") from error
    return group if group.size() > 1 else None
