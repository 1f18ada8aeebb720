"""Plans: everything that is decided before the first latent or frame is touched. No MLX."""

import enum
from dataclasses import dataclass
from typing import Any

from ..shapes import Grid, LatentShape
from ..streaming.axis import Axis
from ..tiling.config import TilingConfig
from ..tiling.intervals import Interval
from ..tiling.layout import BlendAxis, Tile, TileLayout
from .memory import Machine, Memory, is_cache_tight
from .report import describe_decode, describe_encode

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
        machine: where it is to run.
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
        return describe_decode(self)


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
        return describe_encode(self)
