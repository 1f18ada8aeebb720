"""What LTX-2.3's decoder would take on a Mac: `bench --plan-table`."""

from ..models.video_vae.config import GENERATIONS, parse_vae_config
from ..planning.memory import Backend
from ..planning.plan import DecodePlan, Machine, Mode, make_plan
from .case import latent_grid
from .tables import GB, markdown

_BUDGETS = (4, 8, 16, 32)
_SIZES = ((768, 512), (1280, 704), (1920, 1088), (3840, 2176))


def plan_table() -> str:
    """How the real LTX-2.3 decoder would be decoded on a Mac within several budgets, as a Markdown table.

    Planned, not measured: bfloat16, weights included, with the GPU's convolution scratch.
    """
    config = parse_vae_config(GENERATIONS["LTX-2.3"], "LTX-2.3")
    rows = []
    for width, height in _SIZES:
        for frames in (121, 257):
            shape = (1, config.latent_channels, *latent_grid(config, frames, height, width))
            options = {"machine": Machine(Backend.GPU, 2)}
            cells = []
            for budget in _BUDGETS:
                plan = make_plan(config, shape, memory_budget=budget * 10**9, must_fit=False, **options)
                cells.append(_planned(plan, budget))
            single = make_plan(config, shape, mode="single", **options)
            rows.append([f"{width}x{height}, {frames} frames", *cells, f"{single.peak_bytes / GB:.0f} GB"])
    return markdown(["video", *(f"{budget} GB" for budget in _BUDGETS), "single pass"], rows)


def _planned(plan: DecodePlan, budget: int) -> str:
    if plan.peak_bytes > budget * GB:
        return f"no: needs {plan.peak_bytes / GB:.1f} GB"
    way = f"by {plan.order.value}" if plan.mode is Mode.EXACT else "tiles"
    return f"{way}, {plan.peak_bytes / GB:.1f} GB"
