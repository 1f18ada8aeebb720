"""What `bench` can measure, and how its options say so."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from .against import OURS, against_table, run_against
from .case import Case, Task
from .decoding import decode_table
from .encoding import encode_table
from .others import OTHERS
from .overlap import overlap_table
from .precision import precision_cases, precision_table
from .processes import Run, run_interleaved
from .quality import quality_case, quality_table
from .roofline import roofline_table
from .validation import validation_cases, validation_table

#: The exact mode in a given order goes by the order's name.
ORDERS = ("time", "rows", "columns")

_FRAMES, _LONG = 57, 241


@dataclass(frozen=True)
class Measurement:
    """One kind of measurement.

    Attributes:
        run: measures what the options say.
        table: what of it is printed.
    """

    run: Callable[[Namespace], list[list[Run]]]
    table: Callable[[list[list[Run]]], str]


def choose(options: Namespace) -> Measurement:
    """The measurement that was asked for."""
    if options.against is not None:
        return Measurement(_run_against, against_table)
    return next((known for name, known in _MEASUREMENTS.items() if getattr(options, name)), _DECODING)


def _run(cases: Callable[[Namespace], list[Case]], options: Namespace) -> list[list[Run]]:
    return run_interleaved(cases(options), options.repeat)


def _run_against(options: Namespace) -> list[list[Run]]:
    names = options.against or (*OURS, *OTHERS)
    return run_against(Case(**_shared(options), frames=_one_length(options)), names, options.repeat)


def _decodes(options: Namespace, task: Task = Task.DECODE, frames: int = _FRAMES) -> list[Case]:
    """Every mode with every length."""
    cases = []
    modes = options.modes or (["exact"] if task is Task.OVERLAP else ["exact", "single"])
    for length, name in product(options.frames or [frames], modes):
        mode, order = ("exact", name) if name in ORDERS else (name, "auto")
        fields = _shared(options) | {"task": task, "frames": length, "mode": mode, "order": order}
        if mode == "exact":
            fields["chunk"] = options.chunk
        for size in options.tile_batch_size if mode == "tiled" else [1]:
            cases.append(Case(**fields, tile_batch_size=size))
    return cases


def _encodes(options: Namespace) -> list[Case]:
    """Every length as it comes, and in tiles where any are asked for."""
    cases = []
    for frames in options.frames or [_FRAMES]:
        fields = _shared(options) | {"task": Task.ENCODE, "frames": frames}
        cases.append(Case(**fields, mode="stream"))
        if options.tile:
            cases += [Case(**fields, mode="tiled", tile_batch_size=size) for size in options.tile_batch_size]
    return cases


def _precisions(options: Namespace) -> list[Case]:
    return precision_cases(Case(**_shared(options), frames=_one_length(options)))


def _one_length(options: Namespace) -> int:
    return options.frames[0] if options.frames else _FRAMES


def _shared(options: Namespace) -> dict[str, Any]:
    """What all cases of a command have in common."""
    return {
        "model": options.model,
        "generation": options.generation,
        "base_width": options.base_width,
        "dtype": options.dtype,
        "width": options.size[0],
        "height": options.size[1],
        "tiles": options.tile or "default",
        "memory_budget": options.memory_budget,
        "rounds": options.repeat,
        "ffmpeg": options.ffmpeg,
        "sampled": options.plot is not None,
    }


_DECODING = Measurement(partial(_run, _decodes), decode_table)
_MEASUREMENTS = {
    "encode": Measurement(partial(_run, _encodes), encode_table),
    "roofline": Measurement(partial(_run, partial(_decodes, task=Task.ROOFLINE)), roofline_table),
    "overlap": Measurement(partial(_run, partial(_decodes, task=Task.OVERLAP, frames=_LONG)), overlap_table),
    "precision": Measurement(partial(_run, _precisions), precision_table),
    "quality": Measurement(lambda _: run_interleaved([quality_case()], 1), quality_table),
    "validate_plan": Measurement(lambda _: run_interleaved(validation_cases(), 1), validation_table),
}
