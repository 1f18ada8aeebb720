"""What the report of a run on several ranks adds."""

from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from ..backend.machine import Machine
from ..distributed.ranks import Ranks, Work
from ..units import format_bytes


@dataclass(frozen=True)
class RankReport:
    """The ranks of a run.

    Attributes:
        sent_bytes: bytes that each rank has sent.
        peak_bytes: peak memory of each rank.
    """

    work: Work
    sent_bytes: tuple[int, ...]
    peak_bytes: tuple[int, ...]

    @classmethod
    def gather(cls, ranks: Ranks, work: Work, sent_bytes: int) -> "RankReport":
        """The report of all ranks, from what this rank has sent. All ranks call this."""
        sent, peaks = zip(*ranks.gather([sent_bytes, mx.get_peak_memory()]), strict=True)
        return cls(work, sent, peaks)

    def as_dict(self) -> dict[str, Any]:
        """The additional entries of a report's dict."""
        return {
            "ranks": len(self.peak_bytes),
            "distributed": self.work.value,
            "exchanged_bytes": sum(self.sent_bytes),
            "peak_memory_bytes_per_rank": list(self.peak_bytes),
        }

    def __str__(self) -> str:
        """Appended to the report, of which the first rank's peak is the last entry."""
        others = "".join(f", {format_bytes(peak)}" for peak in self.peak_bytes[1:])
        work = "bands of rows" if self.work is Work.ROWS else "whole videos"
        sent = format_bytes(sum(self.sent_bytes))
        return f"{others}\nRanks: {len(self.peak_bytes)}, each {work}; {sent} exchanged"


def smallest(machine: Machine, ranks: Ranks) -> Machine:
    """This rank's machine with the memory of the smallest of all, so that all ranks make the same plan."""
    available = [memory for memory in ranks.gather(machine.available) if memory is not None]
    return replace(machine, available=min(available)) if available else machine
