"""Check that frames are written while the next ones are decoded."""

import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import Case, Decode, Run, median, table
from mlx_ltx_vae.frame_format import RGB8
from mlx_ltx_vae.units import DEFAULT_FPS
from mlx_ltx_vae.video import Sink, VideoWriter

#: Times that waiting sinks take, as shares of the decode's time.
SHARES = (0.5, 1.0, 2.0)


def waiting_sink(size: tuple[int, int], seconds_per_frame: float) -> Sink:
    """Return a sink that sleeps as long as writing would take, and computes nothing."""
    return Sink("a waiting sink", size, RGB8, lambda frames: time.sleep(seconds_per_frame * len(frames)))


def overlap(case: Case, *, rounds: int, ffmpeg: bool) -> dict[str, Any]:
    """Measure the decode alone, each sink alone with the same frames, and both together; with `ffmpeg` an mp4 too.

    Returns:
        lookahead and latent_frames; sinks, for each round and sink its name, and the seconds of decode, alone, together
        and least (see `least_seconds`).
    """
    subject = Decode.from_case(case)
    size = subject.plan.frame_size
    clip = [frames.copy() for frames in subject.run()]
    num_frames = sum(map(len, clip))
    seconds_per_frame = _arrivals(subject)[-1][0] / num_frames
    makers: dict[str, Callable[[], Sink]] = {
        f"waits {share}": partial(waiting_sink, size, share * seconds_per_frame) for share in SHARES
    }
    measured: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        if ffmpeg:
            makers["mp4"] = partial(VideoWriter, Path(folder) / "clip.mp4", size=size, fps=DEFAULT_FPS)
        for _ in range(rounds):
            arrivals = _arrivals(subject)
            for name, make in makers.items():
                alone = _write(clip, make())
                seconds = {"decode": arrivals[-1][0], "alone": alone, "together": _write(subject.run(), make())}
                measured.append({"sink": name, **seconds, "least": least_seconds(arrivals, alone / num_frames)})
    plan = subject.plan
    return {"lookahead": plan.lookahead, "latent_frames": plan.latent_shape.frames, "sinks": measured}


def least_seconds(arrivals: list[tuple[float, int]], seconds_per_frame: float) -> float:
    """When a sink that takes `seconds_per_frame` would be done if it only waited for frames that are not decoded yet.

    Args:
        arrivals: for each chunk the seconds since the start and the number of its frames.
    """
    done = 0.0
    for seconds, frames in arrivals:
        done = max(done, seconds) + seconds_per_frame * frames
    return done


def _arrivals(subject: Decode) -> list[tuple[float, int]]:
    """Decode without a sink: for each chunk the seconds since the start and the number of its frames."""
    start = time.perf_counter()
    return [(time.perf_counter() - start, len(frames)) for frames in subject.run()]


def _write(chunks: Iterable[np.ndarray], sink: Sink) -> float:
    """Seconds until all chunks are written and the sink is closed."""
    start = time.perf_counter()
    with sink:
        for frames in chunks:
            sink.write(frames)
    return time.perf_counter() - start


def overlap_table(results: list[list[Run]]) -> str:
    """Medians; decode and sink together as a ratio to the slower of the two."""
    rows = []
    for (run,) in results:
        for sink in dict.fromkeys(timing["sink"] for timing in run["sinks"]):
            rounds = [timing for timing in run["sinks"] if timing["sink"] == sink]
            decode, alone, together, least = (median(rounds, name) for name in ("decode", "alone", "together", "least"))
            slower = max(decode, alone)
            numbers = {
                "share": alone / decode,
                "decode": decode,
                "sink alone": alone,
                "together": together,
                "ratio": together / slower,
                "at best": least / slower,
            }
            texts = {"mode": run["mode"], "sink": sink, "frames": str(run["frames"])}
            rows.append(texts | {name: f"{number:.2f}" for name, number in numbers.items()})
    run = results[0][0]
    notes = [
        "share: the sink's time / the decode's. ratio: together / the slower of the two alone.",
        "at best: the ratio of a sink that only waits for frames that are not decoded yet. The first frame needs "
        f"{min(run['lookahead'], run['latent_frames'])} of {run['latent_frames']} latent frames.",
        f"{run['width']}x{run['height']}; medians of {len(rounds)} rounds in one process.",
    ]
    return table(rows, notes)
