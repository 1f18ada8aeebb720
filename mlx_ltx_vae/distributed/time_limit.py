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


class TimeLimit:
    """Ends this process, with one line, when the ranks have exchanged nothing for some seconds.

    The first rank is the first to do so, and the launcher then ends the others. If it is the one that is stopped, the
    next rank does. Time in which this process was stopped itself does not count.

    Args:
        processes: of all ranks, in order.

    Attributes:
        waited: seconds since the ranks have exchanged something.
        is_over: whether there is no limit any more.
    """

    def __init__(self, seconds: float, rank: int, processes: Sequence[int]) -> None:
        self._seconds, self._rank = seconds, rank
        self._others = [process for process in processes if process != os.getpid()]
        self._limit = seconds + rank * min(max(_GRACE * seconds, _MIN_GRACE), _MAX_GRACE)
        self.waited = 0.0
        self.is_over = False
        threading.Thread(target=self._watch, name="time limit", daemon=True).start()

    def _watch(self) -> None:
        tick = min(_TICK, self._seconds / _LEAST_TICKS)
        while not self.is_over:
            time.sleep(tick)
            self.waited += tick
            if self.waited >= self._limit:
                with uninterrupted():
                    if not self.is_over:
                        self._end_process()

    def _end_process(self) -> NoReturn:
        clean_up_for_good()
        name = f"rank {self._rank}: " if self._rank else ""
        text = (
            f"error: {name}the ranks have exchanged nothing for {self._seconds:g} s; see that none is stopped, asleep "
            "or disconnected, and that the output is read, or set a longer --rank-timeout.\n"
        )
        with suppress(OSError):  # the terminal may be gone
            os.write(_STANDARD_ERROR, text.encode())
        for process in self._others:
            # As the launcher does next; but it waits for a process on this machine that is stopped, until it goes on.
            with suppress(OSError):  # of another machine, or gone
                if os.getpgid(process) == os.getpgrp():  # the launcher's; the number may be another process's here
                    os.kill(process, signal.SIGTERM)
                    os.kill(process, signal.SIGCONT)
        os._exit(1)


_limit: TimeLimit | None = None


def set_time_limit(seconds: float, rank: int, processes: Sequence[int]) -> None:
    """Set the limit of this process (see `TimeLimit`)."""
    global _limit
    _limit = TimeLimit(seconds, rank, processes)


def restart_time_limit() -> None:
    """Say that the ranks have exchanged something. Does nothing without a limit."""
    if _limit is not None:
        _limit.waited = 0.0


def end_time_limit() -> None:
    """Set no limit any more. Does nothing without one."""
    if _limit is not None:
        with uninterrupted():
            _limit.is_over = True
