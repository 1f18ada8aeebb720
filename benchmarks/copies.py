"""Bytes that a decode by time copies on Metal: its steps run here without being computed, by the formulations of Metal.

Nothing of this is measured on a Mac. Counted are the operations that only move values, each with what it reads and what
it writes, and the kernels that compute a value from one position, since such a kernel may take over a copy. What MLX
copies within a Winograd convolution follows its source.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import mlx.core as mx

from benchmarks.measuring import Case, Run, make_random_network, table
from mlx_ltx_vae.backend.device import computing_for
from mlx_ltx_vae.backend.machine import Backend, Machine
from mlx_ltx_vae.networks import layers
from mlx_ltx_vae.networks.base import Decoder
from mlx_ltx_vae.networks.convolution import conv3d
from mlx_ltx_vae.networks.convolution.rules import TAPS, ConvShape, winograd_elements, winograd_positions
from mlx_ltx_vae.options import PlanOptions
from mlx_ltx_vae.planning.planner import plan_decode
from mlx_ltx_vae.shapes import Axis
from mlx_ltx_vae.streaming.context import Stage, StreamContext
from mlx_ltx_vae.streaming.driver import Schedule, run_stream
from mlx_ltx_vae.streaming.window import TraceableCache
from mlx_ltx_vae.units import MB

_COPIES = ("concatenate", "pad", "contiguous", "stack", "tile")  # functions of MLX
_ARRAY = mx.array
_HELPERS = (Path(__file__).name, "mlx_utils.py", "mock.py")  # files whose functions copy for their callers
WINOGRAD = "MLX's Winograd"


def copies(case: Case) -> dict[str, Any]:
    """Count a decode of a case by time as on Metal, with the weights of its published VAE in bfloat16.

    Returns:
        latent_frames, steps and chunk of the plan; copied_bytes and kernel_bytes by the function that has them copied
        or computed: those of a latent frame in the middle of a long clip.
    """
    with computing_for(Backend.METAL):
        network = cast(Decoder, make_random_network(case))
        conv3d.prepare(network, keeps_dtype=False)
        grid = network.spec.scale.latent_grid((case.frames, case.height, case.width))
        machine = Machine(Backend.METAL, itemsize=mx.bfloat16.size)
        plan = plan_decode(
            network.spec, (1, network.spec.in_channels, *grid), machine, PlanOptions(mode="exact", order="time")
        )
        snapshots: list[tuple[Counter[str], Counter[str]]] = []

        def pieces(copied: Counter[str], computed: Counter[str]) -> Iterator[mx.array]:
            for _ in range(_warm_up(plan.lookahead, plan.chunk) + 2):
                snapshots.append((copied.copy(), computed.copy()))
                yield mx.zeros((1, plan.chunk, *grid[1:], network.spec.in_channels), network.dtype)

        with recorded() as (copied, computed):
            stages = network.stages(StreamContext())
            stream = run_stream(stages, pieces(copied, computed), steps=plan.steps, schedule=_Unevaluated(Axis.TIME))
            while len(snapshots) < _warm_up(plan.lookahead, plan.chunk) + 2:
                next(stream)
    (*_, before, after) = snapshots
    counts = [
        {name: count / plan.chunk for name, count in (later - earlier).items()}
        for earlier, later in zip(before, after, strict=True)
    ]
    return {"chunk": plan.chunk, "steps": plan.steps, "copied_bytes": counts[0], "kernel_bytes": counts[1]}


def _warm_up(lookahead: int, chunk: int) -> int:
    """Return the pieces after which each one passes all layers."""
    return 1 + math.ceil(lookahead / chunk)


class _Unevaluated(Schedule):
    """Steps whose results are replaced by others of their shape, so that no graph grows and nothing is computed."""

    def compute(self, stage: Stage, inputs: list[mx.array], last: bool) -> list[mx.array]:
        result = stage.step(inputs.pop() if inputs else None, last)
        for cache in cast("list[TraceableCache]", stage.caches):
            cache.load([mx.zeros(array.shape, array.dtype) for array in cache.arrays])
        return [] if result is None else [mx.zeros(result.shape, result.dtype)]


@contextmanager
def recorded() -> Iterator[tuple[Counter[str], Counter[str]]]:
    """Count the bytes read and written by copies and by kernels while the block runs, by the function that asks."""
    copied: Counter[str] = Counter()
    computed: Counter[str] = Counter()
    transposed: dict[int, mx.array] = {}
    transpose, reshape, convolve = _ARRAY.transpose, _ARRAY.reshape, mx.conv2d

    def counting(counts: Counter[str], function: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def count(*arguments: Any, **options: Any) -> mx.array:
            result = function(*arguments, **options)
            read = sum(each.nbytes for each in arguments if isinstance(each, _ARRAY)) if counts is computed else 0
            counts[_caller()] += result.nbytes + (read or result.nbytes)
            return result

        return count

    def transposing(array: mx.array, *axes: Any) -> mx.array:
        result = transpose(array, *axes)
        transposed[id(result)] = result
        return result

    def reshaping(array: mx.array, *shape: Any) -> mx.array:
        if id(array) in transposed:
            copied[_caller()] += 2 * array.nbytes
        return reshape(array, *shape)

    def convolving(frames: mx.array, weight: mx.array, *arguments: Any, **options: Any) -> mx.array:
        result = convolve(frames, weight, *arguments, **options)
        count, height, width, channels = result.shape
        shape = ConvShape((count, height, width), frames.shape[-1] // TAPS, channels)
        if winograd_elements(shape):
            # MLX fills an array with zeros, and copies the frames into it.
            zeros = count * winograd_positions(shape.grid) * frames.shape[-1] * frames.itemsize
            copied[WINOGRAD] += zeros + 2 * frames.nbytes
        return result

    with ExitStack() as stack:
        for name in _COPIES:
            stack.enter_context(patch.object(mx, name, counting(copied, getattr(mx, name))))
        for owner, name in ((mx.fast, "rms_norm"), (conv3d, "scale_to_half"), (conv3d, "add_bias")):
            stack.enter_context(patch.object(owner, name, counting(computed, getattr(owner, name))))
        kernels = {dtype: counting(computed, kernel) for dtype, kernel in layers._SILU_KERNELS.items()}
        stack.enter_context(patch.object(layers, "_SILU_KERNELS", kernels))
        stack.enter_context(patch.object(mx, "conv2d", convolving))
        stack.enter_context(patch.object(_ARRAY, "transpose", transposing))
        stack.enter_context(patch.object(_ARRAY, "reshape", reshaping))
        yield copied, computed


def _caller() -> str:
    """Return module and name of the function for which an operation is made."""
    frame = sys._getframe(2)
    while Path(frame.f_code.co_filename).name in _HELPERS and frame.f_back is not None:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"


def copies_table(results: list[list[Run]]) -> str:
    """Bytes of one latent frame in the middle of a clip, the most first, and their sums."""
    (run,) = results[0]
    rows = [
        {"what": kind, "in": name, "MB per latent frame": f"{count / MB:.1f}"}
        for kind in ("copied", "kernel")
        for name, count in [
            *sorted(run[f"{kind}_bytes"].items(), key=lambda item: -item[1]),
            ("all", sum(run[f"{kind}_bytes"].values())),
        ]
    ]
    notes = [
        "Read and written, counted by the shapes of a decode by time on Metal, which is not run; no times.",
        f"{run['width']}x{run['height']}, {run['frames']} frames, chunks of {run['chunk']} latent frames.",
    ]
    return table(rows, notes)
