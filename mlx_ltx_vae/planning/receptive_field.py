"""The receptive field and the lookahead of a network. Pure arithmetic, no MLX."""

import math
from fractions import Fraction
from typing import NamedTuple

from ..models.specs import NetworkSpec
from ..shapes import Grid
from ..streaming.axis import Axis


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
