"""An encode being carried out: frames in, normalized latents out."""

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
    """One encode, ready to run.

    Attributes:
        encoder: the network.
        plan: how.
        source: the frames.
        mean: (C,) float32, of the latents.
        std: (C,) float32, of the latents.
    """

    encoder: Encoder
    plan: EncodePlan
    source: Source
    mean: mx.array
    std: mx.array

    def latents(self) -> Iterator[mx.array]:
        """Normalized latents (B, C, n, H', W') in the encoder's dtype, evaluated, in order along time.

        Raises:
            LatentsError: for frames that the encoder cannot take, when it comes to them, and for latents that are not
                finite.
        """
        for means in Run(self.encoder, self.plan, self.source).results():
            yield self._normalize(means)

    def _normalize(self, means: mx.array) -> mx.array:
        """Means (B, T, H, W, C) to normalized latents (B, C, T, H, W)."""
        latents = (means.astype(mx.float32) - self.mean) / self.std
        latents = latents.astype(self.encoder.dtype).transpose(0, 4, 1, 2, 3)
        if not to_bool(mx.isfinite(latents).all()):
            raise LatentsError("the encoded latents are not finite: the network overflowed; try dtype float32.")
        return latents
