"""Self-attention within each frame (the 16x16x4 variant)."""

from functools import partial

import mlx.core as mx
import mlx.nn as nn

from ...streaming.context import Neighbors, Stage, StreamContext, pointwise
from ..specs import FrameAttentionSpec

_NORM_EPS = 1e-12


class FrameAttention(nn.Module):
    """Single-head self-attention over the positions of each frame; the configured head size is ignored.

    Checkpoint keys: `norm.gamma` (C,), `to_qkv`, `proj` (1x1 convolutions, stored as matrices here).
    """

    def __init__(self, spec: FrameAttentionSpec) -> None:
        super().__init__()
        channels = spec.in_channels
        self._spec = spec
        self.norm = nn.Module()
        self.norm.gamma = mx.ones((channels,))
        self.to_qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)

    def __call__(self, x: mx.array, neighbors: Neighbors | None = None) -> mx.array:
        """(B, T, H, W, C) -> (B, T, H, W, C); the positions of a band attend to those of all bands."""
        batch, time, _, _, channels = x.shape
        queries, keys, values = mx.split(self.to_qkv(self._normalize(x)), 3, axis=-1)
        if neighbors is not None:
            keys, values = mx.split(neighbors.gather(mx.concatenate([keys, values], axis=-1)), 2, axis=-1)
        tokens = (part.reshape(batch * time, 1, -1, channels) for part in (queries, keys, values))
        return x + self.proj(self._attend(*tokens).reshape(x.shape))

    def _attend(self, queries: mx.array, keys: mx.array, values: mx.array) -> mx.array:
        """Single-head attention, (N, 1, L, C), in blocks of queries.

        MLX fuses no attention of so many channels, so all scores of a block are in memory. Each block is evaluated
        before the next one, since otherwise their memory would be taken together.
        """
        attend = partial(mx.fast.scaled_dot_product_attention, scale=keys.shape[-1] ** -0.5)
        size, length = self._spec.query_block(len(keys), keys.shape[2]), queries.shape[2]
        if length <= size:
            return attend(queries, keys, values)
        parts = []
        for start in range(0, length, size):
            parts.append(attend(queries[:, :, start : start + size], keys, values))
            mx.eval(parts)
        return mx.concatenate(parts, axis=2)

    def _normalize(self, x: mx.array) -> mx.array:
        """`x / |x| * sqrt(C) * gamma` over the channels of each position."""
        wide = x.astype(mx.float32)
        length = mx.maximum(mx.linalg.norm(wide, axis=-1, keepdims=True), _NORM_EPS)
        return (wide / length * x.shape[-1] ** 0.5 * self.norm.gamma.astype(mx.float32)).astype(x.dtype)

    def stages(self, context: StreamContext) -> list[Stage]:
        return [pointwise(partial(self, neighbors=context.neighbors))]
