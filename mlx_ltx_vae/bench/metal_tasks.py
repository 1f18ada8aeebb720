"""The questions that only a Mac can answer: decodes that differ from the one as planned, each in a fresh process."""

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import mlx.core as mx
import mlx.nn as nn

from ..backend.device import backend
from ..backend.mlx_utils import to_float
from ..models.conv_spec import Activation, ConvSpec
from ..models.convolution.conv3d import Conv3d
from ..models.convolution.products import Padding
from ..models.convolution.rules import ConvShape, Formulation, choose
from ..models.diffusion_decoder.neighborhood import BLOCKS
from ..models.layers.conv import CausalConv3d
from ..units import GB
from .command import Job
from .decoding import Case, Decode, decode, open_case
from .parsers import FORM_NAMES


class Way(NamedTuple):
    """How a decode differs from the one as planned: in its case, and in the variables of MLX."""

    changes: Mapping[str, Any] = {}
    variables: Mapping[str, str] = {}
    is_quick: bool = False


# MLX reads these variables at every convolution. Winograd takes one frame at a time in the package's runs; 0 leaves
# their number to MLX.
_NO_WINOGRAD, _MLX_TILE_BATCH = {"MLX_CONV_WINOGRAD": "0"}, {"MLX_CONV_WINOGRAD_TILE_BATCH": "0"}
_STRICT = {"dtype": "bfloat16", "keeps_dtype": True}
_JOINED = {"formulation": Formulation.JOINED.value}

AS_PLANNED, RULE = "as planned", FORM_NAMES[0]
#: The decodes whose convolutions are timed, each in one formulation.
FORMS = dict(
    zip(
        FORM_NAMES,
        [
            Way(),
            *(Way({"formulation": each.value}) for each in Formulation),
            Way(_JOINED, _MLX_TILE_BATCH),
            Way(_JOINED, _NO_WINOGRAD),
        ],
        strict=True,
    )
)
#: Those that a GPU is measured with; a CPU is measured with all.
GPU_FORMS = [name for name in FORMS if name not in ("taps", "columns")]
#: The decodes that are timed.
DECODES = {
    AS_PLANNED: Way(is_quick=True),
    "mx.conv3d": Way({"formulation": "conv3d"}, is_quick=True),
    "no Winograd": Way(variables=_NO_WINOGRAD, is_quick=True),
    "MLX's tile batch": Way(variables=_MLX_TILE_BATCH),
    "chunk 2": Way({"chunk": 2}),
    "chunk 4": Way({"chunk": 4}),
    "0 steps ahead": Way({"prefetch": 0}, is_quick=True),
    "1 step ahead": Way({"prefetch": 1}, is_quick=True),
    "2 steps ahead": Way({"prefetch": 2}),
    "float16": Way({"dtype": "float16"}),
    "bfloat16 given": Way(_STRICT),
    "by rows": Way({"order": "rows"}),
    "tiled": Way({"mode": "tiled"}),
    **{f"cache {size:g} GB": Way({"cache_limit": int(size * GB)}) for size in (0.5, 1, 2, 4)},
    f"{AS_PLANNED}, again": Way(),
}
#: The decodes whose pixels are compared with those of the first.
ACCURACY = {
    "reference": Way({"dtype": "float32"}, {**_NO_WINOGRAD, "MLX_ENABLE_TF32": "0"}, is_quick=True),
    "exact": Way(is_quick=True),
    "bfloat16 given": Way(_STRICT, is_quick=True),
    "single pass": Way({"mode": "single"}),
    "exact, no Winograd": Way(variables=_NO_WINOGRAD),
    "bfloat16 in Winograd": Way({**_STRICT, "formulation": "conv3d"}),
    "float16": Way({"dtype": "float16"}),
    "float32": Way({"dtype": "float32"}),
}
#: Queries of a block of the diffusion decoder's attention, along each axis.
BLOCK_SIZES = (3, 4, 5, 6, 8)

_SHORT_FRAMES = 17  # of what needs no long clip


class Task(NamedTuple):
    """A job, the part of the document that its result belongs to, and what is known of it before it runs."""

    part: str
    job: Job
    known: Mapping[str, Any]


def make_tasks(case: Case, forms: Sequence[str], file: str, *, is_quick: bool) -> Iterator[Task]:
    """Everything to run, in order.

    Args:
        case: the decode: exact, by time, in the checkpoint's dtype, or bfloat16 for random weights.
        forms: of convolutions, keys of `FORMS`.
        file: for the pixels that others are compared with.
        is_quick: fewer decodes.
    """
    short = replace(case, frames=min(case.frames, _SHORT_FRAMES))
    has_forms = any(isinstance(layer, ConvSpec) for layer in open_case(case).spec("decoder").layers)

    def tasks(part: str, ways: Mapping[str, Way], case: Case, measure: Any = decode, **options: Any) -> Iterator[Task]:
        for name, (changes, variables, is_first) in ways.items():
            if (is_first or not is_quick) and (has_forms or "formulation" not in changes):
                job = Job(measure, replace(case, **changes), options, variables=variables)
                yield Task(part, job, {"name": name, "variables": variables})

    if has_forms:
        timed = {name: FORMS[name]._replace(is_quick=True) for name in forms}
        yield from tasks("convolutions", timed, case, convolutions)
    yield from tasks("decodes", DECODES, case, warm_up=True, sampled=True)
    for task in tasks("accuracy", ACCURACY, short, in_float=True):
        use = "save" if task.known["name"] == "reference" else "reference"
        yield task._replace(job=replace(task.job, options={**task.job.options, use: file}))
    diffusion = replace(short, model=None, generation="ltx-2.5-diffusion", dtype="bfloat16", order="auto")
    for size in BLOCK_SIZES if not is_quick else ():
        known = {"name": f"blocks of {size}", "size": size, "is_ours": size == BLOCKS[backend()]}
        yield Task("attention", Job(decode_in_blocks, diffusion, {"size": size}), known)


def decode_in_blocks(case: Case, *, size: int) -> dict[str, Any]:
    """Decode with blocks of another size than the package's, for the rest of this process."""
    BLOCKS[backend()] = size
    return decode(case, warm_up=True)


def convolutions(case: Case) -> dict[str, Any]:
    """Decode twice, and in the second decode wait for the device before and after each convolution.

    Returns:
        runs: for each convolution layer, in_channels, out_channels, grid, the (T, H, W) of
        its largest output, is_normalized (its input comes from a norm), calls, seconds of all calls (their median times
        their number), rule (the formulation that the package chooses), and the largest absolute values input and
        output, None if they are not finite.
    """
    subject = Decode.from_case(case)
    for _ in subject.run():  # which compiles kernels
        pass
    layers = [each for each in cast(nn.Module, subject.vae.decoder).modules() if isinstance(each, CausalConv3d)]
    timed = [_TimedConv(layer.conv) for layer in layers]
    for layer, conv in zip(layers, timed, strict=True):
        layer.update_modules({"conv": conv})
    for _ in subject.run():
        pass
    runs = [
        {
            "layer": layer.spec.name,
            "in_channels": layer.spec.in_channels,
            "out_channels": layer.spec.conv_channels,
            "is_normalized": layer.spec.activation is not Activation.NONE,
            **conv.measured(),
        }
        for layer, conv in zip(layers, timed, strict=True)
    ]
    return {"runs": runs}


class _TimedConv(nn.Module):
    """A convolution that notes of each call the time, the output's shape and the largest absolute values."""

    def __init__(self, conv: Conv3d) -> None:
        super().__init__()
        self._conv = conv
        self._calls: list[tuple[float, tuple[int, ...], float, float]] = []
        self.dtype, self.operands = conv.dtype, conv.operands
        self.bias = conv.bias  # by which a network tells its dtype

    def __call__(self, frames: mx.array, padding: Padding, skip: mx.array | None = None) -> mx.array:
        mx.eval([frames] if skip is None else [frames, skip])
        mx.synchronize()
        start = time.perf_counter()
        output = self._conv(frames, padding, skip)
        mx.eval(output)
        mx.synchronize()
        seconds = time.perf_counter() - start
        self._calls.append((seconds, output.shape, _largest(frames), _largest(output)))
        return output

    def measured(self) -> dict[str, Any]:
        seconds, shapes, *sizes = zip(*self._calls, strict=True)
        _, *grid, out_channels = max(shapes)
        shape = ConvShape((grid[0], grid[1], grid[2]), self._conv.weight.shape[-1], out_channels)
        rule = choose(shape, backend(), allows_winograd=self._conv.weight.dtype != mx.bfloat16)
        largest = (max(each) if all(map(math.isfinite, each)) else None for each in sizes)
        return {
            "grid": grid,
            "calls": len(seconds),
            "seconds": len(seconds) * statistics.median(seconds),
            "rule": rule.value,
            **dict(zip(("input", "output"), largest, strict=True)),
        }


def _largest(array: mx.array) -> float:
    return to_float(mx.abs(array.astype(mx.float32)).max())
