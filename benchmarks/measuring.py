"""Cases that are measured, in this process or in fresh ones, and their tables."""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from benchmarks.fresh import run_fresh
from mlx_ltx_vae.backend.device import backend
from mlx_ltx_vae.backend.machine import Backend
from mlx_ltx_vae.backend.mlx_utils import DtypeName, max_difference, named_parameters, psnr
from mlx_ltx_vae.checkpoint import Checkpoint, open_checkpoint
from mlx_ltx_vae.commands.terminal import print_report
from mlx_ltx_vae.errors import LTXVAEError
from mlx_ltx_vae.files import PartFile
from mlx_ltx_vae.latents import load_latents
from mlx_ltx_vae.networks.base import NETWORKS, Family
from mlx_ltx_vae.networks.convolution.conv3d import prepare
from mlx_ltx_vae.networks.convolution.rules import ConvRule, ConvShape, Formulation
from mlx_ltx_vae.options import OrderName
from mlx_ltx_vae.pipeline.frames import FrameChunk
from mlx_ltx_vae.pipeline.progress import Bar
from mlx_ltx_vae.planning.memory import cut
from mlx_ltx_vae.planning.plan import DecodePlan, Plan
from mlx_ltx_vae.published import PublishedVAE
from mlx_ltx_vae.shapes import Grid
from mlx_ltx_vae.tiling import SpatialTilingConfig, TemporalTilingConfig, TilingConfig, preset
from mlx_ltx_vae.tiling.config import parse_tile
from mlx_ltx_vae.units import MB
from mlx_ltx_vae.vae import VideoVAE

T = TypeVar("T")
#: A case's fields, the name of the function as `task`, and what it measured.
Run = dict[str, Any]

_NOISE_FRAMES = 8  # at a time


@dataclass(frozen=True)
class FixedRule:
    """All convolutions without a stride have one formulation."""

    formulation: Formulation

    def __call__(self, shape: ConvShape, backend: Backend, *, allows_winograd: bool = True) -> Formulation:
        return Formulation.CONV3D if shape.is_strided else self.formulation


@dataclass(frozen=True)
class Case:
    """The video, the weights and the mode of a run. Plain values, which JSON can represent."""

    model: str | None = None  # a checkpoint; None for random weights
    latents: str | None = None  # a latent file, of this size and length; None for noise
    generation: str = "ltx-2.3"  # of random weights, a name of `PublishedVAE`
    base_width: int = 32  # of random weights; the published models have 128
    dtype: DtypeName | None = None  # None for the checkpoint's own, or float32 for random weights
    width: int = 256
    height: int = 256
    frames: int = 57
    mode: Any = "exact"  # of a decode; of an encode "stream" or "tiled"; of another program its name
    order: OrderName = "auto"
    chunk: int | None = None
    tiles: str | None = None  # a preset, or SIZE:OVERLAP in pixels, and after a comma in frames; None as planned
    tile_batch_size: int = 1
    memory_budget: str | int | None = None
    formulation: str | None = None  # of all convolutions, a value of `Formulation`; None for the package's rule

    def make_tiling(self) -> TilingConfig | None:
        """Make the tiles that `tiles` names. A preset may depend on the size of the video."""
        if self.tiles is None:
            return None
        if self.tiles[:1].isdigit():
            pixels, _, frames = self.tiles.partition(",")
            temporal = TemporalTilingConfig(*parse_tile(frames)) if frames else None
            return TilingConfig(SpatialTilingConfig(*parse_tile(pixels)), temporal)
        return preset(self.tiles, self.height, self.width, self.frames) or TilingConfig()


def open_case(case: Case, network: str = "decoder") -> Checkpoint | PublishedVAE:
    """Source of a case's configuration and layers: the headers of its checkpoint, or a published VAE."""
    if case.model is None:
        return PublishedVAE.find(case.generation, base_channels=case.base_width)
    encoder, decoder = (name == network for name in NETWORKS)
    return open_checkpoint(case.model, encoder=encoder, decoder=decoder)


def load_vae(case: Case, network: Literal["encoder", "decoder"] = "decoder") -> VideoVAE:
    """Load a VAE with one of its networks: the checkpoint's, or one with the same random weights in every process."""
    opened = open_case(case, network)
    if isinstance(opened, Checkpoint):
        opened = replace(opened, family=_family(case, opened))
        networks = {name: name == network for name in NETWORKS}
        return VideoVAE.from_pretrained(opened, dtype=case.dtype, **networks).load()
    module = make_random_network(case, network)
    prepare(module, keeps_dtype=False)
    modules: dict[str, Any] = {name: module if name == network else None for name in NETWORKS}
    return VideoVAE(opened.config, **modules)


def make_random_network(case: Case, network: str = "decoder") -> nn.Module:
    """Make the random network of a case, with its weights as a checkpoint stores them; by default in float32."""
    vae = PublishedVAE.find(case.generation, base_channels=case.base_width)
    return replace(vae, family=_family(case, vae)).make(network, case.dtype or "float32")


def _family(case: Case, opened: Checkpoint | PublishedVAE) -> Family[Any]:
    if case.formulation is None:
        return opened.family
    return with_rule(opened.family, FixedRule(Formulation(case.formulation)))


def with_rule(family: Family[Any], rule: ConvRule) -> Family[Any]:
    """Return a family whose networks choose the formulations of their convolutions by another rule."""
    return replace(family, make=partial(cast(Any, family.make), rule=rule))


def count_weight_bytes(vae: VideoVAE) -> int:
    """Bytes of the weights of a VAE with one network."""
    return sum(array.nbytes for array in named_parameters(cast(nn.Module, vae.decoder or vae.encoder)).values())


def load_case_latents(case: Case, vae: VideoVAE) -> mx.array:
    """Return the latents (1, C, F', H', W') of a case: its file's, or noise, the same in every process."""
    if case.latents:
        return load_latents(case.latents)[0]
    return noise_latents(vae, (case.frames, case.height, case.width))


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


@dataclass(frozen=True)
class Decode:
    """One decode of latents (1, C, F', H', W'), ready to run any number of times."""

    vae: VideoVAE
    latents: mx.array
    plan: DecodePlan

    @classmethod
    def from_case(cls, case: Case, vae: VideoVAE | None = None, **options: Any) -> "Decode":
        """Load the latents, and the VAE if none is given, and plan with the options of `VideoVAE.plan`."""
        vae = vae or load_vae(case)
        latents = load_case_latents(case, vae)
        plan = vae.plan(
            latents.shape,
            memory_budget=case.memory_budget,
            mode=case.mode,
            order=case.order,
            tiling=case.make_tiling() if case.mode == "tiled" else None,
            tile_batch_size=case.tile_batch_size,
            chunk=case.chunk,
            **{"bit_depth": 8, **options},
        )
        return cls(vae, latents, plan)

    def run(self, *, in_float: bool = False) -> Iterator[np.ndarray]:
        """Decode. Yields frames (n, H, W, 3) uint8 on the host, as they become final, or float32 in about [-1, 1]."""
        plan = replace(self.plan, outputs=()) if in_float else self.plan
        return _frames_of(self.vae.stream(self.latents, plan, bit_depth=None if in_float else 8), in_float)


def _frames_of(stream: Iterator[FrameChunk], in_float: bool) -> Iterator[np.ndarray]:
    for chunk in stream:
        if in_float:
            chunk.check()
        frames = [np.array(chunk.frames[0].astype(mx.float32)) if in_float else chunk.to_uint8()]
        # A suspended generator must not hold what it has yielded.
        del chunk
        yield frames.pop()


def decode(case: Case, *, in_float: bool = False, **options: str) -> dict[str, Any]:
    """Decode, to pixels in [-1, 1] with `in_float`, otherwise to levels of 8 bits.

    Takes the options of `measure`. Returns what `measure` and `describe` return.
    """
    subject = Decode.from_case(case)
    return {**measure(subject.run(in_float=in_float), case, **options), **describe(subject.plan)}


def encode(case: Case, vae: VideoVAE | None = None) -> dict[str, Any]:
    """Encode uint8 noise: as a stream (mode "stream"), or the whole video in tiles (mode "tiled").

    `vae` is None for one with the case's encoder alone. Returns latent_frames, and as for a decode what was measured
    and planned, without frames.
    """
    vae = vae or load_vae(case, "encoder")
    video = case.frames, case.height, case.width
    vae.config.scale.latent_grid(video)  # raises for frames that would be left out
    is_tiled = case.mode == "tiled"
    plan = vae.plan_encode(
        (*video, 3),
        memory_budget=case.memory_budget,
        mode="tiled" if is_tiled else "exact",
        tiling=case.make_tiling() if is_tiled else None,
        tile_batch_size=case.tile_batch_size,
    )
    clip = np.concatenate(list(noise_frames(video))) if is_tiled else None

    def latents() -> Iterator[np.ndarray]:
        parts: Iterable[mx.array] = (
            vae.encode_stream(noise_frames(video), plan) if clip is None else [vae.encode(clip, plan)]
        )
        for part in parts:
            yield np.array(part[0].astype(mx.float32)).swapaxes(0, 1)

    measured = measure(latents(), case)
    return {"latent_frames": measured.pop("frames"), **measured, **describe(plan)}


def measure(chunks: Iterator[np.ndarray], case: Case, *, save: str = "", reference: str = "") -> dict[str, Any]:
    """Run a decode or an encode.

    Args:
        chunks: yields frames (n, H, W, 3), or latents along the first axis; the work starts with the first `next`.
        save, reference: an `.npy` file to save the frames to, or whose frames these are compared with.

    Returns:
        frames, seconds, first_frame_seconds; between_bytes, held between two chunks: the caches; total_peak_bytes of
        MLX, peak_bytes without what was in use before, bytes_per_pixel of one frame; with `reference` what `compare`
        returns.
    """
    held = mx.get_active_memory()
    between: list[int] = []
    clip: list[np.ndarray] = []

    def count(frames: np.ndarray) -> int:
        if save or reference:
            clip.append(frames.copy())
        return len(frames)

    def counts() -> Iterator[int]:
        for number in map(count, chunks):  # map holds no chunk while it waits
            yield number
            between.append(mx.get_active_memory() - held)

    mx.reset_peak_memory()
    start = time.perf_counter()
    arrivals = [(time.perf_counter() - start, number) for number in counts()]
    seconds, total = time.perf_counter() - start, mx.get_peak_memory()
    measured: dict[str, Any] = {
        "frames": sum(number for _, number in arrivals),
        "seconds": seconds,
        "first_frame_seconds": arrivals[0][0],
        # In the middle of the clip, where no chunk is between two layers.
        "between_bytes": min(between[len(between) // 3 : 2 * len(between) // 3 + 1]),
        "peak_bytes": total - held,
        "bytes_per_pixel": (total - held) / (case.width * case.height),
        "total_peak_bytes": total,
    }
    if save:
        np.save(save, np.concatenate(clip))
    if reference:
        span = 255 if clip[0].dtype == np.uint8 else 2
        measured |= compare(mx.array(np.concatenate(clip)), mx.array(np.load(reference)), span=span)
    return measured


def timed(run: Callable[[], T]) -> tuple[T, dict[str, float]]:
    """Return the result of `run`, its seconds, and the seconds of all processors together."""
    start, processor_start = time.perf_counter(), time.process_time()
    result = run()
    return result, {
        "seconds": time.perf_counter() - start,
        "processor_seconds": time.process_time() - processor_start,
    }


def describe(plan: Plan) -> dict[str, Any]:
    """Return the plan, and the size of the weights."""
    return {
        "order": plan.order.value,
        "step": plan.step,
        "prefetch": plan.prefetch,
        "planned_bytes": plan.memory.active,
        "planned_total_bytes": plan.peak_bytes,
        "weights_bytes": plan.memory.weights,
    }


def compare(one: mx.array, other: mx.array, *, span: float = 2.0) -> dict[str, Any]:
    """`psnr`, None for equal arrays, and `largest`, the largest difference, for JSON."""
    largest = max_difference(one, other)
    return {"psnr": None if largest == 0 else psnr(one, other, span=span), "largest": largest}


@dataclass(frozen=True)
class Job:
    """A function to call in a fresh process as `measure(case, **options)`, by values that JSON can represent."""

    measure: Callable[..., dict[str, Any]]  # of a module
    case: Case
    options: Mapping[str, Any] = field(default_factory=dict)
    once: bool = False  # whether it repeats by itself, or gives the same result every time
    variables: Mapping[str, str] = field(default_factory=dict)  # added to the environment of the process


def run_job(job: Job) -> Run:
    """Run a job in a process of its own.

    Raises:
        LTXVAEError: for a run that fails, with the last line of its output.
    """
    name, case = job.measure.__name__, asdict(job.case)
    try:
        measured = run_fresh(
            _run_here,
            job.variables,
            module=job.measure.__module__,
            name=name,
            case=case,
            options=dict(job.options),
        )
    except LTXVAEError as error:
        raise LTXVAEError(f"{name} of {job.case.frames} frames (mode {job.case.mode}) failed: {error}") from error
    return {"task": name, **case, **measured}


def _run_here(module: str, name: str, case: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    return cast(dict[str, Any], getattr(import_module(module), name)(Case(**case), **options))


def run_interleaved(jobs: Sequence[Job], repeat: int, progress: Callable[[Any], Any] = iter) -> list[list[Run]]:
    """Run every job `repeat` times in turns, or once where that is enough. Returns for each job its runs."""
    turns = [(index, job) for turn in range(repeat) for index, job in enumerate(jobs) if turn == 0 or not job.once]
    results: list[list[Run]] = [[] for _ in jobs]
    for index, job in progress(turns):
        results[index].append(run_job(job))
    return results


def chosen_modes(options: argparse.Namespace, default: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the fields of a case for each mode, and for the exact mode in each order."""
    for mode in options.mode or default:
        for order in options.order or ["auto"] if mode == "exact" else ["auto"]:
            yield {"mode": mode, "order": order}


def make_case(options: argparse.Namespace, **fields: Any) -> Case:
    """Return the case of the options that there are, and of other fields, which override them."""
    names = ("model", "dtype", "generation", "base_width", "memory_budget", "chunk")
    case_fields: dict[str, Any] = {name: getattr(options, name, None) for name in names}
    case_fields["width"], case_fields["height"] = options.size
    case_fields["tiles"] = options.preset
    if options.tile:
        case_fields["tiles"] = f"{options.tile.tile_size_in_pixels}:{options.tile.tile_overlap_in_pixels}"
    return Case(**case_fields | fields)


def report(options: argparse.Namespace, jobs: list[Job], make_table: Callable[[list[list[Run]]], str]) -> None:
    """Run the jobs as `add_run_options` say, and print their runs as `make_table` formats them."""
    file = PartFile(Path(options.save)) if options.save else None  # at once: a folder may be missing
    results = run_interleaved(jobs, options.repeat, partial(Bar, unit="run", disable=not sys.stderr.isatty()))
    document = json.dumps({"machine": describe_machine(), "runs": [run for runs in results for run in runs]}, indent=1)
    if file:
        file.path.write_text(f"{document}\n", encoding="utf-8")
        file.complete()
    print_report(document if options.json else make_table(results))


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


def format_psnr(decibels: float | None) -> str:
    """Format a `psnr`."""
    return "identical" if decibels is None else f"{decibels:.1f} dB"


def median(runs: list[Run], key: str) -> float:
    """Return the median of one measured value."""
    return statistics.median(run[key] for run in runs)


def format_ratios(key: str, runs: list[Run], references: list[Run], form: str = ".2f") -> str:
    """Format the median, the least and the largest of the ratios of a value in two runs of the same turn."""
    ratios = sorted(run[key] / reference[key] for run, reference in zip(runs, references, strict=True))
    return f"{statistics.median(ratios):{form}} ({ratios[0]:{form}} to {ratios[-1]:{form}})"


def timing_table(results: list[list[Run]], *, reference: str, notes: Sequence[str] = ()) -> str:
    """Times and peaks of decodes: medians of each case.

    Args:
        reference: the mode or dtype whose time is 1, for videos of the same length.
        notes: further lines below the table.
    """
    baseline = {
        runs[0]["frames"]: median(runs, "seconds")
        for runs in results
        if reference in (runs[0]["mode"], runs[0]["dtype"])
    }
    run = results[0][0]
    all_notes = [
        "B/pixel and caches (held between two chunks) are bytes per pixel of one frame.",
        *notes,
        f"{run['width']}x{run['height']}; medians of {len(results[0])} fresh processes; peaks are the largest, without "
        "the weights.",
    ]
    return table([_timing_row(runs, baseline) for runs in results], all_notes)


def _timing_row(runs: list[Run], baseline: dict[int, float]) -> dict[str, str]:
    run = dict(runs[0])
    frames, pixels, tiled = run["frames"], run["width"] * run["height"], run["mode"] in ("tiled", "ports")

    def show(key: str, digits: int, unit: float = 1) -> str:
        return f"{run[key] / unit:.{digits}f}" if key in run else ""

    run |= {key: median(runs, key) for key in ("seconds", "first_frame_seconds") if key in run}
    run |= {"peak_bytes": max(repeat["peak_bytes"] for repeat in runs)}
    run |= {"ratio": run["seconds"] / baseline[frames]} if frames in baseline else {}
    return {
        "mode": run["mode"],
        "order": run["order"] if run["mode"] == "exact" else "",
        "tiles": (run["tiles"] or "default") if tiled else "",
        "dtype": run["dtype"] or "",
        "frames": str(frames),
        "seconds": show("seconds", 2),
        "ratio": show("ratio", 2),
        "first": show("first_frame_seconds", 2),
        "peak MB": show("peak_bytes", 1, MB),
        "B/pixel": show("bytes_per_pixel", 0),
        "caches": show("between_bytes", 0, pixels),
        "weights MB": show("weights_bytes", 0, MB),
        "largest": show("largest", 3 if run.get("largest", 1) < 1 else 0),
        "PSNR": format_psnr(run["psnr"]) if "psnr" in run else "",
    }
