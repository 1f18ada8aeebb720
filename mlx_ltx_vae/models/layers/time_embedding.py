"""The embedding of a decode timestep."""

import math

import mlx.core as mx
import mlx.nn as nn

_SINUSOID_CHANNELS = 256
_MAX_PERIOD = 10000.0


def sinusoidal_embedding(timesteps: mx.array) -> mx.array:
    """(B,) -> (B, 256) in float32, cosines first."""
    half = _SINUSOID_CHANNELS // 2
    frequencies = mx.exp(-math.log(_MAX_PERIOD) * mx.arange(half, dtype=mx.float32) / half)
    angles = timesteps.astype(mx.float32)[:, None] * frequencies[None]
    return mx.concatenate([mx.cos(angles), mx.sin(angles)], axis=-1)


class _TwoLinears(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(_SINUSOID_CHANNELS, channels)
        self.linear_2 = nn.Linear(channels, channels)

    def __call__(self, x: mx.array) -> mx.array:
        x = self.linear_1(x)
        return self.linear_2(x * mx.sigmoid(x))


class TimeEmbedder(nn.Module):
    """Embeds a scaled timestep in `channels` values: sinusoids, linear, SiLU, linear.

    Checkpoint keys: `timestep_embedder.linear_1`, `timestep_embedder.linear_2`.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.timestep_embedder = _TwoLinears(channels)

    def __call__(self, timesteps: mx.array) -> mx.array:
        """(B,) -> (B, channels) in float32"""
        return self.timestep_embedder(sinusoidal_embedding(timesteps)).astype(mx.float32)
