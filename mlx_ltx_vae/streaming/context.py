"""The context that all layers of a stream share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import mlx.core as mx

from ..shapes import Grid
from .axis import Axis


class Neighbors(Protocol):
    """The bands before and after this one along an axis, which run the same stream in lockstep."""

    @property
    def axis(self) -> Axis:
        """The axis that is cut into bands; never the axis of the stream."""

    def exchange(self, frames: mx.array, before: int, after: int) -> tuple[mx.array | None, mx.array | None]:
        """Send this band's edges to its neighbors and receive theirs.

        Args:
            frames: this band, (B, T, H, W, C).
            before: positions to receive from the band before.
            after: positions to receive from the band after.

        Returns:
            The positions before `frames` and those after; None at a true edge of the picture, where the layer pads as
            it would without bands.
        """

    def gather(self, frames: mx.array) -> mx.array:
        """The whole axis: the `frames` of all bands, joined in order."""


class PositionNoise(Protocol):
    """Noise that each position of a layer's output has for itself, of which any part can be drawn."""

    def __call__(self, start: Grid, size: Grid) -> mx.array:
        """The noise (B, T, H, W, C) float32 of `size` (T, H, W) positions from `start` on, of the stream's output."""

    def at(self, origins: Sequence[Grid]) -> "PositionNoise":
        """The same for parts of the picture, which begin at these positions of the network's input."""


@dataclass(frozen=True)
class StreamContext:
    """One stream through a network.

    Attributes:
        axis: the axis along which pieces arrive.
        timesteps: (B,) float32 in [0, 1], for networks that take one.
        noise_maps: the injected noise by the name of the layer that adds it: (H, W) for the whole picture, shared by
            all batch items, or (B, H, W).
        noise: the noise of each position of a layer's output, by the layer's name.
        neighbors: the other bands of the picture; None if this stream has the whole picture.
        origins: where the input begins in that of the whole picture, (T, H, W); for a batch of tiles, of each.
    """

    axis: Axis = Axis.TIME
    timesteps: mx.array | None = None
    noise_maps: Mapping[str, mx.array] = field(default_factory=dict)
    noise: Mapping[str, PositionNoise] = field(default_factory=dict)
    neighbors: Neighbors | None = None
    origins: tuple[Grid, ...] = ((0, 0, 0),)

    def at(self, origins: tuple[Grid, ...], **changes: Any) -> "StreamContext":
        """The context of a part of the picture, or of a batch of parts, with other changes."""
        noise = {name: each.at(origins) for name, each in self.noise.items()}
        return replace(self, origins=origins, noise=noise, **changes)
