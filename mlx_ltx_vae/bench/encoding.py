"""Encoding, as frames come and in tiles: `bench --encode`."""

import time
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np

from .case import Case, latent_grid
from .decoding import memory_since, weights_bytes
from .processes import Run
from .subject import load_vae
from .tables import MB, aligned, footnote, median

_PIECE_FRAMES = 8


def encode(case: Case) -> dict[str, Any]:
    """Encode uint8 noise: as it comes (mode "stream"), or the whole clip in tiles (mode "tiled").

    Returns:
        frames, seconds, weights_bytes, peak_bytes, bytes_per_pixel, total_peak_bytes as for a decode, and
        latent_frames.
    """
    vae = load_vae(case)
    latent_grid(vae.config, case.frames, case.height, case.width)  # refuses what cannot be encoded in full
    if case.mode == "tiled":
        clip = np.concatenate(list(_noise(case)))
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    start = time.perf_counter()
    if case.mode == "tiled":
        latent_frames = vae.encode(clip, tiling=case.tiling, tile_batch_size=case.tile_batch_size).shape[2]
    else:
        latent_frames = sum(np.asarray(part.astype(mx.float32)).shape[2] for part in vae.encode_stream(_noise(case)))
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "latent_frames": latent_frames,
        "weights_bytes": weights_bytes(vae.encoder),
        **memory_since(case, held),
    }


def _noise(case: Case) -> Iterator[np.ndarray]:
    """Frames (n, H, W, 3) uint8 of noise."""
    random = np.random.default_rng(0)
    for start in range(0, case.frames, _PIECE_FRAMES):
        frames = min(_PIECE_FRAMES, case.frames - start)
        yield random.integers(0, 256, (frames, case.height, case.width, 3), dtype=np.uint8)


def encode_table(runs: list[list[Run]]) -> str:
    """Medians per case; times as a ratio to the stream of as many frames, so that batches of tiles can be compared."""
    stream = {results[0]["frames"]: median(results, "seconds") for results in runs if results[0]["mode"] == "stream"}
    rows = []
    for results in runs:
        run = results[0]
        seconds, peak = median(results, "seconds"), max(run["peak_bytes"] for run in results)
        tiles = (run["tiles"], str(run["tile_batch_size"])) if run["mode"] == "tiled" else ("", "")
        rows.append(
            [
                run["mode"],
                *tiles,
                str(run["frames"]),
                f"{seconds:.2f}",
                f"{seconds / stream[run['frames']]:.2f}",
                f"{peak / MB:.1f}",
                f"{run['bytes_per_pixel']:.0f}",
            ]
        )
    head = ["mode", "tiles", "batch", "frames", "seconds", "ratio", "peak MB", "B/pixel"]
    notes = ["Metal may have a faster convolution for a batch of one than for more."] if _has_batches(runs) else []
    return "\n".join([aligned(head, rows, words=2), *notes, footnote(runs)])


def _has_batches(runs: list[list[Run]]) -> bool:
    return any(results[0]["tile_batch_size"] > 1 for results in runs)
