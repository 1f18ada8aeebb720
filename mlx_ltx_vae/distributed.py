"""Several processes that share the inputs of a command, each on its own, and report over `mx.distributed`."""

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

import mlx.core as mx
import numpy as np

from .errors import DistributedError, describe_error, warn
from .process import WORDS, clean_up_for_good, uninterrupted
from .startup import is_command

Value = TypeVar("Value")


@dataclass(frozen=True)
class Ranks:
    """Ranks of a command."""

    group: mx.distributed.Group | None = None  # `None` means one process alone

    @property
    def size(self) -> int:
        return 1 if self.group is None else self.group.size()

    @property
    def rank(self) -> int:
        return 0 if self.group is None else self.group.rank()

    @property
    def is_first(self) -> bool:
        """Return whether this rank reports."""
        return self.rank == 0

    def together(self, function: Callable[[], Value]) -> Value:
        """Run a function on all ranks. If it fails on one rank, it fails on all, so that none waits for another.

        It raises a `DistributedError` with the error of the first rank that failed. The first rank, which reports
        errors, raises its error unchanged.
        """
        if self.group is None:
            return function()
        result, error = None, None
        try:
            result = function()
        except Exception as caught:  # raised below, when all ranks have the message
            error = caught
        messages = self.gather(None if error is None else describe_error(error))
        if error is not None and self.is_first:
            raise error
        for rank, message in enumerate(messages):
            if message:
                raise DistributedError(f"rank {rank}: {message}") from error
        return result  # type: ignore[return-value]  # there is one if there is no error

    def gather(self, value: Value) -> list[Value]:
        """Return the JSON-serializable values of all ranks, in order."""
        if self.group is None:
            return [value]
        data = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = self._gather(np.array([len(data)], np.int32))[:, 0]
        rows = self._gather(np.pad(data, (0, int(sizes.max()) - len(data))))
        return [json.loads(bytes(row[:size])) for row, size in zip(rows, sizes, strict=True)]

    def _gather(self, values: np.ndarray) -> np.ndarray:
        """Return the values of all ranks, stacked along a new first axis."""
        restart_time_limit()
        gathered = np.array(mx.distributed.all_gather(mx.array(values)[None], group=self.group))
        restart_time_limit()
        return gathered

    def check_inputs(self, names: Sequence[Sequence[str | None]]) -> None:
        """Check that all ranks have the same inputs and outputs, by name; raise a `DistributedError` otherwise."""
        digest = hashlib.sha256(json.dumps(names).encode()).hexdigest()
        for rank, rank_digest in enumerate(self.gather(digest)):
            if rank_digest != digest:
                raise DistributedError(
                    f"the inputs differ between rank {min(rank, self.rank)} and rank {max(rank, self.rank)}; give all "
                    "ranks the same files and options."
                )

    def deal(self, costs: Sequence[int]) -> list[int]:
        """Return the rank of each item: longest first, each to the rank with the least work."""
        loads = [0] * self.size
        ranks = [0] * len(costs)
        for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
            ranks[index] = loads.index(min(loads))
            loads[ranks[index]] += costs[index]
        return ranks


def join_ranks(rank: int | None, distributed: str, timeout: int, *, is_many: bool) -> Ranks | None:
    """Return the ranks of this command, or `None` if this process has nothing to do.

    Ranks share several inputs. A single input (not `is_many`) is run by the first rank alone, with a warning.

    Args:
        rank: `None` if no launcher has started this process.
        distributed: "auto", "batch", for which a single input is an error, or "off".
        timeout: seconds after which a command ends if its ranks exchange nothing. Other programs do not end.
    """
    if rank is None:
        return Ranks()
    if distributed == "off":
        return Ranks() if rank == 0 else None
    limit = timeout if is_command() else None
    ranks = Ranks(join_group(limit))
    if ranks.group is not None and not is_many:
        remedy = "give several inputs, or decode a part of the clip on each machine with --frames"
        if distributed == "batch":
            raise DistributedError(f"--distributed batch shares several inputs, and there is one; {remedy}.")
        if not ranks.is_first:
            return None
        warn(f"there is one input, so only the first of {ranks.size} ranks works; {remedy}.")
        return Ranks()
    if ranks.group is not None and limit is not None:
        set_time_limit(limit, ranks.rank, ranks.gather(os.getpid()))
    return ranks


_waited = 0.0  # seconds since the ranks have exchanged something
_is_over = False


def join_group(timeout: int | None) -> mx.distributed.Group | None:
    """Connect to the group of all processes of the launcher. Returns `None` if this is the only process.

    With a `timeout`, the process ends if it is not connected after this many seconds.
    """
    hosts = os.environ.get("MLX_HOSTFILE")
    if hosts and Path(hosts).is_file() and not Path(hosts).read_text().strip():
        return None  # `mlx.launch -n 1` writes an empty list of hosts, which MLX cannot read
    try:
        with _ended_by_the_system(timeout):
            group = mx.distributed.init()
    except RuntimeError as error:
        raise DistributedError(f"the ranks cannot connect ({error}); check the hosts given to mlx.launch.") from error
    return None if group.size() == 1 else group


def is_lost_peer(error: Exception) -> bool:
    """Return whether another rank has ended, by the message of MLX's ring backend."""
    return isinstance(error, RuntimeError) and "connection to a peer was lost" in str(error)


@contextmanager
def _ended_by_the_system(timeout: int | None) -> Iterator[None]:
    """Let signals end a command at once in this block, and SIGALRM after a time.

    MLX holds the interpreter's lock while it connects, so that neither a handler nor a thread would run. No output
    exists yet that a handler would have to clean up.
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
    """End this process, with one line, when the ranks have exchanged nothing for these seconds.

    `processes` are the process ids of the ranks, in order. A rank that is stopped or asleep would block the other ranks
    forever, and a wait in `mx.distributed` cannot be interrupted, so a thread ends the process. Only commands set a
    limit. The first rank ends first, and the launcher then ends the other ranks; if the first rank is stopped, the next
    one ends first. Time in which this process was stopped does not count.
    """
    global _waited, _is_over
    _waited, _is_over = 0.0, False
    threading.Thread(target=_watch, args=(seconds, rank, processes), name="time limit", daemon=True).start()


def restart_time_limit() -> None:
    """Start the time limit again after an exchange. Does nothing without a limit, like `end_time_limit`."""
    global _waited
    _waited = 0.0


def end_time_limit() -> None:
    """Remove the time limit: from now on, ranks may work alone for any time."""
    global _is_over
    with uninterrupted():
        _is_over = True


def _watch(seconds: float, rank: int, processes: Sequence[int]) -> None:
    global _waited
    tick = min(1.0, seconds / 10)
    limit = seconds + rank * min(max(0.1 * seconds, 3), 60)  # each rank waits longer than the previous one
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
        # The launcher does the same next, but would wait for a stopped process on this machine until it continues.
        with suppress(OSError):  # of another machine, or gone
            # Only in the launcher's group: on this machine, the id may be another process's.
            if process != os.getpid() and os.getpgid(process) == os.getpgrp():
                os.kill(process, signal.SIGTERM)
                os.kill(process, signal.SIGCONT)
    os._exit(1)
