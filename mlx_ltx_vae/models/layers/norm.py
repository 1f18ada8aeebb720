"""Normalization layers. All compute in float32, whatever the dtype of the input."""

import math

import mlx.core as mx
import mlx.nn as nn

from ...backend.device import is_cpu

PIXEL_NORM_EPS = 1e-8
_LANES = 16
_LAYER_NORM_EPS = 1e-6


class PixelNorm(nn.Module):
    """RMS norm over the channels of each position, without weights."""

    def __call__(self, x: mx.array) -> mx.array:
        """(..., C) -> (..., C)"""
        if not is_cpu():
            return mx.fast.rms_norm(x, None, PIXEL_NORM_EPS)
        # Summed in two steps, the first of which is vectorized: MLX's CPU backend reduces the last axis one element at
        # a time. A matrix product would be faster, but its rounding depends on the length of the piece.
        wide = x.astype(mx.float32)
        channels = x.shape[-1]
        squares = mx.square(wide).reshape(*x.shape[:-1], -1, math.gcd(channels, _LANES))
        mean = squares.sum(axis=-2).sum(axis=-1, keepdims=True) / channels
        return (wide * mx.rsqrt(mean + PIXEL_NORM_EPS)).astype(x.dtype)


class ShortcutNorm(nn.Module):
    """Layer norm over the channels of each position, before a shortcut that changes the number of channels.

    Checkpoint keys: `norm3.norm.weight`, `norm3.norm.bias`. The original code normalizes each position separately;
    a group norm with one group over the whole volume is a known mistake (error 0.4 to 0.8 of the output's magnitude).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=_LAYER_NORM_EPS)

    def __call__(self, x: mx.array) -> mx.array:
        """(..., C) -> (..., C)"""
        return self.norm(x)
