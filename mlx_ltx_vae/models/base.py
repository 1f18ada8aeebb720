"""The protocols through which the rest of the package uses networks.

Any network that implements them can be planned, streamed, tiled and written to a file.
"""

from typing import Protocol

import mlx.core as mx

from ..errors import CheckpointError
from ..streaming.context import StreamContext
from ..streaming.stage import Stage
from .noise import LatentNoise
from .specs import NetworkSpec


def require_statistics(network: "Network") -> tuple[mx.array, mx.array]:
    """The latent mean and standard deviation of a network that is called.

    Raises:
        CheckpointError: if it is not part of a `VideoVAE`.
    """
    if network.statistics is None:
        raise CheckpointError("a network is called with the latent statistics of a VideoVAE, and this one has none.")
    return network.statistics


class Layer(Protocol):
    """A module of a network."""

    def stages(self, context: StreamContext) -> list[Stage]:
        """The layer's forward pass for a new stream: one stage per spec, with empty caches."""


class Network(Protocol):
    """An encoder or a decoder.

    Attributes:
        statistics: the latent mean and standard deviation, (C,) float32 each, once it is part of a `VideoVAE`.
    """

    statistics: tuple[mx.array, mx.array] | None

    @property
    def spec(self) -> NetworkSpec:
        """The layer specs, one per stage."""

    @property
    def dtype(self) -> mx.Dtype:
        """The compute dtype."""

    def stages(self, context: StreamContext) -> list[Stage]:
        """The forward pass of a new stream, with empty caches."""


class Decoder(Network, Protocol):
    """Decodes latents to pixels (B, T, H, W, 3), approximately in [-1, 1]."""

    def prepare(self, latents: mx.array, mean: mx.array, std: mx.array, noise: LatentNoise | None) -> mx.array:
        """The input of the first stage, for all latents or a part of them.

        Args:
            latents: (B, C, T, H, W), normalized.
            mean: (C,) float32, the latent mean.
            std: (C,) float32, the latent standard deviation.
            noise: of these latents; None if `spec.has_latent_noise` is false.

        Returns:
            (B, T, H, W, C) in `dtype`.
        """


class Encoder(Network, Protocol):
    """Encodes pixels (B, T, H, W, 3) in [-1, 1] to the means of unnormalized latents (B, T', H', W', C)."""
