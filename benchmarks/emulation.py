"""What Metal's convolutions cost in quality: whole decodes of the demo, emulated, compared with float32 on the CPU."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from benchmarks.metal_emulation import ConvOptions, EmulatedGPU, emulated, load_decoder
from mlx_ltx_vae import VideoVAE, demo
from mlx_ltx_vae.backend.mlx_utils import DtypeName
from mlx_ltx_vae.bench.command import Job, Run, format_psnr, table
from mlx_ltx_vae.bench.decoding import Case, compare, load_case_latents, load_vae
from mlx_ltx_vae.checkpoint import Checkpoint, open_checkpoint, open_weights
from mlx_ltx_vae.models.convolution.rules import Formulation
from mlx_ltx_vae.tiling import SpatialTilingConfig, TilingConfig

#: The demo VAE is narrow and its clip small. Winograd is taken as for a real video.
LIKE_REAL = EmulatedGPU(any_width=True, magnification=6)
#: The same, with every convolution as one call of mx.conv3d.
CONV3D = replace(LIKE_REAL, formulation=Formulation.CONV3D)

_LATENT_FRAMES = 4
_DIRECT = ConvOptions(winograd=False)
_HALF = ConvOptions(operands=mx.float16)


@dataclass(frozen=True)
class Way:
    """One way to decode on the emulated GPU.

    Attributes:
        dtype: given when the network is loaded; None for weights that are stored in bfloat16.
        mode: a mode, or "rows".
        reference: the name of the way to compare with; None for float32 on the CPU.
    """

    name: str
    dtype: DtypeName | None
    gpu: EmulatedGPU = LIKE_REAL
    mode: str = "exact"
    reference: str | None = None


WAYS = (
    Way("bfloat16 as stored: the package's default", None),
    Way("the same, single pass", None, mode="single"),
    Way("the same, by rows", None, mode="rows"),
    Way("the same, in tiles, against tiles in float32", None, mode="tiled", reference="tiled in float32"),
    Way("--dtype bfloat16", "bfloat16"),
    Way("--dtype float16", "float16"),
    Way("--dtype float32", "float32"),
    Way("--dtype float32, TF32 products", "float32", replace(LIKE_REAL, tf32=True)),
    Way("conv3d: bfloat16", "bfloat16", CONV3D),
    Way("conv3d: bfloat16, single pass", "bfloat16", CONV3D, mode="single"),
    Way("conv3d: bfloat16, single pass against exact", "bfloat16", CONV3D, mode="single", reference="conv3d: bfloat16"),
    Way("conv3d: bfloat16, no Winograd", "bfloat16", replace(CONV3D, convolutions=_DIRECT)),
    Way("conv3d: bfloat16, float16 operands", "bfloat16", replace(CONV3D, convolutions=_HALF)),
    Way(
        "conv3d: bfloat16, float16 operands but for upsampling",
        "bfloat16",
        replace(CONV3D, convolutions=_HALF, upsampling=ConvOptions()),
    ),
    Way(
        "conv3d: bfloat16, float16 operands but for upsampling without Winograd",
        "bfloat16",
        replace(CONV3D, convolutions=_HALF, upsampling=_DIRECT),
    ),
    Way("conv3d: float16", "float16", CONV3D),
    Way("conv3d: float32, float16 operands", "float32", replace(CONV3D, convolutions=_HALF)),
    Way("conv3d: float32, TF32 products", "float32", replace(CONV3D, tf32=True)),
    Way("conv3d: float32", "float32", CONV3D),
)


def emulation_jobs() -> list[Job]:
    """The start of the demo clip, 25 frames of 384x256."""
    case = Case(model=str(demo.VAE), latents=str(demo.LATENTS), dtype="float32", frames=25, width=384, height=256)
    return [Job(emulation, case, once=True)]


def emulation(case: Case) -> dict[str, Any]:
    """Decode a case in every way.

    Returns:
        ways: for each its name; what `compare` returns for pixels clipped to [-1, 1]; winograd, the share of 2D
        convolutions that took Winograd.
    """
    return {"ways": [{"way": way.name, **measured} for way, measured in measure_ways(case, WAYS)]}


def measure_ways(case: Case, ways: tuple[Way, ...]) -> Iterator[tuple[Way, dict[str, Any]]]:
    """Decode a case in these ways; see `emulation`."""
    model = case.model or str(demo.VAE)
    vae = load_vae(replace(case, dtype="float32"))
    latents = load_case_latents(case, vae)[:, :, :_LATENT_FRAMES]
    expected = {
        None: _decode_pixels(vae, latents, "exact"),
        "tiled in float32": _decode_pixels(vae, latents, "tiled"),
    }
    references: dict[str | None, mx.array] = dict(expected)
    for way in ways:
        pixels, share = _decode(way, model, latents)
        references[way.name] = pixels
        yield way, {**compare(pixels, references[way.reference]), "winograd": share}


def _decode(way: Way, model: str, latents: mx.array) -> tuple[mx.array, float]:
    """The clipped pixels, and the share of 2D convolutions and matrix products that took Winograd."""
    with emulated(way.gpu) as routes:
        # Loaded inside, since weights are laid out for the device.
        checkpoint = open_checkpoint(model, encoder=False) if way.dtype else stored_in_bfloat16(model)
        vae = load_decoder(checkpoint, way.gpu.choose, way.dtype)
        routes.clear()  # of products that bound the weights
        pixels = _decode_pixels(vae, latents, way.mode)
    return pixels, routes["winograd"] / sum(routes.values())


def stored_in_bfloat16(model: str | Path) -> Checkpoint:
    """A checkpoint in float32, as one that is stored in bfloat16."""
    weights, metadata = cast(Any, mx.load(os.fspath(model), return_metadata=True))
    stored = {name: array if "statistics" in name else array.astype(mx.bfloat16) for name, array in weights.items()}
    return open_weights(stored, json.loads(metadata["config"]))


def _decode_pixels(vae: VideoVAE, latents: mx.array, mode: Any) -> mx.array:
    """Pixels in float32, clipped to [-1, 1]."""
    plan = vae.plan(
        latents.shape,
        mode="exact" if mode == "rows" else mode,
        order="rows" if mode == "rows" else "auto",
        tiling=TilingConfig(SpatialTilingConfig(192, 64)) if mode == "tiled" else None,
    )
    chunks = [chunk.pixels.astype(mx.float32) for chunk in vae.stream(latents, plan)]
    pixels = mx.clip(mx.concatenate(chunks, axis=2), -1, 1)
    mx.eval(pixels)
    return pixels


def emulation_table(results: list[list[Run]]) -> str:
    """A Markdown table."""
    ((run,),) = results
    rows = [
        {
            "emulated on the CPU": way["way"],
            "PSNR": format_psnr(way["psnr"]),
            "largest difference": f"{way['largest']:.2g}",
            "by Winograd": f"{way['winograd']:.0%}",
        }
        for way in run["ways"]
    ]
    notes = [
        f"Against float32 on the CPU, unless stated otherwise. {run['width']}x{run['height']}, {run['frames']} frames.",
        "Differences are of 2, from black to white. By Winograd: of 2D convolutions and products, by a rule for",
        f"pictures {LIKE_REAL.magnification} times as large and networks of any width.",
        "An emulation: nothing was measured on a GPU.",
    ]
    return table(rows, notes)
