"""One convolution in every formulation: time, accuracy and scratch memory. Part B."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from ...backend.device import backend
from ...backend.dtypes import DTYPES
from ...backend.machine import Backend
from ...backend.mlx_utils import to_float
from ...errors import describe_error
from ...metrics import max_difference
from ...models.convolution import formulations
from ...models.convolution.rules import TAPS, Formulation, KernelLayout, choose, layout_for, scratch_bytes
from ..case import Case
from .system import TILE_BATCH, WINOGRAD, variables
from .workload import ConvKind

_PADDING = (0, 1, 1)
_ROUNDS = 3
_ROUND_SECONDS = 0.06
_MAX_CALLS = 10  # of a round


@dataclass(frozen=True)
class Form:
    """A way to compute a convolution.

    Attributes:
        variables: of MLX, while it runs.
    """

    formulation: Formulation
    variables: Mapping[str, str] = field(default_factory=dict)


NO_WINOGRAD, ONE_FRAME = {WINOGRAD: "0"}, {TILE_BATCH: "1"}

#: All ways by name. Those without variables are named like their formulation.
FORMS = {
    "conv3d": Form(Formulation.CONV3D),
    "joined": Form(Formulation.JOINED),
    "joined, tile batch 1": Form(Formulation.JOINED, ONE_FRAME),
    "joined, no Winograd": Form(Formulation.JOINED, NO_WINOGRAD),
    "rows": Form(Formulation.ROWS),
    "taps": Form(Formulation.TAPS),
    "columns": Form(Formulation.COLUMNS),
}

#: Those that a GPU is measured with; a CPU is measured with all.
GPU_FORMS = tuple(name for name in FORMS if name not in ("taps", "columns"))


def convolution(
    case: Case, *, kind: Mapping[str, Any], forms: Sequence[str], dtypes: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Measure one convolution in every form and dtype, in turns.

    Args:
        case: not used: what to measure is in `kind`, the fields of a `ConvKind`.
        forms: keys of `FORMS`.

    Returns:
        runs: for each dtype and form its dtype, form, `seconds` (medians of one call), tflops, `rms` (the error against
        a float32 `mx.conv3d` without Winograd of the same operands, relative to that result's rms), `largest` (error,
        relative in the same way), scratch_bytes and planned_scratch_bytes (both with the output); or dtype, form and
        `error`. Numbers that are not finite are None.
    """
    measured = ConvKind(**kind)
    return {"runs": [run for dtype in dtypes for run in _measure(measured, dtype, forms)]}


def rule_for(kind: ConvKind, dtype: str, on: Backend) -> str:
    """The form that the package chooses on a backend for operands of a dtype."""
    return choose(kind.shape, on, allows_winograd=dtype != "bfloat16").value


def _measure(kind: ConvKind, dtype_name: str, forms: Sequence[str]) -> list[dict[str, Any]]:
    """Runs in one dtype."""
    dtype = DTYPES[dtype_name]
    frames, weight = _operands(kind, dtype)
    with variables(NO_WINOGRAD):
        reference = _call(FORMS["conv3d"], frames.astype(mx.float32), weight.astype(mx.float32))()
        mx.eval(reference)
    runs: dict[str, dict[str, Any]] = {}
    calls: dict[str, Callable[[], mx.array]] = {}
    for name in forms:
        run = runs[name] = {"dtype": dtype_name, "form": name}
        try:
            call = _call(FORMS[name], frames, weight)
            with variables(FORMS[name].variables):
                result, run["scratch_bytes"] = _peak(call)
                run["planned_scratch_bytes"] = _planned(kind, FORMS[name], dtype)
                run |= _errors(result, reference)
                del result
            calls[name] = call
        except RuntimeError as error:  # of the device: the other forms may run
            run["error"] = describe_error(error)
    for name, seconds in _time(calls).items():
        runs[name] |= {"seconds": seconds, "tflops": kind.operations / seconds / 1e12}
    return list(runs.values())


def _errors(result: mx.array, reference: mx.array) -> dict[str, float | None]:
    """rms and largest error, relative to the reference's rms; None if a result is not finite."""
    size = to_float(mx.sqrt(mx.square(reference).mean()))
    difference = result.astype(mx.float32) - reference
    errors = {"rms": to_float(mx.sqrt(mx.square(difference).mean())), "largest": max_difference(result, reference)}
    return {name: error / size if math.isfinite(error) else None for name, error in errors.items()}


def _operands(kind: ConvKind, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    """Noise behind SiLU, (1, T + 2, H, W, C), and a weight (O, 3, 3, 3, C) that keeps its size."""
    shape = (1, kind.frames + TAPS - 1, kind.height, kind.width, kind.in_channels)
    frames = mx.random.normal(shape, key=mx.random.key(1))
    frames = (frames * mx.sigmoid(frames)).astype(dtype)
    weight = mx.random.normal((kind.out_channels, *[TAPS] * 3, kind.in_channels), key=mx.random.key(2))
    weight = (weight * (kind.in_channels * TAPS**3) ** -0.5).astype(dtype)
    mx.eval(frames, weight)
    return frames, weight


def _call(form: Form, frames: mx.array, weight: mx.array) -> Callable[[], mx.array]:
    """A convolution as the package computes it, without its bias where it has none of its own."""
    formulation = form.formulation
    layout = layout_for(formulation)
    kernel = mx.contiguous(formulations.arrange(weight, KernelLayout.STORED, layout))
    if formulation in formulations.PRODUCTS:
        dtype, product = frames.dtype, formulations.PRODUCTS[formulation]
        bias = mx.zeros((weight.shape[0],))
        mx.eval(kernel, bias)

        def by_products() -> mx.array:
            wide, taps = frames.astype(mx.float32), kernel.astype(mx.float32)
            return product(wide, taps, bias, _PADDING).astype(dtype)

        return by_products
    mx.eval(kernel)
    if formulation is Formulation.CONV3D:
        return lambda: mx.conv3d(frames, kernel, padding=_PADDING)
    return lambda: formulations.UNBIASED[formulation](frames, kernel, _PADDING)


def _planned(kind: ConvKind, form: Form, dtype: mx.Dtype) -> int:
    """Bytes that the package's plans count for it."""
    return scratch_bytes(kind.shape, form.formulation, dtype.size, on_cpu=backend() is Backend.CPU)


def _peak(call: Callable[[], mx.array]) -> tuple[mx.array, int]:
    """The result of a call, evaluated, and the most bytes that it took, with the result."""
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    result = call()
    mx.eval(result)
    return result, mx.get_peak_memory() - before


def _time(calls: Mapping[str, Callable[[], mx.array]]) -> dict[str, float]:
    """Seconds of one call of each: the median of rounds in turns, in each of which several calls overlap."""
    counts = {}
    for name, call in calls.items():
        with variables(FORMS[name].variables):
            counts[name] = max(1, min(_MAX_CALLS, round(_ROUND_SECONDS / max(seconds_of(call, 1), 1e-6))))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            with variables(FORMS[name].variables):
                seconds[name].append(seconds_of(call, counts[name]) / counts[name])
    return {name: statistics.median(each) for name, each in seconds.items()}


def seconds_of(call: Callable[[], mx.array], count: int) -> float:
    """Seconds of `count` calls that are given to the device one after the other."""
    mx.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        result = call()
        mx.async_eval(result)
    mx.eval(result)
    mx.synchronize()
    return time.perf_counter() - start
