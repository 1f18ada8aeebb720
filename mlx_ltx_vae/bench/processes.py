"""Measurements in fresh processes, interleaved."""

import importlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import mlx.core as mx

from ..backend.device import backend
from ..errors import LTXVAEError
from ..process import Cleanup, kill_program, uninterrupted
from .decoding import Case

#: A case's fields, the name of the function as `task`, and what it measured.
Run = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A function to call in a fresh process as `measure(case, **options)`, by values that JSON can represent."""

    measure: Callable[..., dict[str, Any]]  # of a module
    case: Case
    options: Mapping[str, Any] = field(default_factory=dict)
    once: bool = False  # whether it repeats by itself, or gives the same result every time
    variables: Mapping[str, str] = field(default_factory=dict)  # added to the environment of the process


def run_interleaved(jobs: Sequence[Job], repeat: int, progress: Callable[[Any], Any] = iter) -> list[list[Run]]:
    """Run every job `repeat` times in turns, or once where that is enough. Returns for each job its runs.

    Raises:
        LTXVAEError: for a run that fails.
    """
    turns = [(index, job) for turn in range(repeat) for index, job in enumerate(jobs) if turn == 0 or not job.once]
    results: list[list[Run]] = [[] for _ in jobs]
    for index, job in progress(turns):
        results[index].append(run_fresh(job))
    return results


def run_fresh(job: Job) -> Run:
    """Run a job in a process of its own.

    Raises:
        LTXVAEError: for a run that fails, with the last line of its output.
    """
    name, case = job.measure.__name__, job.case
    payload = {"module": job.measure.__module__, "function": name, "case": asdict(case), "options": dict(job.options)}
    command = [sys.executable, "-m", __name__, json.dumps(payload)]
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
        raise LTXVAEError(f"{name} of {case.frames} frames (mode {case.mode}) failed: {last}")
    return {"task": name, **asdict(case), **json.loads(stdout)}


def _run_here(payload: str) -> None:
    """In the process of a job: run it, and print what it measured as JSON."""
    job = json.loads(payload)
    measure = getattr(importlib.import_module(job["module"]), job["function"])
    with redirect_stdout(sys.stderr):  # other programs print what they like
        measured = measure(Case(**job["case"]), **job["options"])
    print(json.dumps(measured))


def describe_machine() -> dict[str, Any]:
    """What the measurements ran on."""
    info = mx.device_info()
    return {
        "platform": platform.platform(),
        "processor": info.get("device_name") or platform.processor() or platform.machine(),
        "architecture": info.get("architecture"),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "working_set_bytes": info.get("max_recommended_working_set_size"),
        "device": str(mx.default_device()),
        "backend": backend().value,
        "mlx": version("mlx"),
        "python": platform.python_version(),
        "tf32": os.environ.get("MLX_ENABLE_TF32"),
        "preload": os.environ.get("LD_PRELOAD", ""),
    }


if __name__ == "__main__":
    _run_here(sys.argv[1])
