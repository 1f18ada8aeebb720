"""How a command divides its work over the ranks that a launcher has started. One process alone is one rank."""

import enum
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import DistributedError, PlanError, quote

if TYPE_CHECKING:
    import mlx.core as mx

    from ..backend.machine import Machine

Value = TypeVar("Value")

DEFAULT_TIMEOUT = 1800  # seconds; longer than the reader of an output pauses, or a checkpoint takes to be read

# Set by `mlx.launch` for its backends, and by the launchers of MPI.
_RANK_VARIABLES = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


class Work(enum.Enum):
    """What ranks share."""

    ROWS = "rows"  # one video: each computes a band of rows
    BATCH = "batch"  # several videos: each computes whole ones
    OFF = "off"  # nothing: the first rank does everything


def launched_rank() -> int | None:
    """The rank of this process; None if no launcher has started it."""
    name = next((name for name in _RANK_VARIABLES if name in os.environ), None)
    if name is None:
        return None
    text = os.environ[name]
    if not re.fullmatch("[0-9]{1,9}", text):
        raise DistributedError(
            f"{name} is {quote(text)}, which is not the number of a rank; unset it, or use mlx.launch."
        )
    return int(text)


@dataclass(frozen=True)
class Ranks:
    """The ranks of a command."""

    group: "mx.distributed.Group | None" = None  # None for one process alone; then no other module here is imported
    wanted: Work | None = None  # what the user wants to be shared; None to choose

    @property
    def size(self) -> int:
        return 1 if self.group is None else self.group.size()

    @property
    def rank(self) -> int:
        return 0 if self.group is None else self.group.rank()

    @property
    def is_first(self) -> bool:
        """Whether this rank reports, and writes what the ranks make together."""
        return self.rank == 0

    def choose(self, num_videos: int) -> Work:
        """What the ranks share: several videos, or the rows of one."""
        if self.group is None:
            return Work.OFF
        if self.wanted is Work.BATCH and num_videos == 1:
            raise PlanError("--distributed batch shares several videos, and there is one; use rows.")
        return self.wanted or (Work.BATCH if num_videos > 1 else Work.ROWS)

    def together(self, function: Callable[[], Value]) -> Value:
        """What a function returns. If it fails on one rank, it fails on all."""
        return function() if self.group is None else _agreement().run_together(self.group, function)

    def gather(self, value: Value) -> list[Value]:
        """The JSON-serializable values of all ranks, in order."""
        return [value] if self.group is None else _agreement().gather_values(self.group, value)

    def smallest(self, machine: "Machine") -> "Machine":
        """This rank's machine with the memory of the smallest of all, so that all ranks make the same plan."""
        available = [memory for memory in self.gather(machine.available) if memory is not None]
        return replace(machine, available=min(available)) if available else machine

    def check_same(self, read: Callable[[], Mapping[str, Any]]) -> None:
        """Check that `read`, which one process alone does not call, returns the same things by name on all ranks."""
        if self.group is not None:
            _agreement().check_same(self.group, self.together(read))

    def work_alone(self) -> None:
        """No longer limit the time between two exchanges: from now on, ranks may have any time to themselves."""
        if self.group is not None:
            _agreement().end_time_limit()

    def deal(self, costs: Sequence[int]) -> list[int]:
        """The rank of each item: longest first, each to the rank that has least to do."""
        loads = [0] * self.size
        ranks = [0] * len(costs)
        for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
            ranks[index] = loads.index(min(loads))
            loads[ranks[index]] += costs[index]
        return ranks


def _agreement() -> Any:
    """The module, which is not imported where one process works alone."""
    from . import agreement

    return agreement


def join_ranks(distributed: str, timeout: int) -> Ranks | None:
    """The ranks of this command; None if this process has nothing to do.

    `distributed` is "auto", "rows", "batch" or "off"; `timeout` the seconds after which a command ends if its ranks
    exchange nothing.
    """
    rank = launched_rank()
    if rank is None:
        return Ranks()
    if distributed == Work.OFF.value:
        return Ranks() if rank == 0 else None
    return Ranks(_agreement().join_group(timeout), None if distributed == "auto" else Work(distributed))
