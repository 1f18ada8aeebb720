"""Planned peaks compared with measured ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import numpy as np

from benchmarks.loading import write_checkpoint
from benchmarks.measuring import Case, Decode, Job, Run, describe, encode, measure, table
from mlx_ltx_vae import VideoVAE, demo
from mlx_ltx_vae.networks.video_vae.family import CONV_VAE
from mlx_ltx_vae.units import MB


def validation_cases() -> list[Case]:
    """Decodes: generations, widths, sizes, lengths, modes, chunks and dtypes. Each takes seconds."""
    base = Case(base_width=16, dtype="float32", width=128, height=96, frames=41, order="time")
    ways: list[dict[str, Any]] = [
        {},
        {"chunk": 3},
        {"order": "rows"},
        {"order": "columns"},
        {"mode": "single", "order": "auto"},
    ]
    grid = [{**way, "generation": name} for name in CONV_VAE.published if name != "ltx-2.5" for way in ways]
    grid += [{**way, "dtype": dtype} for dtype in ("bfloat16", "float16") for way in ways[::2]]
    grid += [{"base_width": width, **way} for width in (8, 32) for way in (ways[0], ways[2], ways[4])]
    grid += [{"base_width": 8, "dtype": "bfloat16", **way} for way in (ways[0], ways[4])]
    grid += [{"base_width": 8, "dtype": dtype, "width": 384, "height": 256} for dtype in ("float32", "bfloat16")]
    grid += [{"frames": frames, "width": 256, "height": 160} for frames in (1, 9, 57, 121)]
    # Clips far shorter than the network's delay, in frames whose arrays are large beside the weights.
    large = [(8, 512, 512), (16, 512, 512), (16, 1024, 768), (32, 768, 512)]
    grid += [{"base_width": base, "width": width, "height": height, "frames": 9} for base, width, height in large]
    tiled: dict[str, Any] = {"mode": "tiled", "order": "auto", "width": 512, "height": 320, "base_width": 8}
    grid += [{**tiled, "tiles": name} for name in ("aggressive", "default")]
    grid += [{**tiled, "tiles": "spatial_only", "width": 704}, {**tiled, "tiles": "temporal_only", "frames": 81}]
    grid += [{**tiled, "tiles": "aggressive", "dtype": "bfloat16"}, {**tiled, "tiles": "default", "width": 608}]
    grid += [{**tiled, "tiles": name, "tile_batch_size": 2} for name in ("256:64", "aggressive")]
    # Six tiles side by side, for a clip that is shorter than the network's delay, and for a longer one.
    grid += [{**tiled, "tiles": "256:64", "width": 576, "base_width": 32, "dtype": "bfloat16", "frames": 25}]
    grid += [{**tiled, "tiles": "256:64", "width": 576, "frames": 81}]
    diffusion: dict[str, Any] = {"generation": "ltx-2.5-diffusion", "width": 288, "height": 224, "frames": 33}
    grid += [{**diffusion, **way, "dtype": dtype} for dtype in ("float32", "bfloat16") for way in ways]
    grid += [{**diffusion, "order": "columns", "base_width": 32}]
    demo_case = Case(model=str(demo.VAE), latents=str(demo.LATENTS), width=384, height=256, frames=73, order="time")
    demos = [replace(demo_case, dtype=dtype, order=order) for dtype in (None, "float32") for order in ("time", "rows")]
    return [replace(base, **change) for change in grid] + demos


def loop_cases() -> list[Case]:
    """Decodes in README's loop, whose variable holds a chunk of floats while the next one is computed."""
    base = Case(base_width=16, width=128, height=192, frames=97)
    grid: list[dict[str, Any]] = [{}, {"mode": "tiled"}, {"mode": "tiled", "tiles": "128:64"}, {"base_width": 8}]
    cases = [replace(base, dtype=dtype, **change) for dtype in ("float32", "bfloat16") for change in grid]
    return [*cases, Case(model=str(demo.VAE), latents=str(demo.LATENTS), width=384, height=256, frames=73)]


def encode_cases() -> list[Case]:
    """Encodes: generations and dtypes as a stream, in tiles cut in space, and in tiles cut in time."""
    base = Case(base_width=16, width=256, height=160, frames=81)
    ways: list[dict[str, Any]] = [
        {"mode": "stream"},
        {"mode": "tiled", "tiles": "128:64"},
        {"mode": "tiled", "tiles": "temporal_only"},
    ]
    networks = [("0.9.0", "float32"), ("0.9.1", "bfloat16"), ("ltx-2.3", "float32"), ("ltx-2.3", "bfloat16")]
    return [replace(base, generation=name, dtype=dtype, **way) for (name, dtype), way in product(networks, ways)]


@contextmanager
def readme_vae(case: Case) -> Iterator[VideoVAE]:
    """Load a VAE as in README, of a file with all its networks."""
    with TemporaryDirectory() as folder:
        path = case.model or f"{folder}/vae.safetensors"
        if case.model is None:
            write_checkpoint(case, Path(path), encoder=True)
            mx.clear_cache()
        yield VideoVAE.from_pretrained(path, dtype=case.dtype if case.model else None)


def stream(case: Case) -> dict[str, Any]:
    """Decode to levels."""
    with readme_vae(case) as vae:
        subject = Decode.from_case(case, vae)
        return {**measure(subject.run(), case), **describe(subject.plan)}


def readme_loop(case: Case) -> dict[str, Any]:
    """Decode as README does: the plan and the stream have no bit depth, and the loop's variable holds a chunk."""
    with readme_vae(case) as vae:
        subject = Decode.from_case(case, vae, bit_depth=None)

        def frames() -> Iterator[np.ndarray]:
            for chunk in vae.stream(subject.latents, subject.plan):
                yield chunk.to_uint8()

        return {**measure(frames(), case), **describe(subject.plan)}


def readme_decode(case: Case) -> dict[str, Any]:
    """Decode to one array."""
    with readme_vae(case) as vae:
        subject = Decode.from_case(case, vae, bit_depth=None, joined=True)
        kept = []

        def pixels() -> Iterator[np.ndarray]:
            kept.append(vae.decode(subject.latents, subject.plan))
            yield np.zeros(case.frames)

        return {**measure(pixels(), case), **describe(subject.plan)}


def readme_encode(case: Case) -> dict[str, Any]:
    """Encode one array of pixels."""
    with readme_vae(case) as vae:
        shape = (1, 3, case.frames, case.height, case.width)
        pixels = mx.random.uniform(-1, 1, shape, key=mx.random.key(0)).astype(vae.dtype)
        mx.eval(pixels)
        plan = vae.plan_encode(shape, joined=True)

        def latents() -> Iterator[np.ndarray]:
            yield np.array(vae.encode(pixels, plan)[0].astype(mx.float32)).swapaxes(0, 1)

        return {**measure(latents(), case), **describe(plan)}


def readme_frames(case: Case) -> dict[str, Any]:
    """Encode frames as they come, or a whole video in tiles."""
    with readme_vae(case) as vae:
        return encode(case, vae)


def validation_jobs() -> list[Job]:
    """One decode or encode of each case."""
    runs = [(stream, validation_cases()), (readme_loop, loop_cases()), (readme_frames, encode_cases())]
    runs += [(readme_decode, loop_cases()), (readme_encode, encode_cases()[::3])]
    return [Job(task, case, once=True) for task, cases in runs for case in cases]


def validation_table(results: list[list[Run]]) -> str:
    """Planned and measured peaks, weights included."""
    ratios = [run["planned_bytes"] / run["total_peak_bytes"] for (run,) in results]
    rows = [
        {
            **{name: run[name] or "" for name in ("task", "generation", "dtype", "mode", "order")},
            "tiles": (run["tiles"] or "default") if run["mode"] == "tiled" else "",
            "base": str(run["base_width"]),
            "size": f"{run['width']}x{run['height']}",
            "frames": str(run["frames"]),
            "chunk": str(run["chunk"] or ""),
            "measured MB": f"{run['total_peak_bytes'] / MB:.1f}",
            "planned MB": f"{run['planned_bytes'] / MB:.1f}",
            "ratio": f"{ratio:.2f}",
        }
        for (run,), ratio in zip(results, ratios, strict=True)
    ]
    note = f"{len(results)} cases; planned / measured between {min(ratios):.2f} and {max(ratios):.2f}."
    return table(rows, [note])
