"""Normalisations. All of them compute in float32, whatever the dtype of what they are given."""

import math

import mlx.core as mx
import mlx.nn as nn

from .backend import on_cpu

PIXEL_NORM_EPS = 1e-8
_LANES = 16
_GROUP_NORM_EPS = 1e-6
_LAYER_NORM_EPS = 1e-6


class PixelNorm(nn.Module):
    """Divide by the root mean square over the channels of each position. No weights."""

    def __call__(self, x: mx.array) -> mx.array:
        """(..., C) -> (..., C)"""
        if not on_cpu():
            return mx.fast.rms_norm(x, None, PIXEL_NORM_EPS)
        # Summed in two steps, the first of them in vector instructions: MLX's CPU backend adds up the last axis number
        # by number. A matrix product is quicker still, but rounds as the length of a piece has it.
        wide = x.astype(mx.float32)
        channels = x.shape[-1]
        squares = mx.square(wide).reshape(*x.shape[:-1], -1, math.gcd(channels, _LANES))
        mean = squares.sum(axis=-2).sum(axis=-1, keepdims=True) / channels
        return (wide * mx.rsqrt(mean + PIXEL_NORM_EPS)).astype(x.dtype)


class ClipGroupNorm(nn.GroupNorm):
    """Group norm over groups of channels and the whole clip: not local, so a clip with it cannot be streamed.

    Checkpoint keys: `<name>.weight`, `<name>.bias`.
    """

    def __init__(self, num_groups: int, channels: int) -> None:
        super().__init__(num_groups, channels, eps=_GROUP_NORM_EPS, pytorch_compatible=True)

    def __call__(self, x: mx.array) -> mx.array:
        """(B, T, H, W, C) -> the same"""
        return super().__call__(x.astype(mx.float32)).astype(x.dtype)


class ShortcutNorm(nn.Module):
    """Layer norm over the channels of each position, in front of a shortcut that changes the width.

    Checkpoint keys: `norm3.norm.weight`, `norm3.norm.bias`. The original code takes each position by itself; reading
    it as one group over the whole volume is a known mistake (0.4 to 0.8 of the result's size).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=_LAYER_NORM_EPS)

    def __call__(self, x: mx.array) -> mx.array:
        """(..., C) -> (..., C)"""
        return self.norm(x)


def make_norm(channels: int, groups: int | None) -> nn.Module:
    """The norm in front of a convolution: group norm where `groups` is given, else pixel norm."""
    return PixelNorm() if groups is None else ClipGroupNorm(groups, channels)
