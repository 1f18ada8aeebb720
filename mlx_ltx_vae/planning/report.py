"""A plan in words. No MLX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..shapes import format_size
from ..units import GB, MB

if TYPE_CHECKING:
    from .memory import Memory
    from .plan import Plan

_NOUNS = {"time": "frame", "rows": "row", "columns": "column"}


def describe_decode(plan: Plan) -> str:
    """Several lines, each a word and what it stands for."""
    return _describe(plan, f"latent {_NOUNS[plan.order.value]}", f"{_first_frame(plan)}")


def describe_encode(plan: Plan) -> str:
    """Several lines, each a word and what it stands for."""
    return _describe(plan, "frame", f"latent frame after {min(plan.lookahead, plan.num_frames)} frame")


def _describe(plan: Plan, unit: str, first: str) -> str:
    batch, channels, frames, height, width = plan.latent_shape
    videos = f"{batch} x " if batch > 1 else ""
    lines = [
        f"latents  {videos}{channels} channels, {frames} x {height} x {width} (frames x rows x columns)",
        f"video    {videos}{plan.num_frames} frames of {format_size(*plan.frame_size)}",
        f"mode     {_mode(plan, unit)}",
    ]
    if plan.tiling is not None:
        lines.append(f"tiles    {_tiles(plan)}")
    lines += [
        f"calls    {plan.calls}, redundant work {100 * plan.redundant_work:.0f} %",
        f"peak     {_memory(plan.memory)}",
    ]
    if plan.is_cache_tight:
        lines.append("         the budget limits MLX's buffer cache: slower, since buffers are allocated anew")
    return "\n".join([*lines, f"first    {first}"])


def _mode(plan: Plan, unit: str) -> str:
    if plan.mode.value == "single":
        return "single: one pass per layer over the whole clip; memory grows with its length"
    pieces = f"1 {unit}" if plan.chunk == 1 else f"{plan.chunk} {unit}s"
    if plan.mode.value == "exact":
        return f"exact: the single pass's result, streamed by {plan.order.value}, {pieces} at a time"
    if plan.layout is not None and len(plan.layout.time.latent) == 1:
        return f"tiled: blended in space, so not exact; exact in time, each tile streamed {pieces} at a time"
    return "tiled: blended in space and time, so not exact"


def _tiles(plan: Plan) -> str:
    tiling = plan.tiling
    if tiling is None:
        return ""
    height, width = tiling.height_config or tiling.spatial_config, tiling.width_config or tiling.spatial_config
    sizes = [
        f"{config.tile_size_in_pixels} px of {what}, overlapping by {config.tile_overlap_in_pixels}"
        for what, config in (("height", height), ("width", width))
        if config is not None
    ]
    time = tiling.temporal_config
    if time is not None:
        sizes.append(f"{time.tile_size_in_frames} frames, overlapping by {time.tile_overlap_in_frames}")
    if plan.tile_batch_size > 1:
        sizes.append(f"up to {plan.tile_batch_size} at a time")
    return "; ".join(sizes) or "one"


def _memory(memory: Memory) -> str:
    """The total and its parts, in one unit and rounded so that they add up."""
    unit, name, digits = (GB, "GB", 2) if memory.total >= GB else (MB, "MB", 1)
    parts = {
        "weights": memory.weights,
        "inputs": memory.inputs,
        "caches": memory.caches,
        "work": memory.work,
        "MLX's buffer cache": memory.buffer_cache,
    }
    scale = 10**digits
    rounded = {part: round(size / unit * scale) for part, size in parts.items()}
    shown = ", ".join(f"{part} {size / scale:.{digits}f}" for part, size in rounded.items() if parts[part])
    return f"{sum(rounded.values()) / scale:.{digits}f} {name} ({shown})"


def _first_frame(plan: Plan) -> str:
    if plan.order.value == "time":
        frames = plan.latent_shape.frames
        return f"frame after {min(plan.lookahead, frames)} of {frames} latent frames"
    return f"frame at the end: frames wait on disk until their last {plan.order.value} are done"
