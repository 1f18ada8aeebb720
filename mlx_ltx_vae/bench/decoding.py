"""One timed decode or encode, in this process."""

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import mlx.core as mx
import numpy as np

from ..metrics import compare
from ..planning.plan import Plan
from ..vae import VideoVAE
from .case import Case, Decode, count_weight_bytes, load_vae
from .sampling import sampled

#: Seconds since the start, bytes in use, and the largest number of bytes in use so far.
Sample = tuple[float, int, int]

_PART_FRAMES = 8


def decode(case: Case, **options: Any) -> dict[str, Any]:
    """Decode to uint8 frames: order, planned_bytes, weights_bytes, and what `measure_frames` returns for `options`."""
    subject = Decode.from_case(case)
    return {**_planned(subject.plan, subject.vae), **measure_frames(subject.run(), **options)}


def measure_frames(
    chunks: Iterator[np.ndarray], *, sampled: bool = False, save: str | None = None, reference: str | None = None
) -> dict[str, Any]:
    """Run a decode and measure it.

    Args:
        chunks: yields frames (n, H, W, 3) uint8; the decode starts with the first `next`.
        sampled: whether to sample the memory.
        save: a file to save the frames to, as `.npy`.
        reference: such a file, with frames to compare these with.

    Returns:
        frames, seconds, first_frame_seconds; between_bytes, held between two chunks: the caches; peak_bytes, without
        what was in use before; bytes_per_pixel, the peak per pixel of one frame; total_peak_bytes; with `sampled` also
        samples, a list of `Sample`; with `reference` what `compare` returns.
    """
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    arrivals, between, clip = [], [], []
    sampling: AbstractContextManager[list[Sample] | None] = sample_memory() if sampled else nullcontext()
    with sampling as samples:
        start = time.perf_counter()
        for frames in chunks:
            arrivals.append((time.perf_counter() - start, len(frames)))
            pixels = frames.shape[1] * frames.shape[2]
            if save or reference:
                clip.append(frames.copy())
            del frames
            between.append(mx.get_active_memory() - held)
        seconds = time.perf_counter() - start
    measured = {
        "frames": sum(count for _, count in arrivals),
        "seconds": seconds,
        "first_frame_seconds": arrivals[0][0],
        # In the middle of the clip, where no chunk is between two layers.
        "between_bytes": min(between[len(between) // 3 : 2 * len(between) // 3 + 1]),
        **_measure_peak(held, pixels),
    }
    if samples is not None:
        measured["samples"] = samples
    if save:
        np.save(save, np.concatenate(clip))
    if reference:
        measured |= compare(mx.array(np.concatenate(clip)), mx.array(np.load(reference)), span=255)
    return measured


def sample_memory() -> AbstractContextManager[list[Sample]]:
    """Sample MLX's memory every 20 ms while the block runs, and once at its end."""
    start = time.perf_counter()
    return sampled(lambda: (time.perf_counter() - start, mx.get_active_memory(), mx.get_peak_memory()))


def encode(case: Case) -> dict[str, Any]:
    """Encode uint8 noise: as a stream (mode "stream"), or the whole video in tiles (mode "tiled").

    Returns:
        latent_frames, and as for a decode order, seconds and all bytes but between_bytes.
    """
    vae = load_vae(case, "encoder")
    vae.config.scale.latent_grid((case.frames, case.height, case.width))  # raises for frames that would be left out
    is_tiled = case.mode == "tiled"
    plan = vae.plan_encode(
        (case.frames, case.height, case.width, 3),
        memory_budget=case.memory_budget,
        mode="tiled" if is_tiled else "exact",
        tiling=case.make_tiling() if is_tiled else None,
        tile_batch_size=case.tile_batch_size,
    )
    clip = np.concatenate(list(_noise(case))) if is_tiled else None
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    start = time.perf_counter()
    parts: Iterable[mx.array] = vae.encode_stream(_noise(case), plan) if clip is None else [vae.encode(clip, plan)]
    latent_frames = 0
    for part in parts:
        mx.eval(part)
        latent_frames += part.shape[2]
    return {
        "seconds": time.perf_counter() - start,
        "latent_frames": latent_frames,
        **_planned(plan, vae),
        **_measure_peak(held, case.width * case.height),
    }


def _planned(plan: Plan, vae: VideoVAE) -> dict[str, Any]:
    """The order, the planned peak without the buffer cache, which MLX's peak does not count, and the weights."""
    return {
        "order": plan.order.value,
        "planned_bytes": plan.memory.active,
        "weights_bytes": count_weight_bytes(vae),
    }


def _measure_peak(held: int, pixels: int) -> dict[str, Any]:
    """MLX's peak since it was reset, with and without the bytes `held` before, and per pixel of one frame."""
    total = mx.get_peak_memory()
    return {"peak_bytes": total - held, "bytes_per_pixel": (total - held) / pixels, "total_peak_bytes": total}


def _noise(case: Case) -> Iterator[np.ndarray]:
    """Frames (n, H, W, 3) uint8 of noise."""
    random = np.random.default_rng(0)
    for start in range(0, case.frames, _PART_FRAMES):
        frames = min(_PART_FRAMES, case.frames - start)
        yield random.integers(0, 256, (frames, case.height, case.width, 3), dtype=np.uint8)
