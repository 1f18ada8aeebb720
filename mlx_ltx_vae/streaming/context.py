"""The context that all layers of a stream share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import mlx.core as mx

from ..shapes import Grid
from .axis import Axis

Origins = tuple[Grid, ...]


class Neighbors(Protocol):
    """The bands before and after this one along an axis, which run the same stream in lockstep."""

    @property
    def axis(self) -> Axis:
        """The axis that is cut into bands; never the axis of the stream."""

    def exchange(self, frames: mx.array, before: int, after: int) -> tuple[mx.array | None, mx.array | None]:
        """Send the edges of this band, `frames` (B, T, H, W, C), to its neighbors and receive theirs.

        Returns `before` positions of the band before it and `after` positions of the band after; None at a true edge of
        the picture, where the layer pads as it would without bands.
        """

    def gather(self, frames: mx.array) -> mx.array:
        """The whole axis: the `frames` of all bands, joined in order."""


@dataclass(frozen=True)
class StreamContext:
    """One stream through a network.

    Attributes:
        axis: the axis along which pieces arrive.
        timesteps: (B,) float32 in [0, 1], for networks that take one.
        noise_maps: the injected noise by the name of the layer that adds it: (H, W) for the whole picture, shared by
            all batch items, or (B, H, W).
        noise: for `draw_noise`, functions of `origins`, start and size, by the layer's name.
        neighbors: the other bands of the picture; None if this stream has the whole picture.
        origins: where the input begins in that of the whole picture, (T, H, W); for a batch of tiles, of each.
    """

    axis: Axis = Axis.TIME
    timesteps: mx.array | None = None
    noise_maps: Mapping[str, mx.array] = field(default_factory=dict)
    noise: Mapping[str, Callable[[Origins, Grid, Grid], mx.array]] = field(default_factory=dict)
    neighbors: Neighbors | None = None
    origins: Origins = ((0, 0, 0),)

    def draw_noise(self, layer: str, start: Grid, size: Grid) -> mx.array:
        """The noise (B, T, H, W, C) float32 of `size` (T, H, W) positions from `start` on, of a layer's output."""
        return self.noise[layer](self.origins, start, size)
