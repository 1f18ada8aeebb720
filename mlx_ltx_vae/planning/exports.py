"""The plan of an export: a decode or an encode by time, one latent frame at a time, of any length."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ..backend.machine import Machine
from ..errors import PlanError
from ..networks.specs import LONG_CLIP, NetworkSpec
from ..options import PlanOptions
from ..shapes import Grid, ScaleFactors, Size, format_size
from .plan import Plan
from .planner import plan_decode, plan_encode


def plan_export(
    spec: NetworkSpec,
    scale: ScaleFactors,
    machine: Machine,
    size: Size,
    memory_budget: str | int | None,
    *,
    encoder: bool = False,
) -> Plan:
    """Plan decodes or encodes of videos of a size (width, height), with a long clip in the place of all lengths.

    Without a budget, the plan does not depend on the memory of this machine.

    Raises:
        LatentsError: if no latents have this size.
        PlanError: if the decoder cannot be exported, or not within the budget; it then names the largest size.
    """
    if spec.variant is not None:
        raise PlanError(
            "this decoder denoises, with attention over neighboring frames, and is not exported; export LTX-2.5's conv "
            "decoder, which decodes the same latents."
        )
    if memory_budget is None:
        machine = replace(machine, available=None, memory=None)
    chunk = scale.time if encoder else 1
    options = PlanOptions(mode="exact", order="time", chunk=chunk, memory_budget=memory_budget)

    def plan(grid: Grid) -> Plan:
        _, rows, columns = grid
        if not encoder:
            return plan_decode(spec, (1, spec.in_channels, LONG_CLIP, rows, columns), machine, options)
        frames = 1 + scale.time * LONG_CLIP
        return plan_encode(spec, (frames, rows * scale.height, columns * scale.width, 3), machine, options)

    grid = scale.latent_grid((1, size[1], size[0]))
    try:
        return plan(grid)
    except PlanError as error:
        largest = None if error.least_bytes is None else _plan_largest(plan, grid)
        if largest is None:
            raise
        advice = f"the largest size of this shape that works by time is {format_size(*largest.frame_size)}"
        raise PlanError(f"{str(error).rstrip('.')}; {advice}.", least_bytes=error.least_bytes) from None


def _plan_largest(plan: Callable[[Grid], Plan], grid: Grid) -> Plan | None:
    """Return the plan of the largest smaller grid of about the same shape that has one, or `None`."""
    longest = max(grid)
    for cells in range(longest - 1, 0, -1):
        rows, columns = (max(1, side * cells // longest) for side in grid[1:])
        with suppress(PlanError):
            return plan((1, rows, columns))
    return None
