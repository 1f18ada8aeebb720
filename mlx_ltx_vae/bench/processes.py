"""Measurements in fresh processes, interleaved."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import mlx.core as mx

from ..errors import LTXVAEError
from ..process.cleanup import Cleanup, kill_program, uninterrupted
from .case import Case

#: A case's fields, and what was measured.
Run = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A function to call in a fresh process as `measure(case, **options)`.

    Attributes:
        measure: a module's function, which returns a dictionary for JSON.
        options: values that JSON can represent.
        once: whether one run is enough, because it repeats by itself or gives the same result every time.
        variables: added to the environment of the process.
    """

    measure: Callable[..., dict[str, Any]]
    case: Case
    options: Mapping[str, Any] = field(default_factory=dict)
    once: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)


def run_interleaved(
    jobs: Sequence[Job],
    repeat: int,
    progress: Callable[[Sequence[tuple[int, Job]]], Iterable[tuple[int, Job]]] = iter,
) -> list[list[Run]]:
    """Run every job `repeat` times in turns, or once where that is enough. Returns for each job its runs.

    Args:
        progress: wraps the list of runs, to show how many of them are done.

    Raises:
        LTXVAEError: for a run that fails.
    """
    turns = [(index, job) for turn in range(repeat) for index, job in enumerate(jobs) if turn == 0 or not job.once]
    results: list[list[Run]] = [[] for _ in jobs]
    for index, job in progress(turns):
        results[index].append(run_fresh(job))
    return results


def run_fresh(job: Job) -> Run:
    """Run a job in a process of its own: the name of its function as `task`, its case, and what was measured.

    Raises:
        LTXVAEError: for a run that fails, with the last line of its output.
    """
    task, case = job.measure.__name__, asdict(job.case)
    payload = {"module": job.measure.__module__, "function": task, "case": case, "options": dict(job.options)}
    command = [sys.executable, "-m", f"{__package__}.worker", json.dumps(payload)]
    environment = {**os.environ, **job.variables}
    with uninterrupted():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        end = Cleanup(None, kill_program, process)
    try:
        stdout, stderr = process.communicate()
    finally:
        end()
    if process.returncode:
        last = (stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise LTXVAEError(f"{task} of {job.case.frames} frames (mode {job.case.mode}) failed: {last}")
    return {"task": task, **case, **json.loads(stdout)}


def describe_machine() -> dict[str, Any]:
    """What the measurements ran on."""
    return {
        "platform": platform.platform(),
        "processor": mx.device_info().get("device_name", platform.processor()),
        "cores": os.cpu_count(),
        "device": str(mx.default_device()),
        "mlx": version("mlx"),
        "preload": os.environ.get("LD_PRELOAD", ""),
    }
