"""Whether frames are written while the next are computed: `bench --overlap`."""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..video import Sink, VideoWriter
from .case import Case
from .processes import Run
from .subject import Decode
from .tables import aligned

#: What a sink that waits takes, as a share of what the decode takes.
SHARES = (0.5, 1.0, 2.0)

_FPS = 24


class WaitingSink(Sink):
    """Waits as long as writing would take, and computes nothing.

    Args:
        size: `(width, height)` in pixels.
        seconds_per_frame: of waiting.
    """

    def __init__(self, size: tuple[int, int], seconds_per_frame: float) -> None:
        super().__init__("a sink that waits", size, 8)
        self._seconds_per_frame = seconds_per_frame

    def _consume(self, frames: np.ndarray) -> None:
        time.sleep(self._seconds_per_frame * len(frames))

    def _finish(self) -> None:
        return

    def _discard(self) -> None:
        return


def overlap(case: Case) -> dict[str, Any]:
    """The decode alone, each sink alone on the same frames, and both together, `case.rounds` times.

    Returns:
        lookahead, latent_frames, decode_seconds (of each round), and sinks: for each its name, share (see `SHARES`;
        None for one that computes), alone_seconds, together_seconds and least_seconds (of each round; see
        `least_seconds`).
    """
    subject = Decode.of(case)
    clip = [frames.copy() for frames in subject.run()]
    num_frames = sum(map(len, clip))
    expected = _decode_alone(subject)[-1][0]
    with _make_sinks(case, subject.plan.frame_size, expected / num_frames) as makers:
        sinks = [{**named, "alone_seconds": [], "together_seconds": [], "least_seconds": []} for named, _ in makers]
        decodes = []
        for _ in range(case.rounds):
            arrivals = _decode_alone(subject)
            decodes.append(arrivals[-1][0])
            for sink, (_, make) in zip(sinks, makers, strict=True):
                alone = _seconds(clip, make())
                sink["alone_seconds"].append(alone)
                sink["together_seconds"].append(_seconds(subject.run(), make()))
                sink["least_seconds"].append(least_seconds(arrivals, alone / num_frames))
    return {
        "lookahead": subject.plan.lookahead,
        "latent_frames": subject.plan.latent_shape[2],
        "decode_seconds": decodes,
        "sinks": sinks,
    }


def least_seconds(arrivals: list[tuple[float, int]], seconds_per_frame: float) -> float:
    """When a sink could be done at the earliest, if nothing but the frames it has not been given yet held it up.

    Args:
        arrivals: when frames come, in seconds since the beginning, and how many.
        seconds_per_frame: what the sink takes.
    """
    done = 0.0
    for seconds, frames in arrivals:
        done = max(done, seconds) + seconds_per_frame * frames
    return done


@contextmanager
def _make_sinks(
    case: Case, size: tuple[int, int], seconds_per_frame: float
) -> Iterator[list[tuple[dict[str, Any], Callable[[], Sink]]]]:
    """Each sink's name and share, and how one is made; `seconds_per_frame` is the decode's."""

    def waits(share: float) -> Callable[[], Sink]:
        return lambda: WaitingSink(size, share * seconds_per_frame)

    makers: list[tuple[dict[str, Any], Callable[[], Sink]]]
    makers = [({"sink": "waits", "share": share}, waits(share)) for share in SHARES]
    with tempfile.TemporaryDirectory() as folder:
        if case.ffmpeg:
            path = Path(folder) / "clip.mp4"
            makers.append(({"sink": "mp4", "share": None}, lambda: VideoWriter(path, size=size, fps=_FPS)))
        yield makers


def _decode_alone(subject: Decode) -> list[tuple[float, int]]:
    """When frames came, in seconds since the beginning, and how many."""
    start = time.perf_counter()
    return [(time.perf_counter() - start, len(frames)) for frames in subject.run()]


def _seconds(chunks: Iterable[np.ndarray], sink: Sink) -> float:
    """What it takes until all chunks are in the sink and it is closed."""
    start = time.perf_counter()
    with sink:
        for frames in chunks:
            sink.write(frames)
    return time.perf_counter() - start


def overlap_table(runs: list[list[Run]]) -> str:
    """Medians: both together as a ratio to the slower of the two."""
    rows = []
    for (run,) in runs:
        decode = statistics.median(run["decode_seconds"])
        for sink in run["sinks"]:
            alone, together, least = (
                statistics.median(sink[f"{name}_seconds"]) for name in ("alone", "together", "least")
            )
            slower = max(decode, alone)
            rows.append(
                [
                    run["mode"],
                    sink["sink"],
                    str(run["frames"]),
                    f"{alone / decode:.2f}",
                    f"{decode:.2f}",
                    f"{alone:.2f}",
                    f"{together:.2f}",
                    f"{together / slower:.2f}",
                    f"{least / slower:.2f}",
                ]
            )
    head = ["mode", "sink", "frames", "share", "decode", "sink alone", "together", "ratio", "at best"]
    run = runs[0][0]
    looked, clip = min(run["lookahead"], run["latent_frames"]), run["latent_frames"]
    notes = [
        "share: the sink's time as a share of the decode's; ratio: together / the slower of the two alone.",
        "at best: the ratio if nothing but frames that have not come held the sink up. The first frame needs "
        f"{looked} of {clip}",
        "latent frames; if these took as long as all others, a sink as slow as the decode could do no better than "
        f"{1 + looked / clip:.2f}.",
        f"{run['width']}x{run['height']}; medians of {run['rounds']} rounds in one process.",
    ]
    return "\n".join([aligned(head, rows, words=2), *notes])
