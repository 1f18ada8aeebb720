"""Frames scaled down on the device, before they leave it."""

from functools import cache

import mlx.core as mx
import numpy as np

from ..frame_format import FrameFormat, FrameStep
from ..shapes import fit_within


@cache  # so that outputs with the same frames are equal, and the frames are computed once
def scaling_step(max_size: int) -> FrameStep:
    """Return the step that scales frames down until no side is longer than `max_size` pixels."""

    def apply(frames: mx.array, _: FrameFormat) -> mx.array:
        count, height, width, channels = frames.shape
        new_width, new_height = fit_within((width, height), max_size)
        if (new_width, new_height) == (width, height):
            return frames
        rows, columns = mx.array(scaling_weights(height, new_height)), mx.array(scaling_weights(width, new_width))
        scaled = (rows @ frames.reshape(count, height, width * channels)).reshape(count, new_height, width, channels)
        return (columns @ scaled.reshape(-1, width, channels)).reshape(count, new_height, new_width, channels)

    return FrameStep(apply, resize=lambda size: fit_within(size, max_size))


def scaling_weights(length: int, new_length: int) -> np.ndarray:
    """Return the weights (new_length, length), float32, of positions in each scaled one: a triangle of two new ones."""
    ratio = length / new_length
    centers = (np.arange(new_length) + 0.5) * ratio
    distances = np.abs(np.arange(length) + 0.5 - centers[:, None]) / ratio
    weights = np.maximum(0, 1 - distances)
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)
