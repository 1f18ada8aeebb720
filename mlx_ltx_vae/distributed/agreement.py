"""What ranks tell each other before and after the work: errors, what they work on, and their reports."""

import hashlib
import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from ..errors import DistributedError, LTXVAEError
from .time_limit import restart_time_limit

Result = TypeVar("Result")

_LOST_PEER = "connection to a peer was lost"  # in the message of MLX's ring backend


def gather_texts(group: mx.distributed.Group, text: str) -> list[str]:
    """The texts of all ranks, in order."""
    data = text.encode()
    sizes = _gather(group, np.array([len(data)], np.int32))[:, 0]
    padded = np.zeros(max(1, int(sizes.max())), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    rows = _gather(group, padded)
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes, strict=True)]


def gather_values(group: mx.distributed.Group, value: Any) -> list[Any]:
    """The JSON-serializable values of all ranks, in order."""
    return [json.loads(text) for text in gather_texts(group, json.dumps(value))]


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
    messages = gather_texts(group, "" if error is None else _describe(error))
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


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, LTXVAEError) else f"{type(error).__name__}: {error}"


def _gather(group: mx.distributed.Group, values: np.ndarray) -> np.ndarray:
    """The values of all ranks, stacked along a new first axis."""
    restart_time_limit()
    gathered = np.array(mx.distributed.all_gather(mx.array(values)[None], group=group))
    restart_time_limit()
    return gathered
