"""What is measured: tasks, each in a fresh process, and where the result of each belongs in the document."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from ...backend.device import backend, this_machine
from ...backend.machine import Backend
from ...backend.mlx_utils import DTYPES
from ...models.convolution.rules import ConvShape, choose
from ...models.specs import Activation, ConvSpec, NetworkSpec
from ...models.video_vae.network_specs import decoder_spec
from ...planning.memory import layer_pieces, step_results
from ...planning.plan import DecodePlan
from ...planning.planner import plan_decode
from ...units import GB
from ..case import Case, load_config, stream_run
from ..decoding import decode
from ..processes import Job
from .attention import SIZES, neighborhood
from .kernels import MLX_TILE_BATCH, NO_WINOGRAD, ConvKind, convolution, elementwise
from .ranges import ranges

_HALF = "bfloat16"
_SHORT_FRAMES = 17  # of accuracy and ranges


class Way(NamedTuple):
    """How a decode differs from the one as planned: in its case, and in the variables of MLX."""

    changes: Mapping[str, Any] = {}
    variables: Mapping[str, str] = {}
    is_quick: bool = False


_BY_CONV3D = {"formulation": "conv3d"}
_STRICT = {"dtype": _HALF, "keeps_dtype": True}

#: The decodes that are timed.
DECODES = {
    "as planned": Way(is_quick=True),
    "mx.conv3d": Way(_BY_CONV3D, is_quick=True),
    "no Winograd": Way(variables=NO_WINOGRAD, is_quick=True),
    "MLX's tile batch": Way(variables=MLX_TILE_BATCH),
    "chunk 2": Way({"chunk": 2}),
    "chunk 4": Way({"chunk": 4}),
    "0 steps ahead": Way({"prefetch": 0}, is_quick=True),
    "1 step ahead": Way({"prefetch": 1}, is_quick=True),
    "2 steps ahead": Way({"prefetch": 2}),
    "float16": Way({"dtype": "float16"}),
    "bfloat16 given": Way(_STRICT),
    **{f"cache {size:g} GB": Way({"cache_limit": int(size * GB)}) for size in (0.5, 1, 2, 4)},
    "as planned, again": Way(),
}
#: The decodes whose pixels are compared with those of the first.
ACCURACY = {
    "reference": Way({"dtype": "float32", **_BY_CONV3D}, {**NO_WINOGRAD, "MLX_ENABLE_TF32": "0"}, is_quick=True),
    "exact": Way(is_quick=True),
    "bfloat16 given": Way(_STRICT, is_quick=True),
    "single pass": Way({"mode": "single"}),
    "exact, no Winograd": Way(variables=NO_WINOGRAD),
    "bfloat16 in Winograd": Way({**_STRICT, **_BY_CONV3D}),
    "float16": Way({"dtype": "float16"}),
    "float32": Way({"dtype": "float32"}),
}


class Task(NamedTuple):
    """A job, the part of the document that its result belongs to, and what is known of the entry before it runs.

    Nothing is known of a job that returns the whole part, as `runs`.
    """

    part: str
    job: Job
    known: Mapping[str, Any] = {}


def plan_case(case: Case) -> tuple[NetworkSpec, DecodePlan]:
    """The decoder of a case, and the plan of its exact decode by time."""
    config = load_config(case)
    shape = (1, config.latent_channels, *config.scale.latent_grid((case.frames, case.height, case.width)))
    spec, machine = decoder_spec(config), this_machine(DTYPES[case.dtype or _HALF])
    return spec, plan_decode(spec, shape, machine, mode="exact", order="time")


def make_tasks(case: Case, forms: Sequence[str], file: str, *, is_quick: bool) -> Iterator[Task]:
    """Everything to run, in order.

    Args:
        case: the decode: exact, by time, in the checkpoint's dtype, or bfloat16 for random weights.
        forms: of convolutions, keys of `kernels.FORMS`.
        file: for the pixels that others are compared with.
        is_quick: convolutions only in the dtype in which the package takes their operands, and fewer decodes.
    """
    spec, plan = plan_case(case)
    kinds = conv_kinds(spec, plan)
    for kind in kinds:
        operands = "float16" if backend() is Backend.METAL else _HALF
        dtypes = [operands] if is_quick else [_HALF, "float16"]
        rule = {dtype: choose(kind.shape, backend(), allows_winograd=dtype != _HALF).value for dtype in dtypes}
        known = {**asdict(kind), "rule": rule, "operands": operands}
        options = {"kind": asdict(kind), "forms": list(forms), "dtypes": dtypes}
        yield Task("convolutions", Job(convolution, case, options), known)
    # The two inputs of normalized convolutions that are most.
    reads = {(*kind.shape.grid, kind.in_channels): kind.calls for kind in kinds if kind.is_normalized}
    shapes = sorted(reads, key=lambda shape: -reads[shape] * math.prod(shape))[:2]
    yield Task("elementwise", Job(elementwise, case, {"shapes": shapes}))
    if not is_quick:
        yield Task("attention", Job(neighborhood, case, {"sizes": SIZES}))
    for name, way in DECODES.items():
        if way.changes.get("prefetch") != plan.prefetch and (way.is_quick or not is_quick):
            yield _decode("decodes", name, case, way, warm_up=True, sampled=True)
    short = replace(case, frames=min(case.frames, _SHORT_FRAMES))
    for name, way in ACCURACY.items():
        if way.is_quick or not is_quick:
            use = "save" if name == "reference" else "reference"
            yield _decode("accuracy", name, short, way, in_float=True, **{use: file})
    yield Task("ranges", Job(ranges, short))


def _decode(part: str, name: str, case: Case, way: Way, **options: Any) -> Task:
    known = {"name": name, "frames": case.frames, "variables": way.variables}
    return Task(part, Job(decode, replace(case, **way.changes), options, variables=way.variables), known)


def conv_calls(spec: NetworkSpec, plan: DecodePlan) -> list[tuple[ConvSpec, ConvShape]]:
    """Every call of a convolution in an exact decode by time, in the order of the layers."""
    run, grid = stream_run(plan), plan.latent_shape.grid
    calls = []
    for (layer, (_, height, width)), pieces in zip(spec.walk(grid), layer_pieces(spec, grid, run), strict=False):
        if isinstance(layer, ConvSpec):
            convolution_alone = replace(layer, up=(1, 1, 1), trim=0)
            for frames in step_results(pieces, convolution_alone, run.axis):
                calls.append((layer, ConvShape((frames, height, width), layer.in_channels, layer.conv_channels)))
    return calls


def conv_kinds(spec: NetworkSpec, plan: DecodePlan) -> list[ConvKind]:
    """The distinct convolutions of an exact decode by time, smallest pictures first."""
    lengths: dict[tuple[Any, ...], Counter[int]] = defaultdict(Counter)
    for layer, ((frames, *picture), inputs, outputs, _) in conv_calls(spec, plan):
        key = (*picture, inputs, outputs, layer.activation is not Activation.NONE)
        lengths[key][frames] += 1
    kinds = []
    for (height, width, inputs, outputs, is_normalized), counts in sorted(lengths.items()):
        frames = max(counts, key=lambda length: (length * counts[length], length))
        calls = sum(length * count for length, count in counts.items()) / frames
        kinds.append(ConvKind(inputs, outputs, height, width, frames, calls, is_normalized))
    return kinds
