"""Runs in fresh processes, interleaved: the only file beside `media.ffmpeg` that starts any."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import mlx.core as mx
from tqdm import tqdm

from ..errors import LTXVAEError
from .case import Case

#: In front of a case as JSON, on the command line of the process that runs it.
WORKER = "--worker"

Run = dict[str, Any]


def run_interleaved(cases: Sequence[Case], repeat: int) -> list[list[Run]]:
    """Every case `repeat` times, in turns, or once where that is all: for each case what its runs measured.

    Raises:
        LTXVAEError: for a run that fails, with the last line it said.
    """
    runs: list[list[Run]] = [[] for _ in cases]
    turns = [
        (case, results)
        for turn in range(repeat)
        for case, results in zip(cases, runs, strict=True)
        if turn == 0 or not case.task.once
    ]
    for case, results in tqdm(turns, unit="run", disable=not sys.stderr.isatty()):
        results.append(run_fresh(case))
    return runs


def run_fresh(case: Case) -> Run:
    """What a case measures in a process of its own.

    Raises:
        LTXVAEError: for a run that fails, with the last line it said.
    """
    command = [sys.executable, "-m", __package__, WORKER, json.dumps(asdict(case))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LTXVAEError(f"{case.task.value} of {case.frames} frames (mode {case.mode}) failed: {last}")
    return json.loads(done.stdout)


def describe_machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "platform": platform.platform(),
        "processor": mx.device_info().get("device_name", platform.processor()),
        "cores": os.cpu_count(),
        "device": str(mx.default_device()),
        "mlx": mx.__version__,
        "preload": os.environ.get("LD_PRELOAD", ""),
    }
