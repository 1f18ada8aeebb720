"""What outputs of a network depend on: its receptive field, its lookahead, and the latents of an excerpt. No MLX."""

import math
from collections.abc import Sequence
from fractions import Fraction
from numbers import Integral
from typing import NamedTuple

from ..errors import PlanError, quote
from ..models.specs import NetworkSpec
from ..shapes import Grid, LatentShape
from ..streaming.axis import Axis, Border
from ..tiling.layout import Interval


class ReceptiveField(NamedTuple):
    """The latent frames and the cells to each side on which an output depends beyond its own.

    `cells` is None if it depends on whole frames.
    """

    frames_before: float
    frames_after: float
    cells: float | None


def receptive_field(spec: NetworkSpec) -> ReceptiveField:
    """The receptive field of a decoded pixel.

    It is exact: a latent frame affects its own video frames, those up to `frames_after` latent frames earlier and those
    up to `frames_before` latent frames later, and no others. The same applies to latent cells and pixels.
    """
    before, after = _extent(spec, Axis.TIME)
    whole_frames = any(spec.unbounded_layer(axis) for axis in (Axis.HEIGHT, Axis.WIDTH))
    cells = None if whole_frames else max(max(_extent(spec, axis)) for axis in (Axis.HEIGHT, Axis.WIDTH))
    return ReceptiveField(before, after, cells)


def _extent(spec: NetworkSpec, axis: Axis) -> tuple[float, float]:
    """The input positions before and after its own that an output depends on."""
    before = after = Fraction(0)
    rate = Fraction(1)  # positions of this layer's input per position of the network's input
    for layer in spec.layers:
        behind, ahead = layer.reach(axis)
        before, after = before + behind / rate, after + ahead / rate
        rate = rate * layer.up[axis.grid] / layer.down[axis.grid]
    return float(before), float(after)


def needed(spec: NetworkSpec, axis: Axis, results: int = 1) -> int:
    """The number of input positions required before the first `results` outputs are final."""
    for layer in reversed(spec.layers):
        results = layer.needed(axis, results)
    return results


def lookahead(spec: NetworkSpec) -> int:
    """The number of latent frames required before the first output frame is final: 1 for a causal decoder."""
    return needed(spec, Axis.TIME)


def first_output_work(spec: NetworkSpec, grid: Grid, outputs: int = 1) -> float:
    """The share of a stream's work along time that is done when the first outputs are final, 0 to 1.

    A layer's work is estimated as its multiplications: for each of its results, its weights and its channels. Before
    the first outputs each layer computes only the results that it takes, so far fewer at the end of a decoder, where
    most of the work is, than the lookahead's share of the latent frames.
    """
    first = total = 0
    for layer, extents in reversed(list(spec.walk(grid))):
        height, width = (layer.window(axis).results(extents[axis.grid]) for axis in (Axis.HEIGHT, Axis.WIDTH))
        up, dropped = layer.up[Axis.TIME.grid], layer.trim + layer.crop
        results = math.ceil((layer.results(Axis.TIME, extents[0]) + dropped) / up)  # before some are dropped
        weights = sum(math.prod(shape) for _, shape in layer.weights)
        work = height * width * (weights + layer.in_channels + layer.out_channels)
        first += min(results, math.ceil((outputs + dropped) / up)) * work
        total += results * work
        outputs = layer.needed(Axis.TIME, outputs)  # of the layer before
    return first / total


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
