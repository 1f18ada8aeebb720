"""The group of the processes that a launcher has started."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx

from ..errors import DistributedError
from ..process import startup
from .agreement import gather_values
from .time_limit import set_time_limit

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def join_group(timeout: int | None) -> mx.distributed.Group | None:
    """The group of all processes that the launcher has started; None if this is the only one.

    Args:
        timeout: the seconds after which a command ends if the ranks exchange nothing, see `TimeLimit`; None for no
            limit. Without effect in other programs.

    Raises:
        DistributedError: if the processes cannot connect.
    """
    hosts = os.environ.get("MLX_HOSTFILE")
    if hosts and Path(hosts).is_file() and not Path(hosts).read_text().strip():
        return None  # `mlx.launch -n 1`, whose empty list of hosts MLX cannot read
    is_limited = startup.IS_COMMAND and timeout is not None
    try:
        with _ended_by_the_system(timeout if is_limited else None):
            group = mx.distributed.init()
    except RuntimeError as error:
        raise DistributedError(f"the ranks cannot connect ({error}); check the hosts given to mlx.launch.") from error
    if group.size() == 1:
        return None
    if timeout is not None and is_limited:
        set_time_limit(timeout, group.rank(), gather_values(group, os.getpid()))
    return group


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
