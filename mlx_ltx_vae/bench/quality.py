"""How far two decodes of one clip are apart, and what tiles cost in quality: `bench --quality`."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx

from .. import demo
from ..tiling import preset
from .case import Case, Task
from .processes import Run
from .subject import load_case_latents, load_vae
from .tables import markdown

_ROUNDING = 2e-5  # as far as two orders of the same sums differ in float32
_SPAN = 2.0  # of pixels


@dataclass(frozen=True)
class Difference:
    """Between two decodes.

    Attributes:
        psnr: in dB, where values span `span`; None where they differ by no more than rounding.
        largest: of all differences.
    """

    psnr: float | None
    largest: float

    def __str__(self) -> str:
        return "identical" if self.psnr is None else f"{self.psnr:.1f} dB"


def difference(one: mx.array, other: mx.array, *, span: float = _SPAN, rounding: float = _ROUNDING) -> Difference:
    """Hold two arrays of one shape against each other.

    Args:
        one: the one.
        other: the other.
        span: from black to white.
        rounding: what counts as none.
    """
    error = mx.abs(one.astype(mx.float32) - other.astype(mx.float32))
    largest, mean = error.max().item(), mx.square(error).mean().item()
    return Difference(None if largest < rounding else 10 * math.log10(span**2 / mean), largest)


def quality_case() -> Case:
    """The demo clip in float32."""
    return Case(task=Task.QUALITY, model=str(demo.VAE), latents=str(demo.LATENTS), dtype="float32")


def quality(case: Case) -> dict[str, Any]:
    """A clip decoded in every way, held against the single pass.

    Returns:
        ways: for each its name, psnr and largest, see `Difference`.
    """
    vae = load_vae(case)
    latents = load_case_latents(case, vae)
    single = vae.decode(latents, vae.plan(latents.shape, mode="single"))
    ways: dict[str, dict[str, Any]] = {f"exact, by {order}": {"order": order} for order in ("time", "rows", "columns")}
    for name in ("default", "aggressive", "spatial_only"):
        ways[f"tiles, {name}"] = {"mode": "tiled", "tiling": preset(name, *single.shape[3:], single.shape[2])}
    measured = []
    for name, options in ways.items():
        found = difference(vae.decode(latents, vae.plan(latents.shape, **options)), single)
        measured.append({"way": name, **asdict(found)})
    return {"ways": measured}


def quality_table(runs: list[list[Run]]) -> str:
    """As a Markdown table."""
    ((run,),) = runs
    rows = []
    for way in run["ways"]:
        found = Difference(way["psnr"], way["largest"])
        rows.append([way["way"], str(found), f"{found.largest:.1g}"])
    return markdown(["", "PSNR against the single pass", "largest difference"], rows)
