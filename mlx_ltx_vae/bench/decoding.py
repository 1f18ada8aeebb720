"""Decoding, as it comes: `bench` without anything else."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from .case import Case
from .processes import Run
from .samples import MemorySamples
from .subject import Decode
from .tables import MB, aligned, footnote, median


def decode(case: Case) -> dict[str, Any]:
    """Decode to uint8 frames.

    Returns:
        order, weights_bytes, planned_bytes, and what `measure_decode` gives.
    """
    subject = Decode.of(case)
    return {
        "order": subject.plan.order.value,
        "planned_bytes": subject.plan.peak_bytes,
        "weights_bytes": weights_bytes(subject.vae.decoder),
        **measure_decode(case, subject.run()),
    }


def measure_decode(case: Case, chunks: Iterator[np.ndarray]) -> dict[str, Any]:
    """Take a decode's frames as they come.

    Args:
        case: says what else is kept.
        chunks: the frames (n, H, W, 3) uint8, not yet begun.

    Returns:
        frames, seconds, first_frame_seconds, between_bytes (held between two chunks: the caches), and what
        `memory_since` gives; with `case.sampled` also samples, see `Sample`.
    """
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    arrivals, between, kept = [], [], []
    with MemorySamples() if case.sampled else nullcontext() as samples:
        start = time.perf_counter()
        for frames in chunks:
            arrivals.append((time.perf_counter() - start, len(frames)))
            if case.keep:
                kept.append(frames.copy())
            del frames
            between.append(mx.get_active_memory() - held)
            if samples is not None:
                samples.take()
        seconds = time.perf_counter() - start
    measured = {
        "frames": sum(count for _, count in arrivals),
        "seconds": seconds,
        "first_frame_seconds": arrivals[0][0],
        # In the middle of the clip, when nothing waits between two layers.
        "between_bytes": min(between[len(between) // 3 : 2 * len(between) // 3 + 1]),
        **memory_since(case, held),
    }
    if samples is not None:
        measured["samples"] = samples.samples
    if case.keep:
        np.save(case.keep, np.concatenate(kept))
    return measured


def weights_bytes(network: nn.Module) -> int:
    """What a network's weights take."""
    return sum(array.nbytes for _, array in tree_flatten(network.parameters()))


def memory_since(case: Case, held: int) -> dict[str, Any]:
    """MLX's peak.

    Args:
        case: whose frames these are.
        held: bytes that were in use before, such as weights and latents.

    Returns:
        peak_bytes (without what was held), bytes_per_pixel (of that, per pixel of one frame), total_peak_bytes.
    """
    peak = mx.get_peak_memory()
    return {
        "peak_bytes": peak - held,
        "bytes_per_pixel": (peak - held) / (case.width * case.height),
        "total_peak_bytes": peak,
    }


def decode_table(runs: list[list[Run]]) -> str:
    """Medians per case; times as a ratio to the single pass of as many frames, where there is one."""
    single = {results[0]["frames"]: median(results, "seconds") for results in runs if results[0]["mode"] == "single"}
    rows = []
    for results in runs:
        run = results[0]
        seconds, first = median(results, "seconds"), median(results, "first_frame_seconds")
        peak = max(run["peak_bytes"] for run in results)
        rows.append(
            [
                run["mode"],
                run["order"],
                str(run["tile_batch_size"]) if run["mode"] == "tiled" else "",
                str(run["frames"]),
                f"{seconds:.2f}",
                f"{seconds / single[run['frames']]:.2f}" if run["frames"] in single else "-",
                f"{first:.2f}",
                f"{peak / MB:.1f}",
                f"{run['bytes_per_pixel']:.0f}",
                f"{run['between_bytes'] / (run['width'] * run['height']):.0f}",
            ]
        )
    head = ["mode", "order", "batch", "frames", "seconds", "ratio", "first", "peak MB", "B/pixel", "caches"]
    notes = "B/pixel and caches (what is held between two chunks) are bytes per pixel of one frame."
    return "\n".join([aligned(head, rows, words=2), notes, footnote(runs)])
