"""How the real LTX-2.3 decoder would be run on a Mac."""

from benchmarks.measuring import table
from mlx_ltx_vae.backend.machine import Backend, Machine
from mlx_ltx_vae.errors import PlanError
from mlx_ltx_vae.networks.video_vae.family import CONV_VAE
from mlx_ltx_vae.options import ModeName, PlanOptions
from mlx_ltx_vae.planning.plan import DecodePlan, Mode
from mlx_ltx_vae.planning.planner import plan_decode
from mlx_ltx_vae.units import GB

_BUDGETS = (4, 8, 16, 32)
#: Width, height and number of frames.
_VIDEOS = (
    (768, 512, 121),
    (1280, 704, 121),
    (1280, 704, 257),
    (1920, 1088, 121),
    (1920, 1088, 257),
    (3840, 2176, 121),
)


def plan_table() -> str:
    """Planned decodes within several memory budgets, and the single pass, as a Markdown table.

    Planned, not measured: bfloat16, with the weights, the GPU's scratch memory and MLX's buffer cache.
    """
    rows = []
    for width, height, frames in _VIDEOS:
        budgets = {
            f"within {budget} GB": _describe(_plan(width, height, frames, budget=budget), budget) for budget in _BUDGETS
        }
        single = _describe_single(width, height, frames)
        rows.append({"video": f"{width}x{height}, {frames} frames", **budgets, "in a single pass": single})
    return table(rows)


def _plan(width: int, height: int, frames: int, *, mode: ModeName = "auto", budget: int | None = None) -> DecodePlan:
    config = CONV_VAE.published["ltx-2.3"](128)
    return plan_decode(
        CONV_VAE.spec(config, "decoder"),
        (1, config.latent_channels, *config.scale.latent_grid((frames, height, width))),
        Machine(Backend.METAL, itemsize=2, available=None if budget is None else 2 * budget * int(GB)),
        PlanOptions(mode=mode),
    )


def _describe(plan: DecodePlan, budget: int) -> str:
    if plan.peak_bytes > budget * GB:
        return f"no: needs {plan.memory.active / GB:.1f} GB"
    way = f"by {plan.order.value}" if plan.mode is Mode.EXACT else "tiles"
    return f"{way}, {plan.peak_bytes / GB:.1f} GB"


def _describe_single(width: int, height: int, frames: int) -> str:
    try:
        plan = _plan(width, height, frames, mode="single")
        return f"{plan.peak_bytes / GB:.0f} GB"
    except PlanError:
        return "not possible"
