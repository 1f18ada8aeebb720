"""Some frames of a clip, and the latent frames that they depend on. Pure arithmetic, no MLX."""

import math
from collections.abc import Sequence
from fractions import Fraction
from numbers import Integral
from typing import NamedTuple

from ..errors import PlanError, quote
from ..models.specs import NetworkSpec
from ..shapes import LatentShape
from ..streaming.axis import Axis, Border
from ..tiling.layout import Interval
from .receptive_field import needed


class Excerpt(NamedTuple):
    """Frames of a video that are decoded without the others, as they are in the whole decode.

    Attributes:
        frames: the frames, of `num_frames`.
        latents: the latent frames that are decoded for them, of `num_latents`.
        skipped: the frames that these make before the first of `frames`.
    """

    frames: Interval
    num_frames: int
    latents: Interval
    num_latents: int
    skipped: int

    @property
    def kept(self) -> Interval:
        """The frames, counted from the first that the latent frames make."""
        return Interval(self.skipped, self.skipped + self.frames.length)

    def __str__(self) -> str:
        frames, latents = self.frames, self.latents
        return (
            f"{frames.start} to {frames.end - 1} of {self.num_frames}, from the latent frames {latents.start} to "
            f"{latents.end - 1} of {self.num_latents}"
        )


def make_excerpt(spec: NetworkSpec, shape: LatentShape, num_frames: int, frames: tuple[int, int]) -> Excerpt:
    """The excerpt of the frames from one to before another; a `PlanError` if the video does not have them."""
    units, whole = ("frames", "video") if spec.sound is None else ("samples", "sound")
    if not isinstance(frames, Sequence) or len(frames) != 2 or not all(isinstance(each, Integral) for each in frames):
        raise PlanError(f"{units} are the first and one more than the last, such as (24, 48), not {quote(frames)}.")
    first, end = frames
    if not 0 <= first < end <= num_frames:
        raise PlanError(
            f"{units} {first}:{end} are not in the {whole}, which has {num_frames}; give the first, and one more than "
            f"the last, within 0:{num_frames}."
        )
    start = _first_latent(spec, first)
    skipped = first - start * spec.scale.time
    count = min(shape.frames - start, needed(spec, Axis.TIME, skipped + end - first))
    if spec.unbounded_layer(Axis.TIME) is not None:
        count = shape.frames
    return Excerpt(Interval(first, end), num_frames, Interval(start, start + count), shape.frames, skipped)


def _first_latent(spec: NetworkSpec, frame: int) -> int:
    """The last latent frame at which a decode may begin without a difference in a frame."""
    affected = 0  # leading positions that depend on what comes before the beginning
    rate, step = Fraction(1), 1  # positions per latent frame, and latent frames at which all strides begin anew
    for layer in spec.layers:
        window = layer.window(Axis.TIME)
        if Axis.TIME in layer.unbounded or layer.down[0] != window.stride:
            return 0
        behind = window.behind
        if window.border is Border.SHIFT:  # at the end of the clip it moves back
            behind = max(behind, window.kernel - 1)
        step = math.lcm(step, (rate / window.stride).denominator)
        affected = max(0, math.ceil((affected + behind) / window.stride) * layer.up[0] - layer.trim)
        rate = rate * layer.up[0] / layer.down[0]
    return max(0, math.floor((frame - affected) / spec.scale.time) // step * step)
