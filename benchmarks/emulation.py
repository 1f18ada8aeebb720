"""What Metal's convolutions cost in quality: whole decodes of the demo, emulated, compared with float32 on the CPU."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from mlx_ltx_vae import VideoVAE, demo
from mlx_ltx_vae.bench.case import Case, Decode, load_case_latents, load_vae
from mlx_ltx_vae.bench.processes import Job, Run
from mlx_ltx_vae.bench.tables import format_psnr, table
from mlx_ltx_vae.metrics import compare

from .metal_emulation import ConvOptions, EmulatedGPU, emulated

#: The demo VAE is narrow and its clip small. Winograd is taken as for a real video.
LIKE_REAL = EmulatedGPU(any_width=True, magnification=6)

_LATENT_FRAMES = 4
_EXACT, _SINGLE = "exact", "single"
_DIRECT = ConvOptions(winograd=False)
_HALF = ConvOptions(operands=mx.float16)


@dataclass(frozen=True)
class Way:
    """One way to decode on the emulated GPU.

    Attributes:
        dtype: of the network.
        reference: the name of the way to compare with; None for float32 on the CPU.
    """

    name: str
    dtype: str
    gpu: EmulatedGPU = LIKE_REAL
    mode: str = _EXACT
    reference: str | None = None


WAYS = (
    Way("bfloat16", "bfloat16"),
    Way("bfloat16, single pass", "bfloat16", mode=_SINGLE),
    Way("bfloat16, single pass against exact", "bfloat16", mode=_SINGLE, reference="bfloat16"),
    Way("bfloat16, no Winograd", "bfloat16", replace(LIKE_REAL, convolutions=_DIRECT)),
    Way("bfloat16, float16 operands", "bfloat16", replace(LIKE_REAL, convolutions=_HALF)),
    Way(
        "bfloat16, float16 operands but for upsampling",
        "bfloat16",
        replace(LIKE_REAL, convolutions=_HALF, upsampling=ConvOptions()),
    ),
    Way(
        "bfloat16, float16 operands but for upsampling without Winograd",
        "bfloat16",
        replace(LIKE_REAL, convolutions=_HALF, upsampling=_DIRECT),
    ),
    Way("float16", "float16"),
    Way("float32, float16 operands", "float32", replace(LIKE_REAL, convolutions=_HALF)),
    Way("float32, TF32 products", "float32", replace(LIKE_REAL, tf32=True)),
    Way("float32", "float32"),
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
    vae = load_vae(replace(case, dtype="float32"))
    latents = load_case_latents(case, vae)[:, :, :_LATENT_FRAMES]
    expected = _decode_pixels(vae, latents, _EXACT)
    references: dict[str | None, mx.array] = {None: expected}
    for way in ways:
        pixels, share = _decode(replace(case, dtype=way.dtype), way, latents)
        references[way.name] = pixels
        yield way, {**compare(pixels, references[way.reference]), "winograd": share}


def _decode(case: Case, way: Way, latents: mx.array) -> tuple[mx.array, float]:
    """The clipped pixels, and the share of 2D convolutions that took Winograd."""
    vae = load_vae(case)
    with emulated(way.gpu) as routes:
        pixels = _decode_pixels(vae, latents, way.mode)
    return pixels, routes["winograd"] / (routes["winograd"] + routes["direct"])


def _decode_pixels(vae: VideoVAE, latents: mx.array, mode: str) -> mx.array:
    """Pixels in float32, clipped to [-1, 1]."""
    pixels = Decode(vae, latents, vae.plan(latents.shape, mode=mode)).decode_pixels()
    pixels = mx.clip(pixels.astype(mx.float32), -1, 1)
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
        "Differences are of 2, from black to white. By Winograd: of all 2D convolutions, by a rule for pictures",
        f"{LIKE_REAL.magnification} times as large and networks of any width.",
        "An emulation: nothing was measured on a GPU.",
    ]
    return table(rows, notes)
