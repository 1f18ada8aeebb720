"""Pixels as channels: patches of a picture, whose channels are ordered (c, width, height)."""

import mlx.core as mx


def patchify(x: mx.array, size: int) -> mx.array:
    """(B, T, H*size, W*size, c) -> (B, T, H, W, c*size*size)."""
    batch, time, height, width, channels = x.shape
    x = x.reshape(batch, time, height // size, size, width // size, size, channels)
    x = x.transpose(0, 1, 2, 4, 6, 5, 3)
    return x.reshape(batch, time, height // size, width // size, channels * size**2)


def unpatchify(x: mx.array, size: int) -> mx.array:
    """(B, T, H, W, c*size*size) -> (B, T, H*size, W*size, c)."""
    batch, time, height, width, channels = x.shape
    x = x.reshape(batch, time, height, width, channels // size**2, size, size).transpose(0, 1, 2, 6, 3, 5, 4)
    return x.reshape(batch, time, height * size, width * size, -1)
