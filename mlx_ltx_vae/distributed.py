"""Several processes that compute one video: ranks divide the work and exchange data over `mx.distributed`."""

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import mlx.core as mx
import numpy as np

from .backend.machine import Machine, Work
from .backend.mlx_utils import take
from .errors import DistributedError, PlanError, describe_error
from .process import WORDS, clean_up_for_good, uninterrupted
from .shapes import Axis
from .startup import is_command

Value = TypeVar("Value")


@dataclass(frozen=True)
class Ranks:
    """Ranks of a command."""

    group: mx.distributed.Group | None = None  # `None` means one process alone
    requested_work: Work | None = None  # shared by the ranks; `None` lets `choose` decide

    @property
    def size(self) -> int:
        return 1 if self.group is None else self.group.size()

    @property
    def rank(self) -> int:
        return 0 if self.group is None else self.group.rank()

    @property
    def is_first(self) -> bool:
        """Return whether this rank reports, and writes the common output of the ranks."""
        return self.rank == 0

    def choose(self, num_videos: int) -> Work:
        """Choose the kind of work that the ranks share: several videos, or the rows of one."""
        if self.group is None:
            return Work.OFF
        if self.requested_work is Work.BATCH and num_videos == 1:
            raise PlanError("--distributed batch shares several videos, and there is one; use rows.")
        return self.requested_work or (Work.BATCH if num_videos > 1 else Work.ROWS)

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

    def smallest(self, machine: Machine) -> Machine:
        """Return this rank's machine with the least memory of all machines, so that all ranks make the same plan."""
        gathered = zip(*self.gather([machine.available, machine.memory]), strict=True)
        available, memory = (min((size for size in sizes if size is not None), default=None) for sizes in gathered)
        return replace(machine, available=available, memory=memory)

    def check_same(self, read: Callable[[], Mapping[str, Any]]) -> None:
        """Check that all ranks `read` the same values; raise a `DistributedError` otherwise.

        `read` returns JSON-serializable values by name, and ranks compare a hash of each. One process alone does not
        call it.
        """
        if self.group is None:
            return
        values = {**self.together(read), "the versions of mlx_ltx_vae": version("mlx_ltx_vae")}
        hashes = {name: hashlib.sha256(json.dumps(value).encode()).hexdigest() for name, value in values.items()}
        for rank, rank_hashes in enumerate(self.gather(hashes)):
            for name in hashes:
                if rank_hashes.get(name) != hashes[name]:
                    raise DistributedError(
                        f"{name} differ between rank {min(rank, self.rank)} and rank {max(rank, self.rank)}; give all "
                        "ranks the same files, options and memory budget."
                    )

    def work_alone(self) -> None:
        """Remove the limit of the time between two exchanges: from now on, ranks may work alone for any time."""
        if self.group is not None:
            end_time_limit()

    def deal(self, costs: Sequence[int]) -> list[int]:
        """Return the rank of each item: longest first, each to the rank with the least work."""
        loads = [0] * self.size
        ranks = [0] * len(costs)
        for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
            ranks[index] = loads.index(min(loads))
            loads[ranks[index]] += costs[index]
        return ranks


class RowBands:
    """Bands of `rows` latent rows each, from top to bottom, as seen from this rank: the `Neighbors` of its stream.

    All ranks of the group must make the same calls in the same order. `sent_bytes` counts the bytes of this rank.
    """

    axis = Axis.HEIGHT

    def __init__(self, group: mx.distributed.Group, rows: Sequence[int]) -> None:
        self._group = group
        self.rank: int = group.rank()
        self.rows = tuple(rows)
        self.sent_bytes = 0

    def exchange(self, frames: mx.array, before: int, after: int) -> tuple[mx.array | None, mx.array | None]:
        # Ranks exchange in pairs, first (0, 1), (2, 3) and so on, then (1, 2), (3, 4) and so on. In a pair the upper
        # band sends first. No two ranks ever wait for each other, however large the rows are.
        restart_time_limit()
        above = below = None
        for parity in (0, 1):
            if self.rank % 2 == parity:
                if self.rank + 1 < len(self.rows):
                    height = frames.shape[Axis.HEIGHT]
                    self._send(take(frames, Axis.HEIGHT, height - before, height), self.rank + 1)
                    below = self._receive(frames, after, self.rank + 1)
            elif self.rank > 0:
                above = self._receive(frames, before, self.rank - 1)
                self._send(take(frames, Axis.HEIGHT, 0, after), self.rank - 1)
        return above, below

    def gather(self, frames: mx.array) -> mx.array:
        restart_time_limit()
        batch, time, height, width, channels = frames.shape
        scale = height // self.rows[self.rank]
        missing = (max(self.rows) - self.rows[self.rank]) * scale
        rows = frames.transpose(2, 0, 1, 3, 4)
        if missing:
            rows = mx.concatenate([rows, mx.zeros((missing, *rows.shape[1:]), rows.dtype)])
        self.sent_bytes += rows.nbytes * (len(self.rows) - 1)
        gathered = mx.distributed.all_gather(rows, group=self._group)
        gathered = gathered.reshape(len(self.rows), -1, batch, time, width, channels)
        parts = [gathered[rank, : count * scale] for rank, count in enumerate(self.rows)]
        joined = mx.concatenate(parts).transpose(1, 2, 0, 3, 4)
        mx.async_eval(joined)  # at once, also if this rank does not use it: the other ranks wait for this one
        return joined

    def all_true(self, flags: mx.array) -> mx.array:
        """Return for each element whether the flag is true on all ranks. Starts the exchange."""
        values = flags.astype(mx.int32)
        self.sent_bytes += values.nbytes * (len(self.rows) - 1)
        result = mx.distributed.all_min(values, group=self._group).astype(mx.bool_)
        mx.async_eval(result)
        return result

    def _send(self, rows: mx.array, rank: int) -> None:
        if rows.size:
            rows = mx.contiguous(rows)
            # Evaluated one by one, since MLX decides the order of evaluation within one graph.
            mx.async_eval(mx.distributed.send(rows, rank, group=self._group))
            self.sent_bytes += rows.nbytes

    def _receive(self, frames: mx.array, rows: int, rank: int) -> mx.array | None:
        if not rows:
            return None
        batch, time, _, width, channels = frames.shape
        received = mx.distributed.recv((batch, time, rows, width, channels), frames.dtype, rank, group=self._group)
        mx.async_eval(received)
        return received


def join_ranks(rank: int | None, distributed: str, timeout: int) -> Ranks | None:
    """Return the ranks of this command, or `None` if this process has nothing to do.

    `rank` is `None` if no launcher has started it. `distributed` is "auto", "rows", "batch" or "off". `timeout` is the
    number of seconds after which a command ends if its ranks exchange nothing. Other programs do not end.
    """
    if rank is None:
        return Ranks()
    if distributed == Work.OFF.value:
        return Ranks() if rank == 0 else None
    limit = timeout if is_command() else None
    ranks = Ranks(join_group(limit), None if distributed == "auto" else Work(distributed))
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
    """Remove the time limit."""
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
