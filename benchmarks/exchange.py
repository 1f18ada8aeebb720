"""Data that ranks exchange, and work of each, if each has a band of a clip's rows. Pure arithmetic, no MLX.

Every rank holds all weights and streams its own rows of every activation along time. A layer whose window has more than
one row needs rows of the neighboring bands: their edges, for each frame of its input once. A layer that sees whole
frames needs the keys and values of all bands. Finished rows are gathered. Nothing else crosses a border.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mlx_ltx_vae.models.specs import NetworkSpec
from mlx_ltx_vae.planning.clip import Clip
from mlx_ltx_vae.planning.memory import StreamRun, layer_pieces
from mlx_ltx_vae.shapes import Axis, Grid

_ROWS = Axis.HEIGHT


class BorderBytes(NamedTuple):
    """Bytes that cross the border between two bands.

    Attributes:
        down: from the upper band to the lower one: the rows before a window's own.
        up: from the lower band to the upper one: the rows after it.
    """

    down: int
    up: int


@dataclass(frozen=True)
class Exchange:
    """Data that one rank sends for a whole clip.

    Attributes:
        halo_bytes: edge rows given to `send`.
        halo_messages: calls of `send`: one per layer, step along time and neighbor.
        gathered_bytes: keys and values given to `all_gather`, in layers that see whole frames.
        gathers: calls of `all_gather` for them.
        output_bytes: finished rows given to `all_gather`.
        output_gathers: calls of `all_gather` for them: one per piece of the output.
    """

    ranks: int
    latent_frames: int
    halo_bytes: int
    halo_messages: int
    gathered_bytes: int
    gathers: int
    output_bytes: int
    output_gathers: int

    @property
    def given_bytes(self) -> int:
        """Bytes of the arrays given to `send` and `all_gather`."""
        return self.halo_bytes + self.gathered_bytes + self.output_bytes

    @property
    def sent_bytes(self) -> int:
        """Bytes that leave the rank: in a ring, each rank also forwards what the others gather, except one."""
        return self.halo_bytes + (self.ranks - 1) * (self.gathered_bytes + self.output_bytes)

    @property
    def messages(self) -> int:
        """Messages that leave the rank: a gather in a ring takes one per other rank."""
        return self.halo_messages + (self.ranks - 1) * (self.gathers + self.output_gathers)

    @property
    def bytes_per_latent_frame(self) -> float:
        """Mean of `sent_bytes` over the clip."""
        return self.sent_bytes / self.latent_frames

    @property
    def messages_per_latent_frame(self) -> float:
        """Mean of `messages` over the clip."""
        return self.messages / self.latent_frames


def halo_bytes(spec: NetworkSpec, grid: Grid, batch: int, itemsize: int) -> BorderBytes:
    """Bytes of edge rows that cross one border between two bands while a clip runs through the network.

    Each layer exchanges the rows of its window for each frame of its input once: `width * in_channels` elements per
    row. The number of rows in the bands makes no difference.

    Args:
        grid: (T, H, W) of the network's input.
        itemsize: bytes per element of the network's dtype.
    """
    down = up = 0
    for layer, (frames, _, width) in spec.walk(grid):
        row = batch * frames * width * layer.in_channels * itemsize
        before, after = layer.halo(_ROWS)
        down, up = down + before * row, up + after * row
    return BorderBytes(down, up)


def make_exchange(clip: Clip, run: StreamRun, bands: Sequence[int], rank: int) -> Exchange:
    """Data that one rank sends for a clip.

    Ranks can only gather arrays of equal shape, so a smaller band counts as many rows as the largest.

    Args:
        run: the stream along time.
        bands: latent rows of each rank, from top to bottom.
        rank: the index in `bands`.
    """
    spec, ranks = clip.spec, len(bands)
    border = halo_bytes(spec, clip.grid, clip.batch, run.machine.itemsize)
    has_above, has_below = rank > 0, rank < ranks - 1
    band = band_grid(clip, max(bands))
    *taken, output = layer_pieces(spec, clip.grid, run)
    messages = gathered = gathers = 0
    for (layer, extents), pieces in zip(spec.walk(band), taken, strict=True):
        before, after = layer.halo(_ROWS)
        messages += len(pieces) * ((has_below and before > 0) + (has_above and after > 0))
        if _ROWS in layer.unbounded and ranks > 1:
            gathered += 2 * clip.batch * math.prod(extents) * layer.in_channels * run.machine.itemsize
            gathers += len(pieces)
    finished = clip.batch * math.prod(spec.out_grid(band)) * spec.out_channels  # levels of a byte
    return Exchange(
        ranks=ranks,
        latent_frames=clip.latent_shape.frames,
        halo_bytes=has_below * border.down + has_above * border.up,
        halo_messages=messages,
        gathered_bytes=gathered,
        gathers=gathers,
        output_bytes=finished if ranks > 1 else 0,
        output_gathers=len(output) if ranks > 1 else 0,
    )


def band_grid(clip: Clip, rows: int) -> Grid:
    """(T, H, W) of the network's input for a band of latent rows."""
    frames, _, width = clip.grid
    return frames, rows * (1 if clip.is_decode else clip.scale.height), width
