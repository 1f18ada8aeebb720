"""A decode compared with its convolutions alone, which are the least it can take."""

import operator
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import mlx.core as mx
import numpy as np

from benchmarks.convolutions import Convolution, make_operands, recorded, run_alone
from benchmarks.counts import Counts, count_chunks
from benchmarks.measuring import Case, Decode, Run, table

_GIGA = 1e9


def roofline(case: Case, *, rounds: int) -> dict[str, Any]:
    """Time a decode and its convolutions alone, in turns chunk by chunk.

    Whatever else happens on the machine slows both, so their ratio is meaningful even on a busy machine.

    Returns:
        order; lists seconds (of each decode) and floor_seconds (of its convolutions alone); convolutions, gflop,
        chunks; counts, means per chunk in the middle third of the clip.
    """
    subject = Decode.from_case(case)
    groups, counts = _record(subject)
    convolutions = [convolution for group in groups for convolution in group]
    operands = make_operands(convolutions)
    seconds, floors = [], []
    for _ in range(rounds):
        decode = floor = 0.0
        for chunk_seconds, group in zip(_time_chunks(subject), groups, strict=True):
            decode += chunk_seconds
            floor += run_alone(group, operands, subject.plan.prefetch)
        seconds.append(decode)
        floors.append(floor)
    middle = [asdict(chunk_counts) for chunk_counts in counts[len(counts) // 3 : 2 * len(counts) // 3 + 1]]
    return {
        "order": subject.plan.order.value,
        "seconds": seconds,
        "floor_seconds": floors,
        "convolutions": len(convolutions),
        "gflop": sum(convolution.operations for convolution in convolutions) / _GIGA,
        "chunks": len(counts),
        "counts": {name: statistics.mean(chunk_counts[name] for chunk_counts in middle) for name in middle[0]},
    }


def _record(subject: Decode) -> tuple[list[list[Convolution]], list[Counts]]:
    """Decode once: the convolutions of each chunk, and of the time after the last; the counts of each chunk."""
    groups: list[list[Convolution]] = [[]]

    def chunks() -> Iterator[np.ndarray]:
        for frames in subject.run():
            groups.append([])
            yield frames

    with recorded(lambda convolution: groups[-1].append(convolution)):
        counts = count_chunks(chunks())
    return groups, counts[:-1]


def _time_chunks(subject: Decode) -> Iterator[float]:
    """Decode, and yield the seconds that each chunk takes, and those from the last chunk to the end of the stream."""
    chunks = subject.run()
    is_done = False
    while not is_done:
        start = time.perf_counter()
        is_done = next(chunks, None) is None
        mx.synchronize()
        yield time.perf_counter() - start


def roofline_table(results: list[list[Run]]) -> str:
    """Medians: each decode as a ratio to its floor, and its synchronizations."""
    rows = []
    for (run,) in results:
        total, floor = statistics.median(run["seconds"]), statistics.median(run["floor_seconds"])
        ratio = statistics.median(map(operator.truediv, run["seconds"], run["floor_seconds"]))
        rows.append(
            {
                "mode": run["mode"],
                "order": run["order"],
                "frames": str(run["frames"]),
                "seconds": f"{total:.2f}",
                "floor": f"{floor:.2f}",
                "ratio": f"{ratio:.3f}",
                "convs": str(run["convolutions"]),
                "GFLOP": f"{run['gflop']:.1f}",
                "GFLOP/s": f"{run['gflop'] / floor:.0f}",
                "reads": f"{run['counts']['readbacks']:.1f}",
                "arrays": f"{run['counts']['arrays']:.1f}",
                "evals": f"{run['counts']['evaluations']:.1f}",
            }
        )
    run = results[0][0]
    notes = [
        "floor: the decode's convolutions alone, same shapes in the same order.",
        "ratio: seconds / floor of the same round, in turns chunk by chunk. GFLOP/s: of the floor.",
        "reads, arrays, evals: per chunk in the middle of the clip. Two reads are the frames and their flag.",
        f"{run['width']}x{run['height']}; medians of {len(run['seconds'])} rounds in one process.",
    ]
    return table(rows, notes)
