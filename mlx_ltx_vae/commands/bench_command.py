"""`python -m mlx_ltx_vae.bench`: measure time and peak memory of decodes and encodes on this machine.

Each run is a process of its own, so that none uses compiled kernels or buffers of another run. Runs of different modes
alternate, so that a change of the machine's speed affects all modes. Such a process runs this module as a program.
"""

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..backend.device import backend
from ..backend.mlx_utils import DTYPES, DtypeName, dtype_name
from ..checkpoint import open_checkpoint
from ..errors import CheckpointError, LTXVAEError, describe_error
from ..models.base import Decoder, Encoder, Family, Statistics
from ..models.convolution.conv3d import prepare
from ..pipeline.frames import FrameChunk
from ..pipeline.progress import Bar
from ..planning.memory import cut
from ..planning.plan import Plan
from ..process import Cleanup, kill_program, uninterrupted
from ..published import PublishedVAE
from ..shapes import Grid
from ..units import MB, format_bytes
from ..vae import VideoVAE
from .cli import CommandParser, launched_rank
from .running import print_report, run_command, write_line

#: The mode of a case that is an encode.
ENCODE = "encode"
#: The default length of the video.
FRAMES = 57

_NOISE_FRAMES = 8  # at a time

#: Case and its measurements.
Run = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Case to measure. Its fields are values that JSON can represent."""

    model: str | None  # a checkpoint, or `None` for random weights
    generation: str  # of random weights, a name of `PublishedVAE`
    base_width: int | None  # of random weights, or `None` for the published widths
    dtype: DtypeName | None  # or `None` for the dtype of the checkpoint or the published file
    width: int
    height: int
    frames: int
    mode: Any  # of a decode, or `ENCODE`
    order: Any


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if launched_rank() is not None:
        parser.error("each run is a process of its own; start bench without a launcher")
    if arguments.order and "exact" not in (arguments.mode or ["exact"]):
        parser.error("--order belongs to the exact mode; add --mode exact")
    with parser.wrong_usage():
        vae = PublishedVAE.find(arguments.generation)
        if not arguments.model:  # the scale of a checkpoint is known when it is opened
            for frames in arguments.num_frames or (FRAMES,):
                vae.latent_shape((frames, *arguments.size[::-1]))
            if ENCODE in (arguments.mode or ()):
                vae.spec("encoder")
    return run_command(_bench, arguments)


def _bench(arguments: argparse.Namespace) -> None:
    cases = list(_cases(arguments))
    results: list[list[Run]] = [[] for _ in cases]
    errors: dict[int, str] = {}
    turns = list(product(range(arguments.repeat), enumerate(cases)))
    as_json = arguments.progress == "json"
    bar = Bar(turns, unit="run", disable=as_json or arguments.json or not sys.stderr.isatty())
    for number, (_, (index, case)) in enumerate(bar):
        if as_json:
            values = {"phase": "measuring", "name": _name(case), "fraction": number / len(turns)}
            write_line(json.dumps(values), sys.stderr)
        if index not in errors:
            try:
                results[index].append(asdict(case) | run_fresh(measure_case, case=asdict(case)))
            except LTXVAEError as error:
                errors[index] = str(error)
    if len(errors) < len(cases):
        runs = [run for runs in results for run in runs]
        failed = [asdict(cases[index]) | {"error": text} for index, text in errors.items()]
        document = {"machine": describe_machine(), "runs": runs + failed}
        if as_json:
            write_line(json.dumps({"phase": "done", "fraction": 1.0, "report": document}), sys.stderr)
        print_report(json.dumps(document) if arguments.json else _report(cases, results))
    if errors:
        index, text = next(iter(errors.items()))
        first_failure = f"{_name(cases[index])} of {cases[index].frames} frames: {text}"
        raise LTXVAEError(f"{len(errors)} of {len(cases)} measurements failed; the first, {first_failure}")


def _cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Yield every length in every mode, and in the exact mode every order."""
    modes = arguments.mode or ["exact", "single", *([ENCODE] if _has_encoder(arguments) else [])]
    width, height = arguments.size
    for frames, mode in product(arguments.num_frames or [FRAMES], modes):
        for order in (arguments.order or ["auto"]) if mode == "exact" else ["auto"]:
            yield Case(
                model=arguments.model,
                generation=arguments.generation,
                base_width=arguments.base_width,
                dtype=arguments.dtype,
                width=width,
                height=height,
                frames=frames,
                mode=mode,
                order=order,
            )


def _has_encoder(arguments: argparse.Namespace) -> bool:
    try:
        if arguments.model:
            open_checkpoint(arguments.model, decoder=False)
        else:
            PublishedVAE.find(arguments.generation).spec("encoder")
    except CheckpointError:
        return False
    return True


def _name(case: Case) -> str:
    return case.mode if case.mode == ENCODE else f"decode ({case.mode})"


def _report(cases: Sequence[Case], results: Sequence[list[Run]]) -> str:
    """Format the measurements and their machine, with medians as a Markdown table."""
    machine, case = describe_machine(), cases[0]
    dtype = next(runs[0]["dtype"] for runs in results if runs)
    width = f", {case.base_width} base channels" if case.base_width else ""
    # A table to publish has no path in it.
    weights = Path(case.model).name if case.model else f"{case.generation} with random weights{width}"
    lines = [
        f"{machine['processor']}, {format_bytes(machine['memory_bytes'])}, {machine['platform']}, "
        f"{machine['backend']} backend, MLX {machine['mlx']}, mlx_ltx_vae {machine['version']}",
        f"{weights}, {dtype}, {case.width}x{case.height}",
        "",
        table([_row(*case_runs) for case_runs in zip(cases, results, strict=True)]),
        "",
        "Medians of fresh processes in turns. Peaks are of MLX's memory, weights included.",
    ]
    return "\n".join(lines)


def _row(case: Case, runs: list[Run]) -> dict[str, str]:
    row = {"": _name(case), "order": "", "frames": str(case.frames), "seconds": "failed"}
    if not runs:
        return row | dict.fromkeys(("first frame", "peak MB", "planned MB", "weights MB", "runs"), "")
    seconds, first_seconds = (statistics.median(run[key] for run in runs) for key in ("seconds", "first_frame_seconds"))
    return row | {
        "order": runs[0]["order"] if case.mode == "exact" else "",
        "seconds": f"{seconds:.2f}",
        "first frame": "" if case.mode == ENCODE else f"{first_seconds:.2f}",
        "peak MB": f"{max(run['peak_memory_bytes'] for run in runs) / MB:.0f}",
        "planned MB": f"{runs[0]['planned_bytes'] / MB:.0f}",
        "weights MB": f"{runs[0]['weights_bytes'] / MB:.0f}",
        "runs": str(len(runs)),
    }


def table(rows: Sequence[Mapping[str, str]], notes: Sequence[str] = ()) -> str:
    """Format a Markdown table of rows of the same columns, and notes below it.

    It is padded to be readable as plain text. Columns without any value are left out.
    """
    columns = [
        [cell.ljust(max(map(len, cells))) for cell in cells]
        for cells in zip(rows[0], *(row.values() for row in rows), strict=True)
        if any(cells[1:])
    ]
    lines = [f"| {' | '.join(cells)} |" for cells in zip(*columns, strict=True)]
    rule = f"|{'|'.join('-' * (len(cells[0]) + 2) for cells in columns)}|"
    return "\n".join([lines[0], rule, *lines[1:], *([""] if notes else []), *notes])


def describe_machine() -> dict[str, Any]:
    """Describe the hardware, the software, and the variables on which results depend."""
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
        "version": version("mlx_ltx_vae"),
        "tf32": os.environ.get("MLX_ENABLE_TF32"),
        "preload": os.environ.get("LD_PRELOAD", ""),
    }


# A run.


def run_fresh(function: Callable[..., Run], variables: Mapping[str, str] | None = None, **arguments: Any) -> Run:
    """Call a function of a module in a process of its own. Arguments and result are values that JSON can represent.

    Args:
        variables: added to the environment of the process.

    Raises:
        LTXVAEError: if it fails, with the last line of its output.
    """
    call = {"module": function.__module__, "function": function.__name__, "arguments": arguments}
    command = [sys.executable, "-m", __name__, json.dumps(call)]
    with uninterrupted():
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | dict(variables or {}),
        )
        end = Cleanup(None, kill_program, process)
    try:
        stdout, stderr = process.communicate()
    finally:
        end()
    if process.returncode:
        last_line = (stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise LTXVAEError(last_line)
    return cast(Run, json.loads(stdout))


def _answer(call: str) -> None:
    """Call the function that `run_fresh` names, and print its result."""
    request = json.loads(call)
    function = getattr(importlib.import_module(request["module"]), request["function"])
    with redirect_stdout(sys.stderr):  # standard output is for the result alone
        result = function(**request["arguments"])
    print_report(json.dumps(result))


def measure_case(case: dict[str, Any]) -> Run:
    """Run a case in this process.

    Returns:
        dtype, order, planned_bytes (MLX's peak), weights_bytes, and what `measure` returns.
    """
    settings = Case(**case)
    video = settings.frames, settings.height, settings.width
    vae = _load(settings, "encoder" if settings.mode == ENCODE else "decoder")
    plan, counts = _start_encode(vae, video) if settings.mode == ENCODE else _start_decode(vae, video, settings)
    memory = {"planned_bytes": plan.memory.active, "weights_bytes": plan.memory.weights}
    return {"dtype": dtype_name(vae.dtype), "order": plan.order.value, **memory, **measure(counts)}


def _start_decode(vae: VideoVAE, video: Grid, case: Case) -> tuple[Plan, Iterator[int]]:
    latents = noise_latents(vae, video)
    plan = vae.plan(latents.shape, mode=case.mode, order=case.order, bit_depth=8)
    return plan, map(_count_frames, vae.stream(latents, plan, bit_depth=8))  # map holds no chunk while it waits


def _start_encode(vae: VideoVAE, video: Grid) -> tuple[Plan, Iterator[int]]:
    vae.config.scale.latent_grid(video)  # raises for frames that would be left out
    plan = vae.plan_encode((*video, 3))
    return plan, map(_count_latents, vae.encode_stream(noise_frames(video), plan))


def _count_frames(chunk: FrameChunk) -> int:
    return len(chunk.to_uint8())


def _count_latents(latents: mx.array) -> int:
    mx.eval(latents)
    return latents.shape[2]


def _load(case: Case, network: str) -> VideoVAE:
    """Load a VAE with one of its networks."""
    if case.model:
        is_decoder = network == "decoder"
        return VideoVAE.from_pretrained(case.model, dtype=case.dtype, encoder=not is_decoder, decoder=is_decoder)
    published = PublishedVAE.find(case.generation, base_channels=case.base_width)
    dtype = case.dtype or published.family.published_dtype
    module = random_network(published, network, dtype)
    return random_vae(published, network, module, keeps_dtype=case.dtype is not None)


def random_network(
    published: PublishedVAE, network: str, dtype: DtypeName, family: Family[Any] | None = None
) -> nn.Module:
    """Make a network of a published VAE with weights that are the same in every process, as a checkpoint stores them.

    Raises:
        CheckpointError: if there is no such network.
    """
    published.spec(network)
    ones = mx.ones((published.config.latent_channels,))
    mx.random.seed(0)
    module = (family or published.family).make(published.config, network, Statistics(0 * ones, ones))
    assert isinstance(module, nn.Module)
    module.set_dtype(DTYPES[dtype])
    mx.eval(module.parameters())
    return module


def random_vae(published: PublishedVAE, network: str, module: nn.Module, *, keeps_dtype: bool) -> VideoVAE:
    """Make a VAE with this network alone, ready to compute."""
    prepare(module, keeps_dtype=keeps_dtype)
    encoder = cast(Encoder, module) if network == "encoder" else None
    decoder = cast(Decoder, module) if network == "decoder" else None
    return VideoVAE(published.config, encoder, decoder, keeps_dtype=keeps_dtype)


def noise_latents(vae: VideoVAE, video: Grid) -> mx.array:
    """Return latents (1, C, F', H', W') of a video (F, H, W), the same in every process."""
    shape = (1, vae.config.latent_channels, *vae.config.scale.latent_grid(video))
    latents = mx.random.normal(shape, key=mx.random.key(0))
    mx.eval(latents)
    return latents


def noise_frames(video: Grid) -> Iterator[np.ndarray]:
    """Yield frames (n, H, W, 3) uint8 of a video (F, H, W), the same in every process."""
    random = np.random.default_rng(0)
    for frames in cut(video[0], _NOISE_FRAMES):
        yield random.integers(0, 256, (frames, *video[1:], 3), dtype=np.uint8)


def measure(counts: Iterable[int]) -> Run:
    """Run a decode or an encode, which yields the numbers of new frames or latent frames.

    Returns:
        num_outputs; seconds, first_frame_seconds, and peak_memory_bytes of MLX.
    """
    mx.reset_peak_memory()
    start = time.perf_counter()
    arrivals = [(time.perf_counter() - start, count) for count in counts]
    seconds = time.perf_counter() - start
    return {
        "num_outputs": sum(count for _, count in arrivals),
        "seconds": seconds,
        "first_frame_seconds": arrivals[0][0],
        "peak_memory_bytes": mx.get_peak_memory(),
    }


if __name__ == "__main__":
    try:
        _answer(sys.argv[1])
    except Exception as error:
        sys.exit(describe_error(error))
