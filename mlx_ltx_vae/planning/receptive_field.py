"""How far a network sees, and how much it needs before its first result. Pure arithmetic, no MLX."""

import math
from fractions import Fraction
from typing import NamedTuple

from ..models.specs import NetworkSpec
from ..streaming.axis import Axis


class ReceptiveField(NamedTuple):
    """How far a result sees beyond its own position of the input.

    Attributes:
        frames_before: latent frames before its own.
        frames_after: latent frames after its own.
        cells: latent cells to each side; None where it sees whole frames.
    """

    frames_before: float
    frames_after: float
    cells: float | None


def receptive_field(spec: NetworkSpec) -> ReceptiveField:
    """How far a decoded pixel sees.

    Exact: a latent frame changes the frames of its own and those up to `frames_after` latent frames earlier and up to
    `frames_before` later, and not one more; likewise a latent cell and pixels.
    """
    before, after = _extent(spec, Axis.TIME)
    whole_frames = any(spec.unbounded_layer(axis) for axis in (Axis.HEIGHT, Axis.WIDTH))
    cells = None if whole_frames else max(max(_extent(spec, axis)) for axis in (Axis.HEIGHT, Axis.WIDTH))
    return ReceptiveField(before, after, cells)


def _extent(spec: NetworkSpec, axis: Axis) -> tuple[float, float]:
    """Positions of the input that a result sees before and after its own."""
    before = after = Fraction(0)
    rate = Fraction(1)  # positions of this layer's input per position of the network's input
    for layer in spec.layers:
        window = layer.window(axis)
        before, after = before + window.behind / rate, after + window.ahead / rate
        rate = rate * layer.up[axis.grid] / layer.down[axis.grid]
    return float(before), float(after)


def needed(spec: NetworkSpec, axis: Axis, results: int = 1) -> int:
    """How many positions of the input must have come before the first `results` results are final."""
    for layer in reversed(spec.layers):
        dropped = layer.trim if axis is Axis.TIME else 0
        results = layer.window(axis).needed(math.ceil((results + dropped) / layer.up[axis.grid]))
    return results


def lookahead(spec: NetworkSpec) -> int:
    """Latent frames that a decoder needs before its first frame is final: 1 for a causal decoder."""
    return needed(spec, Axis.TIME)
