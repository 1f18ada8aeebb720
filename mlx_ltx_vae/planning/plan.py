"""Plans: everything that is decided before the first latent or frame is touched. No MLX."""

import enum
from dataclasses import dataclass
from typing import Any

from ..machine import Machine
from ..shapes import Grid, LatentShape, format_size
from ..streaming.axis import Axis
from ..tiling.config import TilingConfig
from ..tiling.intervals import Interval
from ..tiling.layout import BlendAxis, Tile, TileLayout
from ..units import GB, MB
from .memory import Memory, is_cache_tight

TileBox = tuple[Interval, Interval, Interval]


class Mode(enum.Enum):
    """How a clip goes through the network."""

    EXACT = "exact"  # streamed piece by piece; the single pass's result
    SINGLE = "single"  # one pass per layer over the whole clip
    TILED = "tiled"  # in overlapping tiles that are blended; another result


class Order(enum.Enum):
    """The axis along which a clip is streamed."""

    TIME = "time"
    ROWS = "rows"
    COLUMNS = "columns"

    @property
    def axis(self) -> Axis:
        """As layers know it."""
        return {Order.TIME: Axis.TIME, Order.ROWS: Axis.HEIGHT, Order.COLUMNS: Axis.WIDTH}[self]


_NOUNS = {Order.TIME: "frame", Order.ROWS: "row", Order.COLUMNS: "column"}


@dataclass(frozen=True)
class Plan:
    """How one clip goes through a network. The pipeline carries it out and decides nothing.

    Attributes:
        mode: exact, single or tiled.
        order: the axis of the stream.
        latent_shape: (B, C, F', H', W'), of what enters a decoder or leaves an encoder.
        num_frames: frames of the video.
        height: rows of the video, in pixels.
        width: columns of the video, in pixels.
        chunk: positions that enter at once: latent frames, rows or columns of a decode, frames of an encode.
        step: positions that a layer takes at once where activations are widest; 0 for a single pass.
        steps: the same for every layer.
        prefetch: steps that are under way beyond the one that is waited for.
        lookahead: positions of the input along time that must have come before the first result is final.
        tiling: the tiles, in mode tiled.
        layout: where they lie.
        tile_batch_size: tiles of equal shape that run together, at most.
        calls: runs of the network: 1, or the number of batches of tiles.
        redundant_work: input positions that are computed more than once, as a share of all there are.
        memory: what the run holds at its peak, estimated.
    """

    mode: Mode
    order: Order
    latent_shape: LatentShape
    num_frames: int
    height: int
    width: int
    chunk: int
    step: int
    steps: tuple[int, ...]
    prefetch: int
    lookahead: int
    tiling: TilingConfig | None
    layout: TileLayout | None
    tile_batch_size: int
    calls: int
    redundant_work: float
    memory: Memory
    machine: Machine

    @property
    def frame_size(self) -> tuple[int, int]:
        """(width, height) in pixels, as video writers take it."""
        return self.width, self.height

    @property
    def video_grid(self) -> Grid:
        """(F, H, W) of the video."""
        return self.num_frames, self.height, self.width

    @property
    def peak_bytes(self) -> int:
        """What the run takes at its peak, weights and MLX's buffer cache included: an estimate from above."""
        return self.memory.total

    @property
    def is_cache_tight(self) -> bool:
        """Whether the budget limits MLX's buffer cache so far that it costs time."""
        return is_cache_tight(self.memory, self.machine.backend)

    def input_box(self, tile: Tile) -> TileBox:
        """The part of the input that a tile takes, as intervals of time, height and width."""
        return tile.latent

    def blend_axes(self, layout: TileLayout) -> tuple[BlendAxis, BlendAxis, BlendAxis]:
        """Time, height and width of what tiles are blended to."""
        return layout.decoded()

    def as_dict(self) -> dict[str, Any]:
        """The plan in JSON's terms. Bytes are `peak_bytes` = `active_bytes` + `buffer_cache_bytes`."""
        return {
            "mode": self.mode.value,
            "order": self.order.value,
            "latent_shape": list(self.latent_shape),
            "chunk": self.chunk,
            "step": self.step,
            "prefetch": self.prefetch,
            "frames": self.num_frames,
            "height": self.height,
            "width": self.width,
            "lookahead": self.lookahead,
            "tile_batch_size": self.tile_batch_size,
            "calls": self.calls,
            "redundant_work": self.redundant_work,
            "active_bytes": self.memory.active,
            "buffer_cache_bytes": self.memory.buffer_cache,
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True)
class DecodePlan(Plan):
    """How latents become a video. `print(plan)` explains it."""

    def __str__(self) -> str:
        noun = f"latent {_NOUNS[self.order]}"
        return _describe(self, noun, _first_frame(self))


@dataclass(frozen=True)
class EncodePlan(Plan):
    """How a video becomes latents. `print(plan)` explains it."""

    def input_box(self, tile: Tile) -> TileBox:
        """See `Plan`: an encode takes pixels."""
        return tile.pixels

    def blend_axes(self, layout: TileLayout) -> tuple[BlendAxis, BlendAxis, BlendAxis]:
        """See `Plan`: an encode blends latents."""
        return layout.encoded()

    def __str__(self) -> str:
        first = f"latent frame after {min(self.lookahead, self.num_frames)} frame"
        return _describe(self, "frame", first)


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
    if plan.mode is Mode.SINGLE:
        return "single: one pass per layer over the whole clip; memory grows with its length"
    pieces = f"1 {unit}" if plan.chunk == 1 else f"{plan.chunk} {unit}s"
    if plan.mode is Mode.EXACT:
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
    if plan.order is Order.TIME:
        frames = plan.latent_shape.frames
        return f"frame after {min(plan.lookahead, frames)} of {frames} latent frames"
    return f"frame at the end: frames wait on disk until their last {plan.order.value} are done"
