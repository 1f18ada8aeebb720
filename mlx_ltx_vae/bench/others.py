"""Decodes by other code than ours, of the same weights and latents, where it is installed."""

import importlib.util
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np

from ..models.video_vae.config import BlockKind, VAEConfig
from ..tiling import decode_with_tiling
from ..vae import VideoVAE
from .case import Case
from .decoding import measure_decode, weights_bytes
from .subject import load_case_latents, load_vae, to_levels
from .with_diffusers import load_diffusers
from .with_mlx_video import load_mlx_video

#: Takes latents (1, C, F', H', W'), normalised; gives frames (n, H, W, 3) uint8.
Decoder = Callable[[mx.array], Iterator[np.ndarray]]

#: What else can be measured, and the modules that have to be there.
OTHERS: dict[str, tuple[str, ...]] = {
    "ports": (),
    "diffusers": ("torch", "diffusers"),
    # A package of another kind has the same name, without this part.
    "mlx_video": ("mlx_video.models.ltx_2.video_vae.decoder",),
}


def is_installed(name: str) -> bool:
    """Whether what a key of `OTHERS` needs is there."""
    try:
        return all(importlib.util.find_spec(module) is not None for module in OTHERS[name])
    except ImportError:
        return False


def decode_otherwise(case: Case) -> dict[str, Any]:
    """Decode with the code that `case.mode` names.

    Returns:
        frames, seconds, weights_bytes, peak_bytes and total_peak_bytes as for a decode, and memory: whose peak that
        is, "MLX" or "resident", where the code is not MLX's. Then peak_bytes is by how much the largest that the
        process has been has grown during the decode. With `case.sampled` also samples, where they are MLX's.
        Nothing but not_measured, which says why, for a VAE that the code has another class for, or none.
    """
    vae = load_vae(case)
    if case.mode != "ports" and not _is_of_ltx_2(vae.config):
        return {"not_measured": "for LTX-2 and later only"}
    latents = load_case_latents(case, vae)
    own = {"memory": "MLX", "weights_bytes": weights_bytes(vae.decoder)}
    make = {"ports": _load_ports, "diffusers": load_diffusers, "mlx_video": load_mlx_video}[case.mode]
    decoder = make(vae, case)
    del vae
    resident = _largest_resident()
    # All frames are handed over at the end, so when the first came is not known.
    measured = measure_decode(case, decoder(latents))
    kept = {name: measured[name] for name in ("frames", "seconds", "peak_bytes", "total_peak_bytes")}
    if case.mode == "diffusers":
        peak = _largest_resident()
        return {**own, **kept, "memory": "resident", "peak_bytes": peak - resident, "total_peak_bytes": peak}
    return {**own, **kept, **({"samples": measured["samples"]} if case.sampled else {})}


def _is_of_ltx_2(config: VAEConfig) -> bool:
    """Whether a decoder is made of what those of LTX-2 and later are made of, which others' classes know."""
    kinds = {block.kind for block in config.decoder.blocks}
    return not config.timestep_conditioning and kinds == {BlockKind.RES_STACK, BlockKind.SHUFFLE}


def _load_ports(vae: VideoVAE, case: Case) -> Decoder:
    """Tiles as MLX ports run them: one after the other, each in a single pass, blended on all three axes."""
    tiling = replace(case, mode="tiled").tiling
    scale = vae.config.scale

    def decode_tile(latents: mx.array, **_: Any) -> mx.array:
        return vae.decode(latents, vae.plan(latents.shape, mode="single"))

    def decode(latents: mx.array) -> Iterator[np.ndarray]:
        frames = []
        decode_with_tiling(
            decode_tile,
            latents,
            tiling,
            scale.height,
            scale.time,
            on_frames_ready=lambda pixels, _: frames.append(to_levels(pixels).copy()),  # not in MLX's memory
        )
        yield from frames

    return decode


def _largest_resident() -> int:
    """Bytes of memory that this process has had at most so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
