"""What the host does for the diffusion decoder on Metal: graphs of its steps, built as there, and never executed."""

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from unittest.mock import patch

import mlx.core as mx

from benchmarks.metal.attention_model import Layer, planned_layers
from mlx_ltx_vae.backend.machine import Backend
from mlx_ltx_vae.bench.command import table
from mlx_ltx_vae.models.diffusion_decoder import attention, blocks
from mlx_ltx_vae.models.diffusion_decoder.network_specs import MODULATION_ROWS, AttentionSpec, MLPSpec
from mlx_ltx_vae.models.layers import activation
from mlx_ltx_vae.shapes import Grid
from mlx_ltx_vae.streaming.context import StreamContext

_ROUNDS = 7


def host_table() -> str:
    """Calls of kernels and seconds of the planned decode, by kind of block."""
    plan, layers = planned_layers()
    steps: Counter[Grid] = Counter()
    kinds: dict[Grid, tuple[Layer, Layer]] = {}
    rows, all_calls, all_seconds = [], 0, 0.0
    for first, second in pairwise(layers):
        if isinstance(second.spec, MLPSpec):
            steps[first.grid] += len(first.steps)
            kinds[first.grid] = first, second
    for grid, count in steps.items():
        calls, seconds = measure_step(*kinds[grid])
        all_calls, all_seconds = all_calls + calls * count, all_seconds + seconds * count
        size = "x".join(map(str, grid))
        rows.append({"grid": size, "steps": str(count), "calls": str(calls), "ms": f"{1000 * seconds:.2f}"})
    notes = [
        f"calls, ms: of one step. {all_calls} calls and {all_seconds:.2f} s in all, by {plan.order.value} in steps of "
        f"{plan.step}.",
        "Graphs alone, in one thread of this machine: not what MLX does to submit them, and nothing of a GPU.",
    ]
    return table(rows, notes)


def measure_step(first: Layer, second: Layer) -> tuple[int, float]:
    """The calls, and the seconds of this thread, of one step of a block's two layers in the middle of a stream."""
    assert isinstance(first.spec, AttentionSpec) and isinstance(second.spec, MLPSpec)
    axis, channels, waiting = first.axis, first.spec.in_channels, first.spec.waiting_channels
    block = blocks.NeighborhoodBlock(first.spec, second.spec)
    block.set_dtype(mx.bfloat16)

    def zeros(positions: int, width: int) -> mx.array:
        extents = [positions if index == axis.grid else each for index, each in enumerate(first.grid)]
        return mx.zeros((1, *extents, width), mx.bfloat16)

    modulation = mx.zeros((MODULATION_ROWS, channels)) if waiting else None
    size, times = max(first.steps, key=first.steps.count), []
    with graphs_as_on_metal() as made:
        context = partial(zeros, width=waiting) if waiting else None
        attend, feed = block.stages(StreamContext(axis), (1, 1, 1), modulation, context)
        attend.step(zeros(first.spec.kernel[axis.grid], channels), False)
        for _ in range(1 + _ROUNDS):  # the first one makes the tables of the others
            made.clear()
            start = time.thread_time()
            feed.step(attend.step(zeros(size, channels), False), False)
            times.append(time.thread_time() - start)
    return len(made), statistics.median(times[1:])


@contextmanager
def graphs_as_on_metal() -> Iterator[list[mx.array]]:
    """In the block, graphs are those of Metal, and nothing is evaluated. The list gets the result of each call."""
    made: list[mx.array] = []

    def add(_: attention.Queue, result: mx.array) -> mx.array:
        made.append(result)
        return result

    with ExitStack() as stack:
        for module in (activation, attention, blocks):
            stack.enter_context(patch.object(module, "is_cpu", lambda: False))
        for module in (attention, blocks):
            stack.enter_context(patch.object(module, "backend", lambda: Backend.METAL))
        stack.enter_context(patch.object(attention.Queue, "add", add))
        stack.enter_context(patch.object(mx, "async_eval", lambda *_: None))
        # One primitive on a GPU, and several without one.
        stack.enter_context(patch.object(mx.fast, "scaled_dot_product_attention", lambda q, *_, scale, **__: q * scale))
        stack.enter_context(patch.object(mx.fast, "rms_norm", lambda x, *_: mx.abs(x)))
        yield made
