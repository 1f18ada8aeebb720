"""Our modes, and tiles as MLX ports run them, on the same weights and latents."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np

from benchmarks.measuring import (
    Case,
    Job,
    Run,
    count_weight_bytes,
    decode,
    load_case_latents,
    load_vae,
    measure,
    timing_table,
)
from mlx_ltx_vae.pipeline.frames import FrameChunk
from mlx_ltx_vae.tiling import TilingConfig, decode_with_tiling


def against_jobs(case: Case, reference: str) -> list[Job]:
    """Decodes by the single pass, whose frames are saved in the file `reference`, and by others, compared with it."""
    ways = ((decode, "exact"), (decode, "tiled"), (decode_as_ports, "ports"))
    compared_jobs = [Job(measure, replace(case, mode=mode), {"reference": reference}) for measure, mode in ways]
    return [Job(decode, replace(case, mode="single"), {"save": reference}), *compared_jobs]


def decode_as_ports(case: Case, **options: str) -> dict[str, Any]:
    """Decode in tiles as MLX ports run them: one after the other, each in a single pass, blended on all three axes.

    Args:
        options: of `measure`.

    Returns:
        weights_bytes and what `measure` returns, without first_frame_seconds and between_bytes: all frames come at the
        end.
    """
    vae = load_vae(case)
    latents = load_case_latents(case, vae)

    def decode_tile(tile: mx.array, **_: Any) -> mx.array:
        return vae.decode(tile, vae.plan(tile.shape, mode="single"))

    def frames() -> Iterator[np.ndarray]:
        levels: list[np.ndarray] = []

        def keep(pixels: mx.array, start: int) -> None:
            chunk = FrameChunk(start, pixels.transpose(0, 2, 3, 4, 1))
            levels.append(chunk.to_uint8().copy())  # outside MLX's memory

        tiling, scale = case.make_tiling() or TilingConfig.default(), vae.config.scale
        decode_with_tiling(
            decode_tile, latents, tiling, scale.height, scale.time, on_frames_ready=keep, keep_output=False
        )
        yield from levels

    measured = measure(frames(), case, **options)
    del measured["first_frame_seconds"], measured["between_bytes"]
    return {"weights_bytes": count_weight_bytes(vae), **measured}


def against_table(results: list[list[Run]]) -> str:
    """Medians; times as ratios to the single pass, frames compared with the single pass."""
    notes = ["largest, PSNR: of the 8-bit levels, compared with the single pass."]
    if not results[0][0]["model"]:
        notes.append("Random weights make no picture, so these say nothing about a video's quality.")
    notes.append("ports: each tile in a single pass, one after the other, as MLX ports do.")
    return timing_table(results, reference="single", notes=notes)
