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
from .vae import DTYPES, VideoVAE

_WORKER = "--worker"
_MB = 1e6
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
    parser.add_argument("--modes", nargs="+", choices=["exact", "single"], default=["exact", "single"])
    parser.add_argument("--chunk", type=int, metavar="N", help="latent frames at a time in exact mode")
    parser.add_argument("--dtype", choices=list(DTYPES), help="default: the checkpoint's, float32 for random weights")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each (default: 3)")
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
        case: model, generation, base_width, dtype, width, height, frames, mode, chunk.

    Returns:
        seconds, first_frame_seconds, weights_bytes, peak_bytes (without weights), bytes_per_pixel (of that peak, per
        pixel of one frame), frames.
    """
    vae = _load(case)
    weights = sum(array.nbytes for _, array in tree_flatten(vae.decoder.parameters()))
    scale = vae.config.scale
    if (case["frames"] - 1) % scale.time or case["width"] % scale.width or case["height"] % scale.height:
        raise PlanError(
            f"{case['frames']} frames of {case['width']}x{case['height']} cannot be had: frames are "
            f"1 + {scale.time}*k, sides multiples of {scale.width}."
        )
    shape = (
        1,
        vae.config.latent_channels,
        1 + (case["frames"] - 1) // scale.time,
        case["height"] // scale.height,
        case["width"] // scale.width,
    )
    latents = mx.random.normal(shape, key=mx.random.key(0))
    mx.eval(latents)
    plan = vae.plan(shape, mode=case["mode"], chunk=case["chunk"] if case["mode"] == "exact" else None)
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    start = time.perf_counter()
    first = None
    frames = 0
    for chunk in vae.stream(latents, plan):
        frames += len(chunk.to_uint8())
        first = first or time.perf_counter() - start
        del chunk
    seconds = time.perf_counter() - start
    peak = mx.get_peak_memory() - held
    return {
        **case,
        "frames": frames,
        "seconds": seconds,
        "first_frame_seconds": first,
        "weights_bytes": weights,
        "peak_bytes": peak,
        "bytes_per_pixel": peak / (case["width"] * case["height"]),
    }


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
    cases = [
        {
            "model": arguments.model,
            "generation": None if arguments.model else arguments.generation,
            "base_width": None if arguments.model else arguments.base_width,
            "dtype": arguments.dtype,
            "width": arguments.size[0],
            "height": arguments.size[1],
            "frames": frames,
            "mode": mode,
            "chunk": arguments.chunk,
        }
        for frames in arguments.frames
        for mode in arguments.modes
    ]
    runs: list[list[dict[str, Any]]] = [[] for _ in cases]
    with tqdm(total=len(cases) * arguments.repeat, unit="run", disable=not sys.stderr.isatty()) as bar:
        for _ in range(arguments.repeat):
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
    print(_table(runs))


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
    rows = [f"{'mode':8}{'frames':>7}{'seconds':>9}{'ratio':>7}{'first':>8}{'peak MB':>10}{'B/pixel':>9}"]
    for results in runs:
        run = results[0]
        seconds = statistics.median(run["seconds"] for run in results)
        first = statistics.median(run["first_frame_seconds"] for run in results)
        peak = max(run["peak_bytes"] for run in results)
        ratio = f"{seconds / single[run['frames']]:7.2f}" if run["frames"] in single else f"{'-':>7}"
        rows.append(
            f"{run['mode']:8}{run['frames']:7}{seconds:9.2f}{ratio}{first:8.2f}{peak / _MB:10.1f}"
            f"{peak / (run['width'] * run['height']):9.0f}"
        )
    weights = runs[0][0]["weights_bytes"] / _MB
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
