"""What ranks tell each other before and after the work: errors, what they work on, and their reports."""

import hashlib
import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from ..errors import DistributedError, describe_error
from .time_limit import restart_time_limit

Result = TypeVar("Result")

_LOST_PEER = "connection to a peer was lost"  # in the message of MLX's ring backend


def gather_values(group: mx.distributed.Group, value: Any) -> list[Any]:
    """The JSON-serializable values of all ranks, in order."""
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = _gather(group, np.array([len(data)], np.int32))[:, 0]
    rows = _gather(group, np.pad(data, (0, int(sizes.max()) - len(data))))
    return [json.loads(bytes(row[:size])) for row, size in zip(rows, sizes, strict=True)]


def run_together(group: mx.distributed.Group, function: Callable[[], Result]) -> Result:
    """Run a function on all ranks. If it fails on one, it fails on all, so that none waits for another.

    Raises:
        DistributedError: if it failed on any rank, with the error of the first one that did. On the first rank, which
            reports errors, its own error is raised as it is.
    """
    result, error = None, None
    try:
        result = function()
    except Exception as caught:  # raised below, when all ranks know
        error = caught
    messages = gather_values(group, None if error is None else describe_error(error))
    if error is not None and group.rank() == 0:
        raise error
    for rank, message in enumerate(messages):
        if message:
            raise DistributedError(f"rank {rank}: {message}") from error
    return result  # type: ignore[return-value]  # there is one if there is no error


def check_same(group: mx.distributed.Group, things: Mapping[str, Any]) -> None:
    """Check that all ranks work on the same things, by a hash of each.

    Args:
        things: JSON-serializable descriptions by the name that an error gives them.

    Raises:
        DistributedError: if one differs, on all ranks.
    """
    things = {**things, "the versions of mlx_ltx_vae": version("mlx_ltx_vae")}
    hashes = {name: hashlib.sha256(json.dumps(thing).encode()).hexdigest() for name, thing in things.items()}
    for rank, others in enumerate(gather_values(group, hashes)):
        for name in hashes:
            if others.get(name) != hashes[name]:
                mine = group.rank()
                raise DistributedError(
                    f"{name} differ between rank {min(rank, mine)} and rank {max(rank, mine)}; give all ranks the same "
                    "files, options and memory budget."
                )


def is_lost_peer(error: Exception) -> bool:
    """Whether an exception means that another rank has ended."""
    return isinstance(error, RuntimeError) and _LOST_PEER in str(error)


def _gather(group: mx.distributed.Group, values: np.ndarray) -> np.ndarray:
    """The values of all ranks, stacked along a new first axis."""
    restart_time_limit()
    gathered = np.array(mx.distributed.all_gather(mx.array(values)[None], group=group))
    restart_time_limit()
    return gathered
