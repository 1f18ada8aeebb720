"""Measurements on several ranks: all decode one video in bands of rows, in lockstep, and the first decodes it alone.

A launcher has started one process per rank, so runs are not fresh processes here. A short decode before the first run
compiles the kernels.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..backend.device import this_machine
from ..backend.machine import Machine
from ..checkpoint import open_checkpoint
from ..distributed.ranks import Ranks, Work
from ..errors import LTXVAEError, describe_error
from ..planning.plan import DecodePlan
from ..planning.planner import plan_decode
from ..vae import VideoVAE
from .case import Case, Decode, count_weight_bytes, load_case_latents, load_spec, load_vae
from .decoding import measure_frames
from .processes import Run

_WARM_UP_FRAMES = 3  # latent frames


def measure_case(case: Case, ranks: Ranks, repeat: int, *, alone: bool) -> list[list[Run]]:
    """Measure a case `repeat` times. All ranks call this.

    Args:
        alone: whether the first rank decodes alone too, in turns with all ranks. The others sleep for about as long,
            since a rank that waits for another takes a core.

    Returns:
        The runs of all ranks together, and with `alone` those of the first rank, on all ranks.

    Raises:
        DistributedError: if the ranks measure different things, or if one of them fails.
        PlanError: if the video cannot be decoded in bands of rows, or within the memory budget.
    """
    ranks.check_same({"the commands": [asdict(case), repeat, alone]})
    if case.model:
        ranks.check_same({"the checkpoints": ranks.together(partial(_describe_checkpoint, case.model))})
    vae = ranks.together(partial(load_vae, case))
    latents = ranks.together(partial(load_case_latents, case, vae))
    machine = ranks.smallest(this_machine(vae.dtype, own=count_weight_bytes(vae)))
    measure = _Measure(case, vae, machine, ranks)
    together: list[Run] = []
    by_one: list[Run] = []
    pause = 0.0
    for part in [latents[:, :, :_WARM_UP_FRAMES], *[latents] * repeat]:
        together.append(measure.together(part))
        if alone:
            by_one.append(measure.alone(part, pause))
            # At first an upper estimate: the others wait, and take cores if they are on the same machine.
            pause = by_one[-1]["seconds"] * latents.shape[2] / part.shape[2]
    return [together[1:], by_one[1:]] if alone else [together[1:]]


def find_recorded(file: str, case: Case) -> list[Run]:
    """The decodes of a case by one rank, in a file that the bench's `--json` has written.

    Raises:
        LTXVAEError: if the file cannot be read, or has none.
    """
    try:
        runs = json.loads(Path(file).read_text(encoding="utf-8"))["runs"]
        found = [_by_one(run) for run in runs if _is_wanted(run, case)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        text = describe_error(error)
        raise LTXVAEError(f"{file}: is not a file that the bench wrote with --json ({text}).") from error
    if not found:
        raise LTXVAEError(
            f"{file}: has no exact decode by one rank of {case.frames} frames of {case.width}x{case.height} with these "
            "weights; run the same command without mlx.launch, with --modes exact and --json."
        )
    return found


def _is_wanted(run: Run, case: Case) -> bool:
    """Whether a recorded run is an exact decode of a case by one rank."""
    names = ("model", "latents", "generation", "base_width", "dtype", "width", "height", "frames")
    is_decode = (run["task"], run["mode"], run.get("ranks", 1)) == ("decode", "exact", 1)
    return is_decode and all(run[name] == getattr(case, name) for name in names)


def _by_one(run: Run) -> Run:
    """A run of a fresh process, in the form of one by ranks."""
    return run | {
        "ranks": 1,
        "distributed": Work.OFF.value,
        "peak_bytes_per_rank": [run["peak_bytes"]],
        "peak_memory_bytes_per_rank": [run["total_peak_bytes"]],
        "sent_bytes_per_rank": [0],
        "exchanged_bytes": 0,
    }


def _describe_checkpoint(model: str) -> Any:
    return open_checkpoint(model, encoder=False).description


@dataclass(frozen=True)
class _Measure:
    """Measures decodes of latents (1, C, F', H', W'), on all ranks."""

    case: Case
    vae: VideoVAE
    machine: Machine
    ranks: Ranks

    def together(self, latents: mx.array) -> Run:
        """One decode by all ranks."""
        ranks = self.ranks
        plan = ranks.together(lambda: self._plan(latents, ranks.size))
        decode = Decode(self.vae, latents, plan, ranks.group)
        stream = decode.stream()
        ranks.gather(None)  # start at the same time
        measured = measure_frames(decode.frames_of(stream))
        every, sent = zip(*ranks.gather([measured, stream.sent_bytes]), strict=True)
        return self._describe(plan, every, sent)

    def alone(self, latents: mx.array, pause: float) -> Run:
        """One decode by the first rank. The others sleep for `pause` seconds, and then wait for it.

        Returns:
            The run, on all ranks.
        """
        run: Callable[[], Any] = partial(time.sleep, pause)
        if self.ranks.is_first:
            run = partial(self._decode_alone, latents)
        return self.ranks.gather(self.ranks.together(run))[0]

    def _decode_alone(self, latents: mx.array) -> Run:
        plan = self._plan(latents, 1)
        measured = measure_frames(Decode(self.vae, latents, plan).run())
        return {**measured, **self._describe(plan, [measured], [0])}

    def _plan(self, latents: mx.array, ranks: int) -> DecodePlan:
        case = self.case
        return plan_decode(
            load_spec(case),
            latents.shape,
            self.machine,
            memory_budget=case.memory_budget,
            mode=case.mode,
            order=case.order,
            chunk=case.chunk,
            ranks=ranks,
        )

    def _describe(self, plan: DecodePlan, every: Sequence[Run], sent: Sequence[int]) -> Run:
        """A run, from what its ranks measured and the bytes that each sent."""
        return {
            "task": "decode",
            **asdict(self.case),
            "order": plan.order.value,
            "ranks": len(every),
            "distributed": (Work.ROWS if plan.bands else Work.OFF).value,
            "rows": [band.length for band in plan.bands] or [plan.latent_shape.height],
            "frames": every[0]["frames"],
            "latent_frames": plan.latent_shape.frames,
            "seconds": max(each["seconds"] for each in every),
            "first_frame_seconds": max(each["first_frame_seconds"] for each in every),
            "planned_bytes": plan.memory.active,
            "weights_bytes": count_weight_bytes(self.vae),
            "peak_bytes_per_rank": [each["peak_bytes"] for each in every],
            "peak_memory_bytes_per_rank": [each["total_peak_bytes"] for each in every],
            "sent_bytes_per_rank": list(sent),
            "exchanged_bytes": sum(sent),
        }
