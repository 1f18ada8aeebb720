"""A step between decoder and file that a test adds to the table: brightens frames towards the bottom right."""

import mlx.core as mx

from mlx_ltx_vae.commands.options import StepOption
from mlx_ltx_vae.frame_format import FrameFormat, FrameStep

PIXEL_BYTES = 4 * 3 * 4  # of its two sums and two ramps, though each of these is one row or column


def make_ramp(text: str) -> FrameStep:
    strength = float(text)

    def brighten(frames: mx.array, target: FrameFormat) -> mx.array:
        _, height, width, _ = frames.shape
        down, across = mx.arange(height) / height, mx.arange(width) / width
        return frames + strength * down[:, None, None] + strength * across[:, None]

    return FrameStep(brighten, PIXEL_BYTES)


RAMP = StepOption("--ramp", "toy_step:make_ramp", "STRENGTH", "brighten frames towards the bottom right")
