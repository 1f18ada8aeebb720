"""What a run holds at its peak, derived from the network and the way it is run. Pure arithmetic, no MLX.

At any moment there are: the weights; the latents; what every layer caches; what a layer has handed on and the next has
not taken yet; and the work of the one layer that runs. The peak is the largest such sum over the layers.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from ..machine import FLOAT32_BYTES, Backend, Machine
from ..models.specs import LayerSpec, NetworkSpec, Step
from ..shapes import Grid
from ..streaming.axis import Axis

_MARGIN = 1.06  # for what is not counted: small arrays, rounding of allocations to pages

# MLX keeps freed buffers and reuses only sizes that nearly match: on Metal what is in use and the cache are together
# 1.3 to 1.45 times the peak of what is in use (simulated allocator, not measured on a Mac). CPU builds keep nothing.
_CACHE_SHARE = {Backend.CPU: 0.0, Backend.GPU: 0.45}
#: A cache limit below this costs time on a GPU, where the run would fill it.
COMFORTABLE_CACHE_BYTES = 2_000_000_000


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak of a run.

    Attributes:
        weights: of the network.
        inputs: what enters: latents in the network's dtype, and the caller's own in float32; or frames that wait.
        caches: what layers keep between two steps.
        work: the largest layer at work, with what waits in front of it; as often as steps are under way.
        buffer_cache: freed buffers that MLX keeps, at most.
    """

    weights: int
    inputs: int
    caches: int
    work: int
    buffer_cache: int = 0

    @property
    def active(self) -> int:
        """What is in use: what `mx.get_peak_memory()` reports."""
        return self.weights + self.inputs + self.caches + self.work

    @property
    def total(self) -> int:
        """What the process takes: what is in use and MLX's buffer cache."""
        return self.active + self.buffer_cache


def with_buffer_cache(memory: Memory, backend: Backend, budget: int | None) -> Memory:
    """The estimate with MLX's buffer cache: as large as it would grow, or what the budget leaves for it."""
    wanted = math.ceil(_CACHE_SHARE[backend] * memory.active)
    left = wanted if budget is None else max(0, budget - memory.active)
    return replace(memory, buffer_cache=min(wanted, left))


def is_cache_tight(memory: Memory, backend: Backend) -> bool:
    """Whether the buffer cache is limited so far below what the run would fill that it costs time."""
    wanted = _CACHE_SHARE[backend] * memory.active
    return memory.buffer_cache < min(wanted, COMFORTABLE_CACHE_BYTES) * 0.999


@dataclass(frozen=True)
class StreamRun:
    """A way of running a network as one stream.

    Attributes:
        pieces: the lengths of the pieces that enter.
        steps: per layer, the positions that it takes at once; None for everything in one step, with nothing cached.
        prefetch: steps that are under way beyond the one that is waited for.
    """

    axis: Axis
    pieces: tuple[int, ...]
    steps: tuple[int, ...] | None
    prefetch: int
    machine: Machine


def position_elements(layer: LayerSpec, grid: Grid, axis: Axis) -> int:
    """Elements of one position along `axis` of what enters a layer, for one item of a batch."""
    return layer.in_channels * math.prod(grid) // grid[axis.grid]


def largest_layer(spec: NetworkSpec, grid: Grid, batch: int) -> int:
    """Elements of the largest array that enters or leaves a layer when the whole clip does."""
    entering = max(layer.in_channels * math.prod(extents) for layer, extents in spec.walk(grid))
    return batch * max(entering, spec.out_channels * math.prod(spec.out_grid(grid)))


def make_steps(spec: NetworkSpec, grid: Grid, axis: Axis, positions: int, limit: int) -> tuple[int, ...]:
    """Per layer, how many positions along `axis` it takes at once.

    Args:
        grid: (T, H, W) of what enters it.
        positions: how many a layer takes where activations are widest. Others take as many as have no more elements.
        limit: the most elements that a layer may take at once; one position is always taken.
    """
    layers = list(spec.walk(grid))
    sizes = [position_elements(layer, extents, axis) for layer, extents in layers]
    # Rearranging pixels takes no scratch, so it does not count, however many channels it has.
    widest = max(
        (size for size, (layer, _) in zip(sizes, layers, strict=True) if layer.window(axis).kernel > 1), default=1
    )
    elements = min(positions * widest, limit)
    return tuple(max(1, elements // size) for size in sizes)


def stream_memory(spec: NetworkSpec, grid: Grid, batch: int, run: StreamRun) -> Memory:
    """What one stream holds at its peak, without MLX's buffer cache.

    Args:
        grid: (T, H, W) of what enters it.
    """
    axis, itemsize = run.axis, run.machine.itemsize
    length, pieces = grid[axis.grid], list(run.pieces)
    waiting = 0
    delay, rate = Fraction(0), Fraction(1)
    delays, caches, works = [], [], []
    extents = grid
    for index, layer in enumerate(spec.layers):
        window = layer.window(axis)
        extent = extents[axis.grid]
        position = batch * position_elements(layer, extents, axis)
        if run.steps is None:
            pieces = [extent]
        step = max(pieces) if run.steps is None else run.steps[index]
        if max(pieces) > step:
            waiting += max(pieces) * position * itemsize
        taken = min(step, max(pieces))
        delays.append(delay)
        caches.append(min(window.cached, extent) * position * itemsize)
        step_grid = _replace(extents, axis, taken)
        work = layer.work_bytes(Step(axis, step_grid, run.steps is None, run.machine))
        works.append(waiting + batch * work)
        pieces = _advance(pieces, step, layer, axis)
        delay += window.ahead / rate
        rate = rate * layer.up[axis.grid] / layer.down[axis.grid]
        extents = layer.out_grid(extents)
    out_position = batch * spec.out_channels * math.prod(extents) // extents[axis.grid]
    # Results on their way out: as they are, looked at, and turned into levels in float32. About half of that is still
    # held by whoever took them while the next are computed.
    results = out_position * max(pieces) * (itemsize + max(itemsize, 2 * FLOAT32_BYTES + 1))
    works[-1] = max(works[-1], waiting + results)
    cached, work = _worst(delays, [] if run.steps is None else caches, works, length)
    return Memory(
        weights=spec.num_weights * itemsize,
        inputs=0,
        caches=math.ceil(_MARGIN * cached),
        work=math.ceil(_MARGIN * work * (1 + run.prefetch)) + (0 if run.steps is None else results // 2),
    )


def _replace(grid: Grid, axis: Axis, extent: int) -> Grid:
    time, height, width = (extent if index == axis.grid else other for index, other in enumerate(grid))
    return time, height, width


def cut(length: int, size: int) -> Iterator[int]:
    """The lengths of the pieces that `length` positions are cut into, at most `size` each."""
    for start in range(0, length, size):
        yield min(size, length - start)


def _advance(pieces: list[int], step: int, layer: LayerSpec, axis: Axis) -> list[int]:
    """The lengths of what a layer hands on, when pieces of these lengths reach it and it takes `step` at most.

    It waits for the positions that its window needs, and flushes the rest at the end.
    """
    window = layer.window(axis)
    up, trim = layer.up[axis.grid], layer.trim if axis is Axis.TIME else 0
    seen = done = 0
    results = []
    for length in [part for piece in pieces for part in cut(piece, step)]:
        seen += length
        # The largest number of results that need no more than what was seen.
        ready = max(0, (seen + window.behind - window.kernel) // window.stride + 1)
        if ready > done:
            results.append((ready - done) * up)
            done = ready
    total = window.results(seen)
    if total > done:
        results.append((total - done) * up)
    if results:
        results[0] -= trim
    return [length for length in results if length > 0] or [1]


def _worst(delays: list[Fraction], caches: list[int], works: list[int], length: int) -> tuple[int, int]:
    """Caches and work at the moment when their sum is largest.

    A clip shorter than the network's delay is never everywhere at once: while a layer is at work, only those cache
    anything that are less than the clip's length before or behind it.
    """
    moments = []
    for delay, work in zip(delays, works, strict=True):
        alive = sum(cache for other, cache in zip(delays, caches, strict=False) if abs(other - delay) < length)
        moments.append((alive, work))
    return max(moments, key=sum)
