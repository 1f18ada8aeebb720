"""What is reported of a decode or an encode when it is done."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mlx.core as mx

from ..distributed.ranks import Ranks, Work
from ..planning.plan import Plan
from ..units import format_bytes, format_rate


@dataclass(frozen=True)
class Report:
    """The report of one item. `str` is its lines.

    Attributes:
        frames: of all outputs.
        fps: None for images without a rate.
        details: entries of the dict that only decodes or only encodes have.
        headline: a line before the others, or "".
        remark: the end of the line on frames.
        work: what several ranks shared; None for one process.
        sent_bytes, peak_bytes: of each of these ranks.
    """

    plan: Plan
    outputs: Sequence[str]
    frames: int
    fps: Fraction | None
    seconds: float
    details: dict[str, Any]
    remark: str
    headline: str = ""
    work: Work | None = None
    sent_bytes: Sequence[int] = ()
    peak_bytes: Sequence[int] = ()

    def as_dict(self) -> dict[str, Any]:
        """The report as a JSON-serializable dict. `output` is a list if there are several."""
        values = {
            "frames": self.frames,
            "width": self.plan.width,
            "height": self.plan.height,
            "fps": None if self.fps is None else float(self.fps),
            **self.details,
            "seconds": self.seconds,
            "peak_memory_bytes": mx.get_peak_memory(),
            "plan": self.plan.as_dict(),
            "output": self.outputs[0] if len(self.outputs) == 1 else list(self.outputs),
        }
        if self.work is not None:
            values["ranks"] = len(self.peak_bytes)
            values["distributed"] = self.work.value
            values["exchanged_bytes"] = sum(self.sent_bytes)
            values["peak_memory_bytes_per_rank"] = list(self.peak_bytes)
        return values

    def __str__(self) -> str:
        peaks = ", ".join(map(format_bytes, self.peak_bytes or [mx.get_peak_memory()]))
        lines = [self.headline] if self.headline else []
        lines.append(f"Frames: {self.frames}, {format_rate(self.frames, self.seconds)}, {self.remark}")
        lines.append(f"Peak memory: {peaks}")
        if self.work is not None:
            shared = "bands of rows" if self.work is Work.ROWS else "whole videos"
            sent = format_bytes(sum(self.sent_bytes))
            lines.append(f"Ranks: {len(self.peak_bytes)}, each {shared}; {sent} exchanged")
        return "\n".join(lines)


def gather_ranks(ranks: Ranks, work: Work, sent_bytes: int) -> dict[str, Any]:
    """What a report says about ranks, of which each has sent so much. All ranks call this."""
    if ranks.group is None:
        return {}
    sent, peaks = zip(*ranks.gather([sent_bytes, mx.get_peak_memory()]), strict=True)
    return {"work": work, "sent_bytes": sent, "peak_bytes": peaks}
