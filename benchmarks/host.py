"""The host's part of a decode by time: Python and MLX's graphs, of steps that are not computed."""

import statistics
from operator import itemgetter
from typing import Any
from unittest.mock import patch

import mlx.core as mx

from benchmarks.copies import Unevaluated, prepared_decoder, steady_state
from benchmarks.measuring import Case, Job, Run, table
from mlx_ltx_vae.backend.device import computing_for
from mlx_ltx_vae.backend.machine import Backend
from mlx_ltx_vae.networks.base import Decoder

_CLIPS = 20


def host_jobs() -> list[Job]:
    """Return the jobs of a decode by the published LTX-2.3, for each GPU."""
    case = Case(base_width=128, dtype="bfloat16", width=768, height=512, frames=121)
    return [Job(host, case, {"target": target.value}) for target in (Backend.METAL, Backend.CUDA)]


def host(case: Case, *, target: str) -> dict[str, Any]:
    """Time the graphs of the steps of a decode in this thread, with the formulations for a backend.

    Returns:
        target; steps and seconds of processor time for a latent frame in the middle of a long clip, the least of some.
    """
    with computing_for(Backend(target)), patch.object(mx.cuda, "is_available", lambda: target == "cuda"):
        network = prepared_decoder(case)
        steps, seconds = min((_run(network, case) for _ in range(_CLIPS)), key=itemgetter(1))
    return {"target": target, "seconds": seconds, "steps": steps}


def _run(network: Decoder, case: Case) -> tuple[float, float]:
    """Return the steps and the seconds of a latent frame."""
    schedule = Unevaluated()
    chunk, (earlier, later) = steady_state(network, case, schedule, lambda: (schedule.steps, schedule.seconds))
    return (later[0] - earlier[0]) / chunk, (later[1] - earlier[1]) / chunk


def host_table(results: list[list[Run]]) -> str:
    """Medians for each backend."""
    rows = [
        {
            "formulations for": runs[0]["target"],
            "steps per latent frame": f"{runs[0]['steps']:.1f}",
            "ms per latent frame": f"{1000 * statistics.median(run['seconds'] for run in runs):.2f}",
        }
        for runs in results
    ]
    run = results[0][0]
    return table(
        rows,
        [
            "Processor time of one thread here, without MLX's evaluation.",
            f"{run['width']}x{run['height']}, {run['frames']} frames by time.",
        ],
    )
