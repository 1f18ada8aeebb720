"""`python -m mlx_ltx_vae.bench`: what decoding takes, in time and memory.

Every figure comes from a fresh process, so that no run sees another's compiled kernels or buffers, and runs of
different modes are interleaved, so that a machine whose speed drifts treats them alike. Quote the ratios.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from tqdm import tqdm

from .bench_tables import (
    GENERATION_NAMES,
    latent_grid,
    plan_table,
    quality_table,
    timing_table,
    validation_cases,
    validation_table,
)
from .cli import add_common_options, run_command
from .config import GENERATIONS, parse_vae_config
from .decoder import Decoder
from .errors import LTXVAEError
from .tiling import preset
from .vae import DTYPES, VideoVAE

_WORKER = "--worker"
_ORDERS = ("time", "rows", "columns")


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
    parser.add_argument("--plan-table", action="store_true", help="print LTX-2.3's planned peaks on a Mac")
    parser.add_argument("--quality", action="store_true", help="compare each mode's frames with the single pass's")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE; - for standard output")
    random = parser.add_argument_group("random weights, without -m")
    random.add_argument("--generation", choices=sorted(GENERATION_NAMES), default="ltx-2.3")
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
    grid = latent_grid(vae.config, case["frames"], case["height"], case["width"])
    shape = (1, vae.config.latent_channels, *grid)
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


def _load(case: dict[str, Any]) -> VideoVAE:
    if case["model"]:
        return VideoVAE.from_pretrained(case["model"], dtype=case["dtype"], encoder=False)
    widths = {"decoder_base_channels": case["base_width"], "encoder_base_channels": case["base_width"]}
    name = GENERATION_NAMES[case["generation"]]
    config = parse_vae_config({**GENERATIONS[name], **widths}, name)
    mx.random.seed(0)
    decoder = Decoder(config.decoder, config.patch_size)
    decoder.set_dtype(DTYPES[case["dtype"] or "float32"])
    mx.eval(decoder.parameters())
    channels = (config.latent_channels,)
    return VideoVAE(config, None, decoder, mx.zeros(channels), mx.ones(channels))


def _bench(arguments: argparse.Namespace) -> None:
    if arguments.plan_table:
        print(plan_table())
        return
    if arguments.quality:
        print(quality_table())
        return
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
    print(validation_table(runs) if arguments.validate_plan else timing_table(runs))


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


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 768x512")
    return int(match[1]), int(match[2])


if __name__ == "__main__":
    sys.exit(main())
