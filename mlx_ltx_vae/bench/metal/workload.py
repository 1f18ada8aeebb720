"""The convolutions that a planned decode runs, from the plan and the network's specs. No MLX."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from ...models.convolution.rules import TAPS, ConvShape
from ...models.specs import Activation, ConvSpec, NetworkSpec
from ...planning.memory import StreamRun, cut, layer_pieces, step_results
from ...planning.plan import DecodePlan


@dataclass(frozen=True, order=True)
class ConvKind:
    """All convolutions of a decode with the same channels and picture. Plain values, which JSON can represent.

    Attributes:
        height: of the output.
        width: of the output.
        frames: output frames per call; of several numbers the one that computes most frames.
        calls: calls in the whole clip, if each had `frames`.
        layers: the number of layers.
        is_normalized: whether the input comes from a norm, so that its size has a bound.
    """

    in_channels: int
    out_channels: int
    height: int
    width: int
    frames: int
    calls: float
    layers: int
    is_normalized: bool

    @property
    def shape(self) -> ConvShape:
        """What the package's rule decides on."""
        grid = (self.frames, self.height, self.width)
        return ConvShape(grid, self.in_channels, self.out_channels)

    @property
    def operations(self) -> int:
        """Multiplications and additions of one call."""
        return 2 * self.shape.results * self.out_channels * TAPS**3 * self.in_channels


def stream_run(plan: DecodePlan) -> StreamRun:
    """How an exact plan runs the network."""
    length = plan.latent_shape.grid[plan.order.axis.grid]
    pieces = tuple(cut(length, plan.chunk))
    return StreamRun(plan.order.axis, pieces, plan.steps, plan.prefetch, plan.machine)


def conv_calls(spec: NetworkSpec, plan: DecodePlan) -> list[tuple[ConvSpec, ConvShape]]:
    """Every call of a convolution in an exact decode by time, in the order of the layers."""
    run, grid = stream_run(plan), plan.latent_shape.grid
    calls = []
    for (layer, (_, height, width)), pieces in zip(spec.walk(grid), layer_pieces(spec, grid, run), strict=False):
        if isinstance(layer, ConvSpec):
            for frames in step_results(pieces, layer, run.axis):
                calls.append((layer, ConvShape((frames, height, width), layer.in_channels, layer.conv_channels)))
    return calls


def conv_kinds(spec: NetworkSpec, plan: DecodePlan) -> list[ConvKind]:
    """The distinct convolutions of an exact decode by time, smallest pictures first."""
    lengths: dict[tuple[Any, ...], Counter[int]] = defaultdict(Counter)
    names: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    for layer, shape in conv_calls(spec, plan):
        key = (*shape.grid[1:], shape.in_channels, shape.out_channels, layer.activation is not Activation.NONE)
        lengths[key][shape.grid[0]] += 1
        names[key].add(layer.name)
    kinds = []
    for key, counts in sorted(lengths.items()):
        height, width, inputs, outputs, is_normalized = key
        frames = max((length * count, length) for length, count in counts.items())[1]
        calls = sum(length * count for length, count in counts.items()) / frames
        kinds.append(ConvKind(inputs, outputs, height, width, frames, calls, len(names[key]), is_normalized))
    return kinds
