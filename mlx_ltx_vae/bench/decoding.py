"""One timed decode or encode, in this process."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

from ..metrics import compare
from .case import Case
from .subject import Decode, count_weight_bytes, load_vae

#: Seconds since the start, bytes in use, and the largest number of bytes in use so far.
Sample = tuple[float, int, int]

_SAMPLE_SECONDS = 0.02
_PART_FRAMES = 8


def decode(
    case: Case, *, sampled: bool = False, save: str | None = None, reference: str | None = None
) -> dict[str, Any]:
    """Decode to uint8 frames.

    Args:
        case: what to decode, and how.
        sampled, save, reference: see `measure_frames`.

    Returns:
        order, weights_bytes, planned_bytes, and what `measure_frames` returns.
    """
    subject = Decode.from_case(case)
    return {
        "order": subject.plan.order.value,
        "planned_bytes": subject.plan.memory.active,  # without the buffer cache, which MLX's peak does not count
        "weights_bytes": count_weight_bytes(subject.vae),
        **measure_frames(subject.run(), sampled=sampled, save=save, reference=reference),
    }


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
        what was in use before; bytes_per_pixel, the peak per pixel of one frame; total_peak_bytes. With `sampled` also
        samples, a list of `Sample`; with `reference` what `compare` returns.
    """
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    arrivals, between, clip = [], [], []
    samples: list[Sample] = []
    with ExitStack() as stack:
        if sampled:
            samples = stack.enter_context(sample_memory())
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
    if sampled:
        measured["samples"] = samples
    if save:
        np.save(save, np.concatenate(clip))
    if reference:
        measured |= compare(mx.array(np.concatenate(clip)), mx.array(np.load(reference)), span=255)
    return measured


@contextmanager
def sample_memory() -> Iterator[list[Sample]]:
    """Sample MLX's memory from a thread every 20 ms while the block runs, and once at its end."""
    samples: list[Sample] = []
    done = threading.Event()
    start = time.perf_counter()

    def sample() -> None:
        is_last = False
        while not is_last:
            is_last = done.wait(_SAMPLE_SECONDS)
            samples.append((time.perf_counter() - start, mx.get_active_memory(), mx.get_peak_memory()))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


def encode(case: Case) -> dict[str, Any]:
    """Encode uint8 noise: as a stream (mode "stream"), or the whole video in tiles (mode "tiled").

    Returns:
        seconds, weights_bytes, peak_bytes, bytes_per_pixel and total_peak_bytes as for a decode, and latent_frames.
    """
    vae = load_vae(case, "encoder")
    vae.config.scale.latent_grid((case.frames, case.height, case.width))  # raises for frames that would be left out
    clip = np.concatenate(list(_noise(case))) if case.mode == "tiled" else None
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    start = time.perf_counter()
    if clip is not None:
        latents = vae.encode(clip, tiling=case.make_tiling(), tile_batch_size=case.tile_batch_size)
        mx.eval(latents)
        latent_frames = latents.shape[2]
    else:
        latent_frames = 0
        for part in vae.encode_stream(_noise(case)):
            mx.eval(part)
            latent_frames += part.shape[2]
    return {
        "seconds": time.perf_counter() - start,
        "latent_frames": latent_frames,
        "weights_bytes": count_weight_bytes(vae),
        **_measure_peak(held, case.width * case.height),
    }


def _measure_peak(held: int, pixels: int) -> dict[str, Any]:
    """MLX's peak since it was reset, with and without the bytes `held` before, and per pixel of one frame."""
    total = mx.get_peak_memory()
    peak = total - held
    return {"peak_bytes": peak, "bytes_per_pixel": peak / pixels, "total_peak_bytes": total}


def _noise(case: Case) -> Iterator[np.ndarray]:
    """Frames (n, H, W, 3) uint8 of noise."""
    random = np.random.default_rng(0)
    for start in range(0, case.frames, _PART_FRAMES):
        frames = min(_PART_FRAMES, case.frames - start)
        yield random.integers(0, 256, (frames, case.height, case.width, 3), dtype=np.uint8)
