"""One run, in a process that should be fresh."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from ..config import GENERATIONS, parse_vae_config
from ..decoder import Decoder
from ..encoder import Encoder
from ..vae import DTYPES, VideoVAE
from .case import GENERATION_NAMES, Case, Task, latent_grid

_PIECE_FRAMES = 8


def measure(case: Case) -> dict[str, Any]:
    """Run a case in this process.

    Returns:
        The case, and what was measured; see the functions below.
    """
    return {**asdict(case), **{Task.DECODE: decode, Task.ENCODE: encode}[case.task](case)}


def load_vae(case: Case) -> VideoVAE:
    """The half that a case needs, of its checkpoint or with random weights."""
    halves = {"encoder": case.task is Task.ENCODE, "decoder": case.task is not Task.ENCODE}
    if case.model:
        return VideoVAE.from_pretrained(case.model, dtype=case.dtype, **halves)
    widths = {"decoder_base_channels": case.base_width, "encoder_base_channels": case.base_width}
    name = GENERATION_NAMES[case.generation]
    config = parse_vae_config({**GENERATIONS[name], **widths}, name)
    mx.random.seed(0)
    make, half = (Encoder, config.encoder) if halves["encoder"] else (Decoder, config.decoder)
    network = make(half, config.patch_size)
    network.set_dtype(DTYPES[case.dtype or "float32"])
    mx.eval(network.parameters())
    ones = mx.ones((config.latent_channels,))
    encoder, decoder = (network, None) if halves["encoder"] else (None, network)
    return VideoVAE(config, encoder, decoder, 0 * ones, ones)


def decode(case: Case) -> dict[str, Any]:
    """Decode random latents to uint8 frames.

    Returns:
        frames, order, seconds, first_frame_seconds, weights_bytes, peak_bytes (without what there was before: weights
        and latents), bytes_per_pixel (of that peak, per pixel of one frame), between_bytes (held between two chunks:
        the caches), total_peak_bytes, planned_bytes.
    """
    vae = load_vae(case)
    shape = (1, vae.config.latent_channels, *latent_grid(vae.config, case.frames, case.height, case.width))
    latents = mx.random.normal(shape, key=mx.random.key(0))
    mx.eval(latents)
    options = {"mode": case.mode, "order": case.order, "chunk": case.chunk, "tiling": case.tiling}
    plan = vae.plan(shape, memory_budget=case.memory_budget, tile_batch_size=case.tile_batch_size, **options)
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    start = time.perf_counter()
    first = None
    frames = 0
    between = []
    for chunk in vae.stream(latents, plan, bit_depth=8):
        frames += len(chunk.to_uint8())
        first = first or time.perf_counter() - start
        del chunk
        between.append(mx.get_active_memory() - held)
    seconds = time.perf_counter() - start
    return {
        "frames": frames,
        "order": plan.order.value,
        "seconds": seconds,
        "first_frame_seconds": first,
        # In the middle of the clip, when nothing waits between two layers.
        "between_bytes": min(between[len(between) // 3 : 2 * len(between) // 3 + 1]),
        "planned_bytes": plan.peak_bytes,
        **_memory(case, vae.decoder, held),
    }


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
    return {"seconds": seconds, "latent_frames": latent_frames, **_memory(case, vae.encoder, held)}


def _noise(case: Case) -> Iterator[np.ndarray]:
    """Frames (n, H, W, 3) uint8 of noise."""
    random = np.random.default_rng(0)
    for start in range(0, case.frames, _PIECE_FRAMES):
        frames = min(_PIECE_FRAMES, case.frames - start)
        yield random.integers(0, 256, (frames, case.height, case.width, 3), dtype=np.uint8)


def _memory(case: Case, network: nn.Module, held: int) -> dict[str, Any]:
    """What is known of memory after a run, where `held` bytes were in use before it."""
    peak = mx.get_peak_memory()
    return {
        "weights_bytes": sum(array.nbytes for _, array in tree_flatten(network.parameters())),
        "peak_bytes": peak - held,
        "bytes_per_pixel": (peak - held) / (case.width * case.height),
        "total_peak_bytes": peak,
    }
