"""One convolution in every formulation, and what runs between convolutions."""

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import mlx.core as mx

from ...backend.device import backend
from ...backend.machine import Backend
from ...backend.mlx_utils import DTYPES, to_float
from ...errors import describe_error
from ...metrics import rms
from ...models.convolution.formulations import join_frames
from ...models.convolution.module import Conv3d, add_bias
from ...models.convolution.rules import TAPS, ConvShape, Formulation, scratch_bytes
from ...models.layers.activation import PIXEL_NORM_EPS, activate, pixel_norm, silu
from ..case import Case, FixedRule

Call = Callable[[], mx.array]
Name = TypeVar("Name", str, int)

_PADDING = (0, 1, 1)
_ROUNDS = 3
_ROUND_SECONDS = 0.06
_MAX_CALLS = 10  # of a round
_ELEMENTWISE_ROUNDS, _ELEMENTWISE_CALLS = 5, 10

# MLX reads these variables at every convolution.
_WINOGRAD, _TILE_BATCH = "MLX_CONV_WINOGRAD", "MLX_CONV_WINOGRAD_TILE_BATCH"
NO_WINOGRAD, ONE_FRAME = {_WINOGRAD: "0"}, {_TILE_BATCH: "1"}
#: The frames that Winograd takes at a time are then MLX's choice, and not the one frame of the package's runs.
MLX_TILE_BATCH = {_TILE_BATCH: "0"}
#: All ways to compute a convolution by name, with the variables of MLX while it runs.
FORMS: dict[str, tuple[Formulation, Mapping[str, str]]] = {
    **{formulation.value: (formulation, {}) for formulation in Formulation},
    "joined, tile batch 1": (Formulation.JOINED, ONE_FRAME),
    "joined, no Winograd": (Formulation.JOINED, NO_WINOGRAD),
}
#: Those that a GPU is measured with; a CPU is measured with all.
GPU_FORMS = [name for name in FORMS if name not in ("taps", "columns")]


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the block. Those of MLX's convolutions that are not given are unset."""
    before = dict(os.environ)
    try:
        for name in (_WINOGRAD, _TILE_BATCH):
            os.environ.pop(name, None)
        os.environ.update(values)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@dataclass(frozen=True)
class ConvKind:
    """All convolutions of a decode with the same channels and picture. Plain values, which JSON can represent.

    Attributes:
        height: of the output, as `width` is.
        frames: output frames per call; of several numbers the one that computes most frames.
        calls: calls in the whole clip, if each had `frames`.
        is_normalized: whether the input comes from a norm, so that its size has a bound.
    """

    in_channels: int
    out_channels: int
    height: int
    width: int
    frames: int
    calls: float
    is_normalized: bool

    @property
    def shape(self) -> ConvShape:
        """What the package's rule decides on."""
        return ConvShape((self.frames, self.height, self.width), self.in_channels, self.out_channels)


def convolution(_: Case, *, kind: Mapping[str, Any], forms: Sequence[str], dtypes: Sequence[str]) -> dict[str, Any]:
    """Measure one convolution in every form and dtype, in turns.

    In float16, an input that is not normalized comes in bfloat16 and is scaled, as in a decode.

    Args:
        kind: the fields of a `ConvKind`.
        forms: keys of `FORMS`.

    Returns:
        runs: for each dtype and form its dtype, form, `seconds` (medians of one call), `rms` (the error against
        a float32 `mx.conv3d` without Winograd of the same operands, relative to that result's rms), `largest` (error,
        relative in the same way), scratch_bytes and planned_scratch_bytes (both with the output); or dtype, form and
        `error`. Numbers that are not finite are None.
    """
    return {"runs": [run for dtype in dtypes for run in _measure(ConvKind(**kind), dtype, forms)]}


def _measure(kind: ConvKind, dtype_name: str, forms: Sequence[str]) -> list[dict[str, Any]]:
    dtype = DTYPES[dtype_name]
    is_scaled = dtype == mx.float16 and not kind.is_normalized
    frames, weight = _operands(kind, mx.bfloat16 if is_scaled else dtype)
    with variables(NO_WINOGRAD):
        reference = mx.conv3d(frames.astype(mx.float32), weight.astype(mx.float32), padding=_PADDING)
        mx.eval(reference)
    runs: dict[str, dict[str, Any]] = {}
    calls: dict[str, Call] = {}
    for name in forms:
        formulation, settings = FORMS[name]
        on_cpu = backend() is Backend.CPU
        planned = scratch_bytes(kind.shape, formulation, dtype.size, on_cpu=on_cpu, is_scaled=is_scaled)
        run = runs[name] = {"dtype": dtype_name, "form": name, "planned_scratch_bytes": planned}
        try:
            call = partial(_load(formulation, weight, keeps_dtype=not is_scaled), frames, _PADDING)
            with variables(settings):
                run |= _check(call, reference)
            calls[name] = call
        except RuntimeError as error:  # of the device: the other forms may run
            run["error"] = describe_error(error)
    for name, seconds in median_seconds(calls, FORMS).items():
        runs[name]["seconds"] = seconds
    return list(runs.values())


def _operands(kind: ConvKind, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    """Noise behind SiLU, (1, T + 2, H, W, C), and a weight (O, 3, 3, 3, C) that keeps its size."""
    shape = (1, kind.frames + TAPS - 1, kind.height, kind.width, kind.in_channels)
    frames = mx.random.normal(shape, key=mx.random.key(1))
    frames = (frames * mx.sigmoid(frames)).astype(dtype)
    weight = mx.random.normal((kind.out_channels, *[TAPS] * 3, kind.in_channels), key=mx.random.key(2))
    weight = (weight * (kind.in_channels * TAPS**3) ** -0.5).astype(dtype)
    mx.eval(frames, weight)
    return frames, weight


def _load(formulation: Formulation, weight: mx.array, *, keeps_dtype: bool) -> Conv3d:
    """The package's convolution with this weight and a bias of zeros."""
    out_channels, *_, in_channels = weight.shape
    conv = Conv3d(in_channels, out_channels, rule=FixedRule(formulation))
    conv.weight, conv.bias = weight, mx.zeros((out_channels,), weight.dtype)
    conv.prepare(keeps_dtype=keeps_dtype)
    return conv


def _check(call: Call, reference: mx.array) -> dict[str, float | None]:
    """The most bytes that a call takes, with its result, and the result's errors."""
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    result = call()
    mx.eval(result)
    taken = mx.get_peak_memory() - before
    difference, size = result.astype(mx.float32) - reference, rms(reference)
    errors = {"rms": rms(difference) / size, "largest": to_float(mx.abs(difference).max()) / size}
    return {"scratch_bytes": taken, **{name: each if math.isfinite(each) else None for name, each in errors.items()}}


def median_seconds(
    calls: Mapping[Name, Call], settings: Mapping[Name, tuple[Any, Mapping[str, str]]] | None = None
) -> dict[Name, float]:
    """Seconds of one call of each: the median of rounds in turns, in each of which several calls overlap.

    `settings` has the variables of MLX for each, as `FORMS` has.
    """
    counts = dict.fromkeys(calls, 1)
    seconds: dict[Name, list[float]] = {name: [] for name in calls}
    for turn in range(1 + _ROUNDS):
        for name, call in calls.items():
            with variables(settings[name][1] if settings else {}):
                each = _seconds_of(call, counts[name])
            if turn == 0:
                counts[name] = max(1, min(_MAX_CALLS, round(_ROUND_SECONDS / each)))
            else:
                seconds[name].append(each)
    return {name: statistics.median(each) for name, each in seconds.items()}


def _seconds_of(call: Call, count: int) -> float:
    """Seconds of one of `count` calls that are given to the device one after the other."""
    mx.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        result = call()
        mx.async_eval(result)
    mx.eval(result)
    mx.synchronize()
    return (time.perf_counter() - start) / count


def elementwise(_: Case, *, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Time the operations between convolutions in bfloat16.

    Args:
        shapes: of inputs, (T, H, W, C).

    Returns:
        runs: for each shape and operation shape, operation, is_ours (else another way to compute the one before it),
        seconds, and gb_per_second of the bytes that it must read and write.
    """
    runs = []
    for shape in shapes:
        x = mx.random.normal((1, *shape), key=mx.random.key(0)).astype(mx.bfloat16)
        mx.eval(x)
        for name, (is_ours, arrays, call) in _operations(x).items():
            mx.eval(call())
            seconds = statistics.median(_seconds_of(call, _ELEMENTWISE_CALLS) for _ in range(_ELEMENTWISE_ROUNDS))
            speed = {"seconds": seconds, "gb_per_second": arrays * x.nbytes / seconds / 1e9}
            runs.append({"shape": list(shape), "operation": name, "is_ours": is_ours, **speed})
    return {"runs": runs}


def _operations(x: mx.array) -> dict[str, tuple[bool, int, Call]]:
    """Whether the package uses each, and how many arrays of the input's size it reads and writes."""
    bias = mx.zeros((x.shape[-1],), x.dtype)
    frames = mx.concatenate([x, *[x[:, :1]] * (TAPS - 1)], axis=1)
    mx.eval(bias, frames)
    return {
        "copy (x * 2)": (True, 2, lambda: x * 2),
        "norm": (True, 2, lambda: pixel_norm(x)),
        "norm in plain operations": (False, 2, lambda: _plain_norm(x)),
        "SiLU, float32 inside": (True, 2, lambda: silu(x)),
        "SiLU, bfloat16 inside": (False, 2, lambda: _plain_silu(x)),
        "norm and SiLU to float16": (True, 4, lambda: activate(x, None, mx.float16)),
        "bias and skip": (True, 3, lambda: add_bias(x, bias, x)),
        "bias and skip in two sums": (False, 3, lambda: x + bias + x),
        "join three frames": (True, 2 * TAPS, lambda: join_frames(frames)),
    }


def _plain_norm(x: mx.array) -> mx.array:
    wide = x.astype(mx.float32)
    return (wide * mx.rsqrt(mx.square(wide).mean(axis=-1, keepdims=True) + PIXEL_NORM_EPS)).astype(x.dtype)


@mx.compile
def _plain_silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)
