"""Normalizations. All of them compute in float32, whatever the dtype of their input."""

import math

import mlx.core as mx
import mlx.nn as nn

from ...device import is_cpu

PIXEL_NORM_EPS = 1e-8
_LANES = 16
_LAYER_NORM_EPS = 1e-6


class PixelNorm(nn.Module):
    """Divide by the root mean square over the channels of each position. No weights."""

    def __call__(self, x: mx.array) -> mx.array:
        """(..., C) -> (..., C)"""
        if not is_cpu():
            return mx.fast.rms_norm(x, None, PIXEL_NORM_EPS)
        # Summed in two steps, the first in vector instructions: MLX's CPU backend adds the last axis number by number.
        # A matrix product is faster still, but its rounding depends on the length of the piece.
        wide = x.astype(mx.float32)
        channels = x.shape[-1]
        squares = mx.square(wide).reshape(*x.shape[:-1], -1, math.gcd(channels, _LANES))
        mean = squares.sum(axis=-2).sum(axis=-1, keepdims=True) / channels
        return (wide * mx.rsqrt(mean + PIXEL_NORM_EPS)).astype(x.dtype)


class ShortcutNorm(nn.Module):
    """Layer norm over the channels of each position, in front of a shortcut that changes the width.

    Checkpoint keys: `norm3.norm.weight`, `norm3.norm.bias`. The original code normalizes each position by itself;
    reading it as one group over the whole volume is a known mistake (0.4 to 0.8 of the result's size).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=_LAYER_NORM_EPS)

    def __call__(self, x: mx.array) -> mx.array:
        """(..., C) -> (..., C)"""
        return self.norm(x)
