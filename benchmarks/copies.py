"""Bytes that a decode by time copies with the formulations for Metal, whose steps are made here and not computed.

Nothing of this is measured on a Mac. Counted are the operations that only move values, each with what it reads and what
it writes, and the kernels that compute a value from one position, since such a kernel may take over a copy. What MLX
copies within a Winograd convolution follows its source.
"""

import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar, cast
from unittest.mock import patch

import mlx.core as mx

from benchmarks.measuring import Case, Job, Run, make_random_network, table
from mlx_ltx_vae.backend.device import backend, computing_for
from mlx_ltx_vae.backend.machine import Backend, Machine
from mlx_ltx_vae.backend.mlx_utils import DTYPES, in_words
from mlx_ltx_vae.networks import layers
from mlx_ltx_vae.networks.base import Decoder
from mlx_ltx_vae.networks.convolution import conv3d
from mlx_ltx_vae.networks.convolution.rules import TAPS, ConvShape, winograd_elements, winograd_positions
from mlx_ltx_vae.options import PlanOptions
from mlx_ltx_vae.planning.planner import plan_decode
from mlx_ltx_vae.shapes import Axis
from mlx_ltx_vae.streaming import window
from mlx_ltx_vae.streaming.context import Stage, StreamContext
from mlx_ltx_vae.streaming.driver import Schedule, run_stream
from mlx_ltx_vae.streaming.window import TraceableCache
from mlx_ltx_vae.units import MB

_COPIES = ("concatenate", "pad", "stack", "tile")  # functions of MLX
_ARRAY = mx.array
_HELPERS = (Path(__file__).name, "mlx_utils.py")  # files whose functions copy for their callers
_WINOGRAD = "MLX's Winograd"
_TURNS = 40

Snapshot = TypeVar("Snapshot")


def copies_jobs() -> list[Job]:
    """Return the jobs of a decode by the published LTX-2.3, and of copies of its frames on this machine."""
    case = Case(base_width=128, dtype="bfloat16", width=768, height=512, frames=121)
    return [Job(copies, case, once=True), Job(words, case)]


def words(case: Case) -> dict[str, Any]:
    """Time copies of frames, as many and as wide as the last layers of the case have, in words and in elements.

    Returns:
        ratios: the processor time in words, of that in elements, by the function that copies.
    """
    dtype = DTYPES[case.dtype or "float32"]
    frames = mx.zeros((1, 6, case.height // 8, case.width // 8, case.base_width), dtype)
    cached, new = mx.zeros((1, 2, *frames.shape[2:]), dtype), mx.zeros((1, 4, *frames.shape[2:]), dtype)
    mx.eval(frames, cached, new)
    copying: dict[str, Callable[[], mx.array]] = {
        "window._join": lambda: window._join([cached, new], Axis.TIME),
        "window._copy": lambda: window._copy(new, Axis.TIME, 2),
        "conv3d.join_frames": lambda: conv3d.join_frames(frames),
        "conv3d.pad": lambda: conv3d.pad(frames, (0, 1, 1)),
        "layers.interleave": lambda: layers.interleave(frames, (2, 2, 2)),
    }
    ratios = {}
    for name, copy in copying.items():
        seconds = [0.0, 0.0]
        for turn in range(2 * _TURNS):
            with _in_elements() if turn % 2 else nullcontext():
                start = time.process_time()
                mx.eval(copy())
                seconds[turn % 2] += time.process_time() - start
        ratios[name] = seconds[0] / seconds[1]
    return {"ratios": ratios}


@contextmanager
def _in_elements() -> Iterator[None]:
    """Let the package copy one by one what it copies in words."""

    def move_elements(move: Callable[..., mx.array], *arrays: mx.array, run: int | None = None) -> mx.array:
        return move(*arrays)

    with ExitStack() as stack:
        for module in (window, layers, conv3d):
            stack.enter_context(patch.object(module, "in_words", move_elements))
        yield


def copies(case: Case) -> dict[str, Any]:
    """Count a decode of a case by time as on Metal, with random weights.

    Returns:
        chunk of the plan; copied_bytes and kernel_bytes of a latent frame in the middle of a long clip, by the function
        that has them copied or computed.
    """
    with computing_for(Backend.METAL), recorded() as counts:
        network = prepared_decoder(case)
        chunk, (earlier, later) = steady_state(network, case, Unevaluated(), lambda: [count.copy() for count in counts])
    copied, computed = (
        {name: count / chunk for name, count in (after - before).items()}
        for before, after in zip(earlier, later, strict=True)
    )
    return {"chunk": chunk, "copied_bytes": copied, "kernel_bytes": computed}


class Unevaluated(Schedule):
    """Steps whose results are replaced by others of their shape, so that no graph grows and nothing is computed.

    Attributes:
        steps: the number of steps.
        seconds: the processor time in which this thread made their graphs.
    """

    def __init__(self) -> None:
        super().__init__(Axis.TIME)
        self.steps, self.seconds = 0, 0.0

    def compute(self, stage: Stage, inputs: list[mx.array], last: bool) -> list[mx.array]:
        start = time.thread_time()
        result = stage.step(inputs.pop() if inputs else None, last)
        self.seconds += time.thread_time() - start
        self.steps += 1
        for cache in cast("list[TraceableCache]", stage.caches):
            cache.state = cache.state._replace(
                arrays=tuple(mx.zeros(array.shape, array.dtype) for array in cache.arrays)
            )
        return [] if result is None else [mx.zeros(result.shape, result.dtype)]


def prepared_decoder(case: Case) -> Decoder:
    """Return the decoder of a case with random weights, prepared for the backend that is computed for."""
    network = make_random_network(case)
    conv3d.prepare(network, keeps_dtype=False)
    return cast(Decoder, network)


def steady_state(
    network: Decoder, case: Case, schedule: Unevaluated, measure: Callable[[], Snapshot]
) -> tuple[int, list[Snapshot]]:
    """Run a decode of a case by time for the backend that is computed for.

    Returns:
        The latent frames of a chunk; and what `measure` returns before and after a chunk in the middle of a long clip.
    """
    grid = network.spec.scale.latent_grid((case.frames, case.height, case.width))
    machine = Machine(backend(), itemsize=network.dtype.size)
    plan = plan_decode(
        network.spec, (1, network.spec.in_channels, *grid), machine, PlanOptions(mode="exact", order="time")
    )
    piece = mx.zeros((1, plan.chunk, *grid[1:], network.spec.in_channels), network.dtype)
    warm_up = 1 + math.ceil(plan.lookahead / plan.chunk)  # pieces after which each one passes all layers
    snapshots: list[Snapshot] = []

    def pieces() -> Iterator[mx.array]:
        for _ in range(warm_up + 2):
            snapshots.append(measure())
            yield piece

    for _ in run_stream(network.stages(StreamContext()), pieces(), steps=plan.steps, schedule=schedule):
        pass
    return plan.chunk, snapshots[-2:]


@contextmanager
def recorded() -> Iterator[tuple[Counter[str], Counter[str]]]:
    """Count the bytes read and written by copies and by kernels while the block runs, by the function that asks."""
    copied: Counter[str] = Counter()
    computed: Counter[str] = Counter()
    slices: dict[int, mx.array] = {}  # by their ids, which are theirs while they are here
    transposed: dict[int, mx.array] = {}
    slice_, transpose, reshape = _ARRAY.__getitem__, _ARRAY.transpose, _ARRAY.reshape
    contiguous, convolve = mx.contiguous, mx.conv2d

    def counting(counts: Counter[str], function: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def count(*arguments: Any, **options: Any) -> mx.array:
            result = function(*arguments, **options)
            read = sum(array.nbytes for array in arguments if isinstance(array, _ARRAY)) if counts is computed else 0
            counts[_caller()] += result.nbytes + (read or result.nbytes)
            return result

        return count

    def viewing(views: dict[int, mx.array], function: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def view(array: mx.array, *arguments: Any) -> mx.array:
            result = function(array, *arguments)
            if function is transpose or result.shape != array.shape:
                views[id(result)] = result
            return result

        return view

    def copying(views: dict[int, mx.array], function: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def copy(array: mx.array, *arguments: Any) -> mx.array:
            copied[_caller()] += 2 * array.nbytes if id(array) in views else 0
            return function(array, *arguments)

        return copy

    def convolving(frames: mx.array, weight: mx.array, *arguments: Any, **options: Any) -> mx.array:
        result = convolve(frames, weight, *arguments, **options)
        count, height, width, channels = result.shape
        shape = ConvShape((count, height, width), frames.shape[-1] // TAPS, channels)
        if winograd_elements(shape):
            # MLX fills an array with zeros, and copies the frames into it.
            zeros = count * winograd_positions(shape.grid) * frames.shape[-1] * frames.itemsize
            copied[_WINOGRAD] += zeros + 2 * frames.nbytes
        return result

    with ExitStack() as stack:
        for name in _COPIES:
            stack.enter_context(patch.object(mx, name, counting(copied, getattr(mx, name))))
        for owner, name in ((mx.fast, "rms_norm"), (conv3d, "scale_to_half"), (conv3d, "add_bias")):
            stack.enter_context(patch.object(owner, name, counting(computed, getattr(owner, name))))
        kernels = {dtype: counting(computed, kernel) for dtype, kernel in layers._SILU_KERNELS.items()}
        stack.enter_context(patch.object(layers, "_SILU_KERNELS", kernels))
        stack.enter_context(patch.object(mx, "conv2d", convolving))
        stack.enter_context(patch.object(mx, "contiguous", copying(slices, contiguous)))
        stack.enter_context(patch.object(_ARRAY, "__getitem__", viewing(slices, slice_)))
        stack.enter_context(patch.object(_ARRAY, "transpose", viewing(transposed, transpose)))
        stack.enter_context(patch.object(_ARRAY, "reshape", copying(transposed, reshape)))
        yield copied, computed


def _caller() -> str:
    """Return module and name of the function for which an operation is made."""
    frame = sys._getframe(2)
    while (outer := frame.f_back) is not None and (
        Path(frame.f_code.co_filename).name in _HELPERS
        or frame.f_code.co_name.startswith("<")
        or outer.f_code.co_name == in_words.__name__
    ):
        frame = outer
    return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"


def copies_table(results: list[list[Run]]) -> str:
    """Bytes of one latent frame in the middle of a clip, the most first, and their sums; and the ratios of times."""
    ((run,), turns) = results
    ratios = {name: [turn["ratios"][name] for turn in turns] for name in turns[0]["ratios"]}
    rows = [
        {
            "what": kind,
            "in": name,
            "MB per latent frame": f"{count / MB:.1f}",
            "in words": f"{statistics.median(ratios[name]):.2f}" if kind == "copied" and name in ratios else "",
        }
        for kind in ("copied", "kernel")
        for name, count in [
            *sorted(run[f"{kind}_bytes"].items(), key=lambda item: -item[1]),
            ("all", sum(run[f"{kind}_bytes"].values())),
        ]
    ]
    notes = [
        "Read and written, by the shapes of the steps of a decode by time on Metal, which are not computed.",
        "in words: the processor time of such a copy here in words of 8 bytes, of that in elements.",
        f"{run['width']}x{run['height']}, {run['frames']} frames, chunks of {run['chunk']} latent frames.",
    ]
    return table(rows, notes)
