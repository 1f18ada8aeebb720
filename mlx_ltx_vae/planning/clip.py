"""One clip and the network that it goes through: what a plan is made for. No MLX."""

import math
from dataclasses import dataclass

from ..machine import FLOAT32_BYTES
from ..models.specs import NetworkSpec
from ..shapes import Grid, LatentShape, ScaleFactors, format_size
from ..tiling.layout import Tile
from .memory import cut

_DECODE_CHUNK = 1  # latent positions; one keeps the least between layers
_ENCODE_CHUNK = 8  # frames, or the next multiple of a latent frame's


@dataclass(frozen=True)
class Clip:
    """What goes through which network.

    Attributes:
        spec: the network.
        batch: items of the batch.
        grid: (T, H, W) of what enters.
        latent_shape: of the latents, which enter or leave.
        video: (F, H, W) of the video, which leaves or enters.
        is_decode: whether latents enter.
    """

    spec: NetworkSpec
    batch: int
    grid: Grid
    latent_shape: LatentShape
    video: Grid
    is_decode: bool

    @property
    def scale(self) -> ScaleFactors:
        """Pixels per latent cell."""
        return self.spec.scale

    def describe(self) -> str:
        """The video in words."""
        frames, height, width = self.video
        return f"{frames} frames of {format_size(width, height)}"

    def input_bytes(self, itemsize: int, chunk: int, frame_size: int | None = None) -> int:
        """What enters: all latents; or the frames of two pieces, as they come and converted.

        Args:
            itemsize: bytes of a number in the network's dtype.
            chunk: frames of a piece.
            frame_size: pixels of a frame, or of its crops; None for whole frames.
        """
        if self.is_decode:
            return math.prod(self.latent_shape) * (itemsize + FLOAT32_BYTES)
        frame = self.batch * self.spec.in_channels * (frame_size or math.prod(self.grid[1:]))
        return min(2 * chunk + 1, self.grid[0] + 1) * frame * (itemsize + FLOAT32_BYTES)

    @property
    def out_frame(self) -> int:
        """Elements of one frame of the result, of all items of a batch."""
        return self.batch * self.spec.out_channels * math.prod(self.spec.out_grid(self.grid)[1:])

    def default_chunk(self) -> int:
        """Positions that enter at once."""
        return _DECODE_CHUNK if self.is_decode else self.scale.time * max(1, _ENCODE_CHUNK // self.scale.time)

    def pieces(self, length: int, chunk: int) -> tuple[int, ...]:
        """The lengths of the pieces that enter; the first of an encode has one frame more."""
        extra = 0 if self.is_decode or length == 1 else 1
        return (min(length, chunk + extra), *cut(max(0, length - chunk - extra), chunk))

    def boxes(self, tile: Tile) -> tuple[Grid, Grid]:
        """(T, H, W) of what enters for a tile, and of what leaves."""
        latent, pixels = tile.latent_size, tile.output_size
        return (latent, pixels) if self.is_decode else (pixels, latent)
