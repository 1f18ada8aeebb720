"""What is reported of an item that was decoded or encoded."""

from fractions import Fraction
from typing import Any

import mlx.core as mx

from ..distributed.ranks import Ranks, Work
from ..planning.plan import Plan
from ..units import format_bytes, format_rate
from .inputs import Item


def report(
    item: Item,
    plan: Plan,
    ranks: Ranks,
    work: Work,
    *,
    frames: int,
    fps: Fraction | None,
    seconds: float,
    sent_bytes: int,
    remark: str,
    headline: str | None = None,
    **details: Any,
) -> None:
    """Complete an item with its report. All ranks that have run it together call this.

    Args:
        work: what they shared.
        frames: of all outputs.
        fps: None for images without a rate.
        sent_bytes: by this rank.
        remark: the end of the line on frames.
        headline: a line before the others.
        details: further values, JSON-serializable.
    """
    sent, peaks = zip(*ranks.gather([sent_bytes, mx.get_peak_memory()]), strict=True)
    lines = [headline] if headline else []
    lines.append(f"Frames: {frames}, {format_rate(frames, seconds)}, {remark}")
    lines.append(f"Peak memory: {', '.join(map(format_bytes, peaks))}")
    item.values = {
        "frames": frames,
        "width": plan.width,
        "height": plan.height,
        "fps": None if fps is None else float(fps),
        **details,
        "seconds": seconds,
        "peak_memory_bytes": peaks[0],
        "plan": plan.as_dict(),
        "output": item.outputs[0] if len(item.outputs) == 1 else list(item.outputs),
    }
    if ranks.group is not None:
        item.values["ranks"] = ranks.size
        item.values["distributed"] = work.value
        item.values["exchanged_bytes"] = sum(sent)
        item.values["peak_memory_bytes_per_rank"] = list(peaks)
        shared = "bands of rows" if work is Work.ROWS else "whole videos"
        lines.append(f"Ranks: {ranks.size}, each {shared}; {format_bytes(sum(sent))} exchanged")
    item.text = "\n".join(lines)
