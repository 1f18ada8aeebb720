"""What the rest of the package may ask of a network.

Any network that answers to these protocols can be planned, streamed, tiled and written to a file.
"""

from typing import Protocol

import mlx.core as mx

from ..streaming.context import StreamContext
from ..streaming.stage import Stage
from .noise import Draws
from .specs import NetworkSpec


class Layer(Protocol):
    """A module of a network."""

    def stages(self, context: StreamContext) -> list[Stage]:
        """Its forward pass in one new stream, one stage per spec, with nothing cached yet."""


class Network(Protocol):
    """An encoder or a decoder."""

    @property
    def spec(self) -> NetworkSpec:
        """What it consists of: one layer spec per stage."""

    @property
    def dtype(self) -> mx.Dtype:
        """What it computes in."""

    def stages(self, context: StreamContext) -> list[Stage]:
        """The forward pass of one new stream, with nothing cached yet."""


class Decoder(Network, Protocol):
    """Latents to pixels (B, T, H, W, 3) in about [-1, 1]."""

    def prepare(self, latents: mx.array, mean: mx.array, std: mx.array, noise: Draws) -> mx.array:
        """What the first stage takes.

        Args:
            latents: (B, C, T, H, W), normalized.
            mean: (C,) float32, of the latents.
            std: (C,) float32, of the latents.
            noise: drawn as `spec` says.

        Returns:
            (B, T, H, W, C) in `dtype`.
        """


class Encoder(Network, Protocol):
    """Pixels (B, T, H, W, 3) in [-1, 1] to means of latents (B, T', H', W', C), before they are normalized."""
