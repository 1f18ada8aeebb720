"""The group of ranks, and what they tell each other before and after the work: errors, and what they work on."""

import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from ..errors import DistributedError, describe_error
from ..process import startup
from .time_limit import restart_time_limit, set_time_limit

Result = TypeVar("Result")

_LOST_PEER = "connection to a peer was lost"  # in the message of MLX's ring backend
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def join_group(timeout: int | None) -> mx.distributed.Group | None:
    """The group of all processes that the launcher has started; None if this is the only one.

    A command ends if the ranks exchange nothing for `timeout` seconds, see `set_time_limit`. Other programs do not.
    """
    hosts = os.environ.get("MLX_HOSTFILE")
    if hosts and Path(hosts).is_file() and not Path(hosts).read_text().strip():
        return None  # `mlx.launch -n 1`, whose empty list of hosts MLX cannot read
    timeout = timeout if startup.IS_COMMAND else None
    try:
        with _ended_by_the_system(timeout):
            group = mx.distributed.init()
    except RuntimeError as error:
        raise DistributedError(f"the ranks cannot connect ({error}); check the hosts given to mlx.launch.") from error
    if group.size() == 1:
        return None
    if timeout is not None:
        set_time_limit(timeout, group.rank(), gather_values(group, os.getpid()))
    return group


def gather_values(group: mx.distributed.Group, value: Any) -> list[Any]:
    """The JSON-serializable values of all ranks, in order."""
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = _gather(group, np.array([len(data)], np.int32))[:, 0]
    rows = _gather(group, np.pad(data, (0, int(sizes.max()) - len(data))))
    return [json.loads(bytes(row[:size])) for row, size in zip(rows, sizes, strict=True)]


def run_together(group: mx.distributed.Group, function: Callable[[], Result]) -> Result:
    """Run a function on all ranks. If it fails on one, it fails on all, so that none waits for another.

    The error is a `DistributedError` with that of the first rank on which it failed. On the first rank, which reports
    errors, its own is raised as it is.
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
    """Check that all ranks work on the same things, JSON-serializable by name, by a hash of each."""
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
    """Whether another rank has ended."""
    return isinstance(error, RuntimeError) and _LOST_PEER in str(error)


def _gather(group: mx.distributed.Group, values: np.ndarray) -> np.ndarray:
    """The values of all ranks, stacked along a new first axis."""
    restart_time_limit()
    gathered = np.array(mx.distributed.all_gather(mx.array(values)[None], group=group))
    restart_time_limit()
    return gathered


@contextmanager
def _ended_by_the_system(timeout: int | None) -> Iterator[None]:
    """Let signals end a command at once in this block, and SIGALRM after a time.

    MLX holds the interpreter's lock while it connects, so that neither a handler nor a thread would run. There is
    nothing to clean up yet.
    """
    if timeout is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: handler for number in _ENDING if callable(handler := signal.getsignal(number))}
    for number in (*handlers, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(timeout)
    try:
        yield
    finally:
        signal.alarm(0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
