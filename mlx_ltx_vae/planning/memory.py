"""Estimates of the peak memory of a run, from the network spec and the plan. Pure arithmetic, no MLX.

Memory in use at any moment: the weights, the latents, the caches of all layers, outputs that the next layer has not
consumed yet, and the work of the layer that runs. The peak is the largest such sum over the layers.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from ..backend.machine import FLOAT32_BYTES, Backend, Machine
from ..networks.specs import LayerSpec, NetworkSpec, Step
from ..shapes import Axis, Grid

_HELD = 0.45  # fraction of an output that the consumer still refers to while the next one is computed
_LEAST_STEP = 2**12  # elements; smaller steps take longer to start than to compute
# For uncounted memory: small arrays, rounding of allocations to pages, and on a CPU the differences of its kernels.
_MARGIN = {Backend.CPU: 1.13, Backend.METAL: 1.06, Backend.CUDA: 1.06}
_NOT_COMPILED = 2.1  # factor of a step's work if its operations are not compiled: each operation makes an array
_SINGLE_PASS_MARGIN = 0.97  # factor of `_MARGIN` in a single pass, whose arrays are large and few

# MLX keeps freed buffers and reuses only buffers of nearly the same size. On Metal, active memory plus buffer cache is
# 1.3 to 1.45 times the peak active memory (simulated allocator, not measured on a Mac). CPU builds keep at most 32 MB,
# unless an app sets another limit.
_CACHE_SHARE = {Backend.CPU: 0.0, Backend.METAL: 0.45, Backend.CUDA: 0.45}
#: Frames that are converted to levels at once.
FRAMES_PER_CONVERSION = 8
#: On a GPU, a cache limit below this costs time if the run would fill the cache.
COMFORTABLE_CACHE_BYTES = 2_000_000_000


@dataclass(frozen=True)
class StreamRun:
    """Parameters of a run of a network as one stream.

    Attributes:
        pieces: the lengths of the input pieces.
        steps: positions per step of each layer. `None` means everything in one step, with nothing cached.
    """

    axis: Axis
    pieces: tuple[int, ...]
    steps: tuple[int, ...] | None
    prefetch: int
    machine: Machine


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak of a run.

    Attributes:
        weights: weights of all networks that are loaded.
        inputs: the caller's latents in float32, the piece of them in use, and the frames of another window that wait;
            for an encode, the queued frames.
        caches: the caches of all layers between two steps.
        work: one step of the largest layer including its queued input, times the number of steps in flight.
        result: the whole output, if it becomes one array, of MLX or of numpy.
        audio: the run of a video's audio.
        buffer_cache: maximum size of MLX's cache of freed buffers.
        idle_caches: the caches and the queued pieces between two outputs, while another stream runs.
    """

    weights: int
    inputs: int
    caches: int
    work: int
    result: int = 0
    audio: int = 0
    buffer_cache: int = 0
    idle_caches: int = 0

    @property
    def active(self) -> int:
        """Active memory, as `mx.get_peak_memory()` reports it, and a result that is an array of numpy."""
        return self.weights + self.inputs + self.caches + self.work + self.result + self.audio

    @property
    def total(self) -> int:
        """Active memory plus MLX's buffer cache."""
        return self.active + self.buffer_cache


def with_buffer_cache(memory: Memory, backend: Backend, budget: int | None) -> Memory:
    """Return the estimate with MLX's buffer cache: the size it would grow to, or less if the budget requires it."""
    full_size = math.ceil(_CACHE_SHARE[backend] * memory.active)
    available = full_size if budget is None else max(0, budget - memory.active)
    return replace(memory, buffer_cache=min(full_size, available))


def is_cache_tight(memory: Memory, backend: Backend) -> bool:
    """Return whether the buffer cache is limited so far below the size it would grow to that the run takes longer."""
    full_size = _CACHE_SHARE[backend] * memory.active
    return memory.buffer_cache < min(full_size, COMFORTABLE_CACHE_BYTES) * 0.999


#: Amount of the clip that is processed at a time: the step and the prefetch of a `Plan`, and the number of default
#: pieces in a chunk. A convolution also processes the cached positions of its window, so steps of a single position
#: take longer. Without prefetch, a GPU is idle between steps.
Pace = tuple[int, int, int]

# Fastest first. On a GPU, larger steps use Metal's fast convolutions better, which transform their filters once per
# step. The figures follow a model of Metal's kernels and were not measured on a Mac.
_ON_CPU: tuple[Pace, ...] = ((2, 0, 1), (1, 0, 1))
_ON_GPU: tuple[Pace, ...] = ((4, 1, 2), (2, 1, 1), (1, 1, 1), (1, 0, 1))


def paces(spec: NetworkSpec, backend: Backend, axis: Axis) -> Sequence[Pace]:
    """Return the possible paces of a stream, the fastest first."""
    if spec.clip.chunks:
        return [(0, 0, chunk) for chunk in spec.clip.chunks]
    if backend is Backend.CPU:
        return _ON_CPU
    return _ON_GPU if axis is Axis.TIME else ((spec.rows_on_gpu, 1, 1), *_ON_GPU[1:])


def position_elements(layer: LayerSpec, grid: Grid, axis: Axis) -> int:
    """Return the number of elements of one position along `axis` of a layer's input, per batch item."""
    return layer.in_channels * math.prod(grid) // grid[axis.grid]


def largest_layer(spec: NetworkSpec, grid: Grid, batch: int) -> int:
    """Return the number of elements of the largest input or output of a layer for the whole clip at once."""
    entering = max(layer.in_channels * math.prod(extents) for layer, extents in spec.walk(grid))
    return batch * max(entering, spec.out_channels * math.prod(spec.out_grid(grid)))


def make_steps(spec: NetworkSpec, grid: Grid, axis: Axis, positions: int, limit: int) -> tuple[int, ...]:
    """Return each layer's number of positions along `axis` per step, for an input (T, H, W).

    The layer with the largest activations takes `positions`, or more if these are very small. The others take as many
    as fit in the same number of elements, which is at most `limit`; a step has at least one position.
    """
    layers = list(spec.walk(grid))
    sizes = [position_elements(layer, extents, axis) for layer, extents in layers]
    # Layers without a kernel only rearrange pixels and need no scratch memory, so they do not count.
    widest = max(
        (size for size, (layer, _) in zip(sizes, layers, strict=True) if layer.window(axis).kernel > 1), default=1
    )
    elements = min(max(positions * widest, _LEAST_STEP), limit)
    return tuple(max(1, elements // size) for size in sizes)


def stream_memory(spec: NetworkSpec, grid: Grid, batch: int, run: StreamRun) -> Memory:
    """Return the peak memory of one stream with an input (T, H, W), without MLX's buffer cache."""
    axis, machine = run.axis, run.machine
    pieces, extents = list(run.pieces), grid
    caches, works, waiting = [], [], 0
    # A chain, which runs audio, is flushed with its last piece.
    is_whole_clip = run.steps is None or (spec.clip.flushes_with_last and len(pieces) == 1)
    for index, layer in enumerate(spec.layers):
        length = extents[axis.grid]
        if run.steps is None:
            pieces = [length]
        step, longest = run.steps[index] if run.steps else length, max(pieces)
        position = batch * position_elements(layer, extents, axis) * machine.itemsize
        # Where windows shift at the borders, the first piece and the last one are longer than the others; while they
        # wait, the layers after or before it cache less.
        usual_length = max(pieces[1:-1], default=longest)
        waiting += usual_length * position if usual_length > step else 0
        cache = batch * layer.cache_bytes(axis, extents, longest, machine)
        caches.append(0 if is_whole_clip else cache)
        num_positions = min(step, longest)
        is_whole = run.steps is None or length == 1  # a single position is not joined to the cache
        layer_work = layer.work_bytes(Step(axis, replace_extent(extents, axis, num_positions), is_whole, machine))
        layer_work = batch * layer_work + layer.weight_copy_bytes(machine)
        if length == 1 and not is_whole_clip:
            layer_work -= min(cache, position)  # the input itself is cached
        works.append(waiting + layer_work * (1 if machine.compiles else _NOT_COMPILED))
        pieces = _advance(pieces, step, layer, axis, flushes_with_last=spec.clip.flushes_with_last)
        extents = layer.out_grid(extents)
    # The final output is checked and converted to levels in float32.
    position = batch * spec.out_channels * math.prod(extents) // extents[axis.grid]
    results = max(pieces) * position * (machine.itemsize + max(machine.itemsize, 2 * FLOAT32_BYTES + 1))
    works[-1] = max(works[-1], waiting + results)
    layer_ranges = _occupied(spec.layers, axis, grid[axis.grid])
    # A residual block's second layer adds the block's input, which its first one caches.
    totals = [(sum(caches[max(0, first - 1) : last]), max(works[first:last])) for first, last in layer_ranges]
    cached, work = max(totals, key=sum)
    held = math.ceil(_HELD * results) if len(pieces) > 1 or run.prefetch else 0
    margin = _MARGIN[machine.backend] * (_SINGLE_PASS_MARGIN if run.steps is None else 1)
    # A stream with several results per input piece has queued pieces between two results. The flush adds one result.
    queued = waiting if len(pieces) > len(run.pieces) + 1 else 0
    return Memory(
        weights=spec.num_weights * machine.itemsize,
        inputs=0,
        caches=math.ceil(margin * (cached + sum(layer.fixed_bytes for layer in spec.layers))),
        work=math.ceil(margin * work * (1 + run.prefetch)) + held,
        idle_caches=math.ceil(_MARGIN[machine.backend] * max(cached_size for cached_size, _ in totals)) + queued,
    )


def _occupied(layers: Sequence[LayerSpec], axis: Axis, length: int) -> Iterator[tuple[int, int]]:
    """Yield the layers that hold positions together, (first, end): when all have arrived, and as each is flushed.

    Layers before a flushed one are empty, so a clip shorter than the network's delay never occupies all layers.
    """
    lengths = list(accumulate(layers, lambda length, layer: layer.num_outputs(axis, length), initial=length))
    for first, end in [(0, 0), *pairwise(range(len(layers) + 1))]:
        received = lengths[end]  # the whole input of this layer, and then what the ones after it have received
        while received and end < len(layers):
            received = min(layers[end].ready(axis, received), lengths[end + 1])
            end += 1
        yield first, end


def replace_extent(grid: Grid, axis: Axis, extent: int) -> Grid:
    """Return the grid with another extent along one axis."""
    time, height, width = (extent if index == axis.grid else other for index, other in enumerate(grid))
    return time, height, width


def cut(length: int, size: int) -> Iterator[int]:
    """Yield the lengths of the pieces that `length` positions are cut into, at most `size` each."""
    for start in range(0, length, size):
        yield min(size, length - start)


def layer_pieces(spec: NetworkSpec, grid: Grid, run: StreamRun) -> Iterator[list[int]]:
    """Yield the lengths of the pieces that each layer processes in one step, and last the lengths of the output."""
    pieces = list(run.pieces)
    for index, (layer, extents) in enumerate(spec.walk(grid)):
        step = extents[run.axis.grid] if run.steps is None else run.steps[index]
        yield [part for piece in pieces for part in cut(piece, step)]
        pieces = _advance(pieces, step, layer, run.axis, flushes_with_last=spec.clip.flushes_with_last)
    yield pieces


def _advance(pieces: Iterable[int], step: int, layer: LayerSpec, axis: Axis, *, flushes_with_last: bool) -> list[int]:
    """Return the number of positions that each step of a layer returns, without steps that return none.

    The layer waits for the positions that its window needs, and flushes the remaining results at the end: in a step of
    its own, or together with the last piece (as a `chain` does, which runs audio).
    """
    received = returned = 0
    outputs = []
    lengths = [part for piece in pieces for part in cut(piece, step)]
    for index, length in enumerate(lengths, 1):
        received += length
        is_flushed = flushes_with_last and index == len(lengths)
        ready = layer.num_outputs(axis, received) if is_flushed else layer.ready(axis, received)
        if ready > returned:
            outputs.append(ready - returned)
            returned = ready
    total = layer.num_outputs(axis, received)
    if total > returned:
        outputs.append(total - returned)
    return outputs or [1]
