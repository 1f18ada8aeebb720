"""A time limit on what ranks wait for: one that is stopped or asleep would block the others forever.

A wait in `mx.distributed` cannot be interrupted, so a thread ends the process. Only commands set a limit.
"""

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from ..process.cleanup import clean_up_for_good, uninterrupted

_STANDARD_ERROR = 2
_TICK, _LEAST_TICKS = 1.0, 10  # seconds; in a limit
# How much longer than the rank before it each rank waits: a share of the limit, in seconds within these bounds.
_GRACE, _MIN_GRACE, _MAX_GRACE = 0.1, 3, 60


_waited = 0.0  # seconds since the ranks have exchanged something
_is_over = False


def set_time_limit(seconds: float, rank: int, processes: Sequence[int]) -> None:
    """End this process, with one line, when the ranks, whose `processes` are in order, have exchanged nothing so long.

    The first rank is the first to do so, and the launcher then ends the others. If it is the one that is stopped, the
    next rank does. Time in which this process was stopped itself does not count.
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
    tick = min(_TICK, seconds / _LEAST_TICKS)
    limit = seconds + rank * min(max(_GRACE * seconds, _MIN_GRACE), _MAX_GRACE)
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
        os.write(_STANDARD_ERROR, text.encode())
    for process in processes:
        # As the launcher does next; but it waits for a process on this machine that is stopped, until it goes on.
        with suppress(OSError):  # of another machine, or gone
            # In the launcher's group; the number may be another process's here.
            if process != os.getpid() and os.getpgid(process) == os.getpgrp():
                os.kill(process, signal.SIGTERM)
                os.kill(process, signal.SIGCONT)
    os._exit(1)
