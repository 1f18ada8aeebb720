"""`python -m mlx_ltx_vae.bench`: what decoding takes, in time and memory.

Every figure comes from a fresh process, so that no run sees another's compiled kernels or buffers, and runs of
different modes are interleaved, so that a machine whose speed drifts treats them alike. Quote the ratios.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from tqdm import tqdm

from .cli import add_common_options, run_command
from .config import GENERATIONS, parse_vae_config
from .decoder import Decoder
from .errors import LTXVAEError, PlanError
from .tiling import preset
from .vae import DTYPES, VideoVAE

_WORKER = "--worker"
_MB = 1e6
_ORDERS = ("time", "rows", "columns")
_GENERATION_NAMES = {name.split()[-1].lower(): name for name in GENERATIONS}


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m mlx_ltx_vae.bench",
        description="Measure time and peak memory of decoding, each run in a fresh process.",
    )
    parser.add_argument("-m", "--model", metavar="VAE", help="checkpoint (default: random weights, see below)")
    parser.add_argument("--size", type=_size, default=(256, 256), metavar="WxH", help="default: 256x256")
    parser.add_argument("--frames", type=int, nargs="+", default=[57], metavar="N", help="1 + 8*k; default: 57")
    parser.add_argument(
        "--modes",
        nargs="+",
        choices=["exact", *_ORDERS, "single", "tiled"],
        default=["exact", "single"],
        help="time, rows and columns are the exact mode in that order (default: exact single)",
    )
    parser.add_argument("--preset", default="default", metavar="NAME", help="tiles of mode tiled (default: default)")
    parser.add_argument("--memory-budget", metavar="SIZE", help="plan with this budget, such as 8GB")
    parser.add_argument("--chunk", type=int, metavar="N", help="latent frames at a time in exact mode")
    parser.add_argument("--dtype", choices=list(DTYPES), help="default: the checkpoint's, float32 for random weights")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each (default: 3)")
    parser.add_argument("--validate-plan", action="store_true", help="hold planned peaks against measured ones")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE; - for standard output")
    random = parser.add_argument_group("random weights, without -m")
    random.add_argument("--generation", choices=sorted(_GENERATION_NAMES), default="ltx-2.3")
    random.add_argument("--base-width", type=int, default=32, metavar="N", help="decoder base channels (128 is real)")
    add_common_options(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == [_WORKER]:
        print(json.dumps(measure(json.loads(argv[1]))))
        return 0
    arguments = build_parser().parse_args(argv)
    return run_command(_bench, arguments)


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """One decode in this process, which should be fresh.

    Args:
        case: model, generation, base_width, dtype, width, height, frames, mode, order, chunk, tiles.

    Returns:
        The case, and seconds, first_frame_seconds, weights_bytes, peak_bytes (without what there was before: weights
        and latents), bytes_per_pixel (of that peak, per pixel of one frame), between_bytes (held between two chunks:
        the caches), total_peak_bytes, planned_bytes.
    """
    vae = _load(case)
    weights = sum(array.nbytes for _, array in tree_flatten(vae.decoder.parameters()))
    shape = _latent_shape(vae, case)
    latents = mx.random.normal(shape, key=mx.random.key(0))
    mx.eval(latents)
    options = {"mode": case["mode"], "order": case["order"], "chunk": case["chunk"]}
    if case["mode"] == "tiled":
        options["tiling"] = preset(case["tiles"], case["height"], case["width"], case["frames"])
    plan = vae.plan(shape, memory_budget=case["memory_budget"], **options)
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    start = time.perf_counter()
    first = None
    frames = 0
    between = []
    for chunk in vae.stream(latents, plan, bit_depth=8):
        frames += len(chunk.to_uint8())
        first = first or time.perf_counter() - start
        del chunk
        between.append(mx.get_active_memory() - held)
    seconds = time.perf_counter() - start
    peak = mx.get_peak_memory()
    return {
        **case,
        "frames": frames,
        "order": plan.order.value,
        "seconds": seconds,
        "first_frame_seconds": first,
        "weights_bytes": weights,
        "peak_bytes": peak - held,
        "bytes_per_pixel": (peak - held) / (case["width"] * case["height"]),
        # In the middle of the clip, when nothing waits between two layers.
        "between_bytes": min(between[len(between) // 3 : 2 * len(between) // 3 + 1]),
        "total_peak_bytes": peak,
        "planned_bytes": plan.peak_bytes,
    }


def _latent_shape(vae: VideoVAE, case: dict[str, Any]) -> tuple[int, ...]:
    scale = vae.config.scale
    if (case["frames"] - 1) % scale.time or case["width"] % scale.width or case["height"] % scale.height:
        raise PlanError(
            f"{case['frames']} frames of {case['width']}x{case['height']} cannot be had: frames are "
            f"1 + {scale.time}*k, sides multiples of {scale.width}."
        )
    grid = (1 + (case["frames"] - 1) // scale.time, case["height"] // scale.height, case["width"] // scale.width)
    return (1, vae.config.latent_channels, *grid)


def _load(case: dict[str, Any]) -> VideoVAE:
    if case["model"]:
        return VideoVAE.from_pretrained(case["model"], dtype=case["dtype"], encoder=False)
    widths = {"decoder_base_channels": case["base_width"], "encoder_base_channels": case["base_width"]}
    name = _GENERATION_NAMES[case["generation"]]
    config = parse_vae_config({**GENERATIONS[name], **widths}, name)
    mx.random.seed(0)
    decoder = Decoder(config.decoder, config.patch_size)
    decoder.set_dtype(DTYPES[case["dtype"] or "float32"])
    mx.eval(decoder.parameters())
    channels = (config.latent_channels,)
    return VideoVAE(config, None, decoder, mx.zeros(channels), mx.ones(channels))


def _bench(arguments: argparse.Namespace) -> None:
    cases = validation_cases() if arguments.validate_plan else _cases(arguments)
    runs: list[list[dict[str, Any]]] = [[] for _ in cases]
    repeat = 1 if arguments.validate_plan else arguments.repeat
    with tqdm(total=len(cases) * repeat, unit="run", disable=not sys.stderr.isatty()) as bar:
        for _ in range(repeat):
            for case, results in zip(cases, runs, strict=True):
                results.append(_in_fresh_process(case))
                bar.update()
    report = {"machine": describe_machine(), "runs": [run for results in runs for run in results]}
    if arguments.json == "-":
        print(json.dumps(report))
        return
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    print(_validation_table(runs) if arguments.validate_plan else _table(runs))


def _cases(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Every mode with every length."""
    shared = {
        "model": arguments.model,
        "generation": None if arguments.model else arguments.generation,
        "base_width": None if arguments.model else arguments.base_width,
        "dtype": arguments.dtype,
        "width": arguments.size[0],
        "height": arguments.size[1],
        "tiles": arguments.preset,
        "memory_budget": arguments.memory_budget,
    }
    cases = []
    for frames in arguments.frames:
        for name in arguments.modes:
            mode, order = ("exact", name) if name in _ORDERS else (name, "auto")
            chunk = arguments.chunk if mode == "exact" else None
            cases.append({**shared, "frames": frames, "mode": mode, "order": order, "chunk": chunk})
    return cases


def validation_cases() -> list[dict[str, Any]]:
    """What `--validate-plan` runs: generations, widths, sizes, lengths, modes, chunks and dtypes, small enough."""
    base = {"model": None, "generation": "ltx-2.3", "base_width": 16, "dtype": "float32", "width": 128, "height": 96}
    base |= {"frames": 41, "mode": "exact", "order": "time", "chunk": None, "tiles": "default", "memory_budget": None}
    ways = [{}, {"chunk": 3}, {"order": "rows"}, {"order": "columns"}, {"mode": "single", "order": "auto"}]
    grid = [{**way, "generation": name} for name in _GENERATION_NAMES for way in ways]
    grid += [{**way, "dtype": dtype} for dtype in ("bfloat16", "float16") for way in ways[::2]]
    grid += [{"base_width": width, **way} for width in (8, 32) for way in (ways[0], ways[2], ways[4])]
    grid += [{"frames": frames, "width": 256, "height": 160} for frames in (1, 9, 57, 121)]
    tiled = {"mode": "tiled", "order": "auto", "width": 512, "height": 320, "base_width": 8}
    grid += [{**tiled, "tiles": name} for name in ("aggressive", "default")]
    grid += [{**tiled, "tiles": "spatial_only", "width": 704}, {**tiled, "tiles": "temporal_only", "frames": 81}]
    grid += [{**tiled, "tiles": "aggressive", "dtype": "bfloat16"}, {**tiled, "tiles": "default", "width": 608}]
    return [{**base, **change} for change in grid]


def _validation_table(runs: list[list[dict[str, Any]]]) -> str:
    """Planned against measured peaks, weights included."""
    head = f"{'generation':10}{'base':>5} {'dtype':9}{'size':>9}{'frames':>7} {'mode':7}{'order':8}{'chunk':>6}"
    rows = [f"{head}{'measured MB':>12}{'planned MB':>11}{'ratio':>7}"]
    ratios = []
    for (run,) in runs:
        ratios.append(run["planned_bytes"] / run["total_peak_bytes"])
        size = f"{run['width']}x{run['height']}"
        rows.append(
            f"{run['generation']:10}{run['base_width']:5} {run['dtype']:9}{size:>9}{run['frames']:7} {run['mode']:7}"
            f"{run['order']:8}{run['chunk'] or '':>6}{run['total_peak_bytes'] / _MB:12.1f}"
            f"{run['planned_bytes'] / _MB:11.1f}{ratios[-1]:7.2f}"
        )
    rows.append(f"{len(runs)} cases; planned / measured between {min(ratios):.2f} and {max(ratios):.2f}.")
    return "\n".join(rows)


def _in_fresh_process(case: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "mlx_ltx_vae.bench", _WORKER, json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LTXVAEError(f"a run of mode {case['mode']} with {case['frames']} frames failed: {last}")
    return json.loads(done.stdout)


def describe_machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "device": str(mx.default_device()),
        "mlx": mx.__version__,
        "preload": os.environ.get("LD_PRELOAD", ""),
    }


def _table(runs: list[list[dict[str, Any]]]) -> str:
    """Medians per case; times as a ratio to the single pass of as many frames, where there is one."""
    single = {
        results[0]["frames"]: statistics.median(run["seconds"] for run in results)
        for results in runs
        if results[0]["mode"] == "single"
    }
    rows = [
        f"{'mode':8}{'order':8}{'frames':>7}{'seconds':>9}{'ratio':>7}{'first':>8}{'peak MB':>10}{'B/pixel':>9}{'caches':>8}"
    ]
    for results in runs:
        run = results[0]
        seconds = statistics.median(run["seconds"] for run in results)
        first = statistics.median(run["first_frame_seconds"] for run in results)
        peak = max(run["peak_bytes"] for run in results)
        ratio = f"{seconds / single[run['frames']]:7.2f}" if run["frames"] in single else f"{'-':>7}"
        rows.append(
            f"{run['mode']:8}{run['order']:8}{run['frames']:7}{seconds:9.2f}{ratio}{first:8.2f}{peak / _MB:10.1f}"
            f"{run['bytes_per_pixel']:9.0f}{run['between_bytes'] / (run['width'] * run['height']):8.0f}"
        )
    weights = runs[0][0]["weights_bytes"] / _MB
    rows.append("B/pixel and caches (what is held between two chunks) are bytes per pixel of one frame.")
    rows.append(
        f"Medians of {len(runs[0])} fresh processes; peaks are the largest, without {weights:.0f} MB of weights."
    )
    return "\n".join(rows)


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 768x512")
    return int(match[1]), int(match[2])


if __name__ == "__main__":
    sys.exit(main())
