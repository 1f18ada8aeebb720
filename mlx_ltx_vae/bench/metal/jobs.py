"""What is measured: a list of jobs, each in a fresh process, and where its result belongs in the document."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ...backend.device import this_machine
from ...backend.dtypes import DTYPES
from ...backend.machine import Backend
from ...planning.plan import DecodePlan
from ...planning.planner import plan_decode
from ..case import Case, load_config, load_spec
from ..processes import Job, Run
from .convolutions import NO_WINOGRAD, ONE_FRAME, convolution, rule_for
from .decodes import accuracy, ranges, timed_decode
from .elementwise import elementwise
from .system import TF32
from .verdicts import AGAIN, AS_PLANNED, EXACT, NO_WINOGRAD_EXACT, STRICT
from .workload import ConvKind, conv_kinds

#: Bytes that MLX's buffer cache may have in part E.
CACHE_LIMITS = (500_000_000, 1_000_000_000, 2_000_000_000, 4_000_000_000)

# What `run_fresh` adds to what was measured.
_CASE_FIELDS = {"task", *(each.name for each in fields(Case))}

_HALF = "bfloat16"
_SHORT_FRAMES = 17  # of parts F and G
_ELEMENTWISE_SHAPES = 2


@dataclass(frozen=True)
class Task:
    """A job, and the part of the document that its result belongs to.

    Attributes:
        known: fields of the result that are known before it runs.
        is_part: whether the job returns the whole part, as `runs`.
    """

    part: str
    job: Job
    known: dict[str, Any]
    is_part: bool = False

    @property
    def name(self) -> str:
        """What it measures."""
        return self.known.get("name") or self.part

    def result(self, run: Run) -> list[dict[str, Any]]:
        """The entries of the part, from what `run_fresh` returned. A job of part F that only saves has none."""
        measured = {name: value for name, value in run.items() if name not in _CASE_FIELDS}
        if self.is_part:
            return measured["runs"]
        return [{**self.known, **measured}] if measured else []


@dataclass(frozen=True)
class Measurement:
    """What to measure.

    Attributes:
        case: the decode: exact, by time, in the checkpoint's dtype, or bfloat16 for random weights.
        backend: of the device.
        forms: of convolutions, keys of `convolutions.FORMS`.
        is_quick: convolutions only in bfloat16, and fewer decodes.
    """

    case: Case
    backend: Backend
    forms: tuple[str, ...]
    is_quick: bool = False

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Of convolutions."""
        return (_HALF,) if self.is_quick else (_HALF, "float16")

    def plan(self) -> DecodePlan:
        """The plan of the decode."""
        case, config = self.case, load_config(self.case)
        grid = config.scale.latent_grid((case.frames, case.height, case.width))
        machine = this_machine(DTYPES[case.dtype or _HALF])
        shape = (1, config.latent_channels, *grid)
        return plan_decode(load_spec(case), shape, machine, mode="exact", order="time")

    def kinds(self) -> list[ConvKind]:
        """The distinct convolutions of the decode."""
        return conv_kinds(load_spec(self.case), self.plan())

    def tasks(self, reference: str) -> list[Task]:
        """Everything to run, in order.

        Args:
            reference: the file in which part F saves the pixels that it compares with.
        """
        kinds = self.kinds()
        return [
            *self._convolutions(kinds),
            self._elementwise(kinds),
            *self._decodes(),
            *self._accuracy(reference),
            Task("ranges", Job(ranges, self._short), {}, is_part=True),
        ]

    @property
    def _short(self) -> Case:
        return replace(self.case, frames=min(self.case.frames, _SHORT_FRAMES))

    def _convolutions(self, kinds: Sequence[ConvKind]) -> Iterator[Task]:
        for kind in kinds:
            in_half = self.backend is Backend.METAL and kind.is_normalized and "float16" in self.dtypes
            known = {
                **asdict(kind),
                "rule": {dtype: rule_for(kind, dtype, self.backend) for dtype in self.dtypes},
                "operands": "float16" if in_half else _HALF,
            }
            options = {"kind": asdict(kind), "forms": list(self.forms), "dtypes": list(self.dtypes)}
            yield Task("convolutions", Job(convolution, self.case, options), known)

    def _elementwise(self, kinds: Sequence[ConvKind]) -> Task:
        """On the inputs of the normalized convolutions that move most."""
        moved = sorted(
            (kind for kind in kinds if kind.is_normalized),
            key=lambda kind: -kind.calls * kind.shape.results * kind.in_channels,
        )
        shapes = list(dict.fromkeys((*kind.shape.grid, kind.in_channels) for kind in moved))[:_ELEMENTWISE_SHAPES]
        return Task("elementwise", Job(elementwise, self.case, {"shapes": shapes}), {}, is_part=True)

    def _decodes(self) -> Iterator[Task]:
        case = self.case
        strict = replace(case, dtype=_HALF, keeps_dtype=True)

        def task(name: str, case: Case = case, variables: dict[str, str] | None = None, **options: Any) -> Task:
            known = {
                "name": name,
                "frames": case.frames,
                "variables": variables or {},
                "cache_limit": options.get("cache_limit"),
            }
            return Task("decodes", Job(timed_decode, case, options, variables=variables or {}), known)

        yield task(AS_PLANNED)
        yield task("mx.conv3d", replace(case, formulation="conv3d"))
        yield task("no Winograd", variables=NO_WINOGRAD)
        planned = self.plan().prefetch
        if self.is_quick:
            yield task("1 step ahead" if planned == 0 else "0 steps ahead", prefetch=0 if planned else 1)
            return
        yield task("tile batch 1", variables=ONE_FRAME)
        for chunk in (2, 4):
            yield task(f"chunk {chunk}", replace(case, chunk=chunk))
        for prefetch in (0, 1, 2):
            if prefetch != planned:
                yield task(f"{prefetch} step{'' if prefetch == 1 else 's'} ahead", prefetch=prefetch)
        yield task("float16", replace(case, dtype="float16"))
        yield task(STRICT, strict)
        for limit in CACHE_LIMITS:
            yield task(f"cache {limit / 1e9:g} GB", cache_limit=limit)
        yield task(AGAIN)

    def _accuracy(self, reference: str) -> Iterator[Task]:
        case = self._short
        strict = replace(case, dtype=_HALF, keeps_dtype=True)
        wide = replace(case, dtype="float32")

        def task(name: str, case: Case = case, variables: dict[str, str] | None = None, **options: Any) -> Task:
            options = options or {"reference": reference}
            known = {"name": name, "variables": variables or {}, "frames": case.frames}
            return Task("accuracy", Job(accuracy, case, options, variables=variables or {}), known)

        by_conv3d = replace(wide, formulation="conv3d")
        yield task("reference", by_conv3d, {**NO_WINOGRAD, TF32: "0"}, save=reference)
        yield task(EXACT)
        yield task(STRICT, strict)
        if self.is_quick:
            return
        yield task("single pass", replace(case, mode="single"))
        yield task(NO_WINOGRAD_EXACT, variables=NO_WINOGRAD)
        yield task("bfloat16 in Winograd", replace(strict, formulation="conv3d"))
        yield task("float16", replace(case, dtype="float16"))
        yield task("float32", wide)
