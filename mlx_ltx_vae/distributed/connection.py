"""The group of all ranks that a launcher has started, and for how long they wait for each other."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import mlx.core as mx

from ..errors import DistributedError
from ..process.cleanup import clean_up_for_good, uninterrupted
from ..process.signals import WORDS

_waited = 0.0  # seconds since the ranks have exchanged something
_is_over = False


def join_group(timeout: int | None) -> mx.distributed.Group | None:
    """The group of all processes that the launcher has started; None if this is the only one.

    With a `timeout`, the process ends if it is not connected after so many seconds.
    """
    hosts = os.environ.get("MLX_HOSTFILE")
    if hosts and Path(hosts).is_file() and not Path(hosts).read_text().strip():
        return None  # `mlx.launch -n 1`, whose empty list of hosts MLX cannot read
    try:
        with _ended_by_the_system(timeout):
            group = mx.distributed.init()
    except RuntimeError as error:
        raise DistributedError(f"the ranks cannot connect ({error}); check the hosts given to mlx.launch.") from error
    return None if group.size() == 1 else group


def is_lost_peer(error: Exception) -> bool:
    """Whether another rank has ended, by the message of MLX's ring backend."""
    return isinstance(error, RuntimeError) and "connection to a peer was lost" in str(error)


@contextmanager
def _ended_by_the_system(timeout: int | None) -> Iterator[None]:
    """Let signals end a command at once in this block, and SIGALRM after a time.

    MLX holds the interpreter's lock while it connects, so that neither a handler nor a thread would run. There is
    nothing to clean up yet.
    """
    if timeout is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: handler for number in WORDS if callable(handler := signal.getsignal(number))}
    for number in (*handlers, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(timeout)
    try:
        yield
    finally:
        signal.alarm(0)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def set_time_limit(seconds: float, rank: int, processes: Sequence[int]) -> None:
    """End this process, with one line, when the ranks, whose `processes` are in order, have exchanged nothing so long.

    One that is stopped or asleep would block the others forever, and a wait in `mx.distributed` cannot be interrupted,
    so a thread does it. Only commands set a limit. The first rank is the first to do so, and the launcher then ends the
    others; if it is the one that is stopped, the next rank does. Time in which this process was stopped itself does not
    count.
    """
    global _waited, _is_over
    _waited, _is_over = 0.0, False
    threading.Thread(target=_watch, args=(seconds, rank, processes), name="time limit", daemon=True).start()


def restart_time_limit() -> None:
    """Say that the ranks have exchanged something. Does nothing without a limit, as `end_time_limit`."""
    global _waited
    _waited = 0.0


def end_time_limit() -> None:
    """Set no limit any more."""
    global _is_over
    with uninterrupted():
        _is_over = True


def _watch(seconds: float, rank: int, processes: Sequence[int]) -> None:
    global _waited
    tick = min(1.0, seconds / 10)
    limit = seconds + rank * min(max(0.1 * seconds, 3), 60)  # each rank waits longer than the one before it
    while not _is_over:
        time.sleep(tick)
        _waited += tick
        if _waited >= limit:
            with uninterrupted():
                if not _is_over:
                    _end_process(seconds, rank, processes)


def _end_process(seconds: float, rank: int, processes: Sequence[int]) -> NoReturn:
    clean_up_for_good()
    name = f"rank {rank}: " if rank else ""
    text = (
        f"error: {name}the ranks have exchanged nothing for {seconds:g} s; see that none is stopped, asleep "
        "or disconnected, and that the output is read, or set a longer --rank-timeout.\n"
    )
    with suppress(OSError):  # the terminal may be gone
        os.write(2, text.encode())  # standard error
    for process in processes:
        # As the launcher does next; but it waits for a process on this machine that is stopped, until it goes on.
        with suppress(OSError):  # of another machine, or gone
            # In the launcher's group; the number may be another process's here.
            if process != os.getpid() and os.getpgid(process) == os.getpgrp():
                os.kill(process, signal.SIGTERM)
                os.kill(process, signal.SIGCONT)
    os._exit(1)
