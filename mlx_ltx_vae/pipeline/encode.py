"""Executes an encode plan: frames in, normalized latents out."""

from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx

from ..errors import LatentsError
from ..mlx_utils import to_bool
from ..models.base import Encoder
from ..planning.plan import EncodePlan
from .run import Run
from .sources import Source


@dataclass(frozen=True)
class EncodeRun:
    """The execution of one encode.

    Attributes:
        source: the frames.
        mean: (C,) float32, the latent mean.
        std: (C,) float32, the latent standard deviation.
    """

    encoder: Encoder
    plan: EncodePlan
    source: Source
    mean: mx.array
    std: mx.array

    def latents(self) -> Iterator[mx.array]:
        """Yield normalized latents (B, C, n, H', W') in the encoder's dtype, evaluated, in order along time.

        Raises:
            LatentsError: at the first frames that the encoder cannot take, or if the latents are not finite.
        """
        for means in Run(self.encoder, self.plan, self.source).results():
            yield self._normalize(means)

    def _normalize(self, means: mx.array) -> mx.array:
        """Convert means (B, T, H, W, C) to normalized latents (B, C, T, H, W)."""
        latents = (means.astype(mx.float32) - self.mean) / self.std
        latents = latents.astype(self.encoder.dtype).transpose(0, 4, 1, 2, 3)
        if not to_bool(mx.isfinite(latents).all()):
            raise LatentsError("the encoded latents are not finite: the network overflowed; try dtype float32.")
        return latents
