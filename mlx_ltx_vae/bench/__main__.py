"""`python -m mlx_ltx_vae.bench`: measure this package on the machine at hand."""

import argparse
import json
import re
import sys
from itertools import product

from ..cli import add_common_options, run_command
from ..vae import DTYPES
from .case import GENERATION_NAMES, Case, Task
from .processes import WORKER, describe_machine, run_interleaved
from .tables import encode_table, plan_table, quality_table, timing_table, validation_cases, validation_table
from .worker import measure

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
    parser.add_argument("--dtype", choices=list(DTYPES), help="default: the checkpoint's, float32 for random weights")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each (default: 3)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE; - for standard output")

    what = parser.add_argument_group("what to measure (default: decoding)").add_mutually_exclusive_group()
    what.add_argument("--encode", action="store_true", help="encoding, as frames come, and in tiles with --tile")
    what.add_argument("--validate-plan", action="store_true", help="hold planned peaks against measured ones")
    what.add_argument("--plan-table", action="store_true", help="print LTX-2.3's planned peaks on a Mac")
    what.add_argument("--quality", action="store_true", help="compare each mode's frames with the single pass's")

    how = parser.add_argument_group("how to decode")
    how.add_argument(
        "--modes",
        nargs="+",
        choices=["exact", *_ORDERS, "single", "tiled"],
        default=["exact", "single"],
        help="time, rows and columns are the exact mode in that order (default: exact single)",
    )
    how.add_argument("--memory-budget", metavar="SIZE", help="plan with this budget, such as 8GB")
    how.add_argument("--chunk", type=int, metavar="N", help="latent frames at a time in exact mode")
    how.add_argument("--tile", metavar="TILES", help="a preset, or SIZE:OVERLAP in pixels (mode tiled: default)")
    how.add_argument(
        "--tile-batch-size", type=int, nargs="+", default=[1], metavar="N", help="tiles together (default: 1)"
    )

    random = parser.add_argument_group("random weights, without -m")
    random.add_argument("--generation", choices=sorted(GENERATION_NAMES), default="ltx-2.3")
    random.add_argument("--base-width", type=int, default=32, metavar="N", help="base channels (128 is real)")
    add_common_options(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == [WORKER]:
        print(json.dumps(measure(Case.from_dict(json.loads(argv[1])))))
        return 0
    return run_command(_bench, build_parser().parse_args(argv))


def _bench(arguments: argparse.Namespace) -> None:
    if arguments.plan_table:
        print(plan_table())
        return
    if arguments.quality:
        print(quality_table())
        return
    if arguments.validate_plan:
        runs = run_interleaved(validation_cases(), 1)
    else:
        runs = run_interleaved(_encodes(arguments) if arguments.encode else _decodes(arguments), arguments.repeat)
    report = {"machine": describe_machine(), "runs": [run for results in runs for run in results]}
    if arguments.json == "-":
        print(json.dumps(report))
        return
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    table = validation_table if arguments.validate_plan else encode_table if arguments.encode else timing_table
    print(table(runs))


def _decodes(arguments: argparse.Namespace) -> list[Case]:
    """Every mode with every length."""
    cases = []
    for frames, name in product(arguments.frames, arguments.modes):
        mode, order = ("exact", name) if name in _ORDERS else (name, "auto")
        options = _shared(arguments) | {"frames": frames, "mode": mode, "order": order}
        if mode == "exact":
            options["chunk"] = arguments.chunk
        for size in arguments.tile_batch_size if mode == "tiled" else [1]:
            cases.append(Case(**options, tile_batch_size=size))
    return cases


def _encodes(arguments: argparse.Namespace) -> list[Case]:
    """Every length as it comes, and in tiles where any are asked for."""
    cases = []
    for frames in arguments.frames:
        options = _shared(arguments) | {"task": Task.ENCODE, "frames": frames}
        cases.append(Case(**options, mode="stream"))
        if arguments.tile:
            cases += [Case(**options, mode="tiled", tile_batch_size=size) for size in arguments.tile_batch_size]
    return cases


def _shared(arguments: argparse.Namespace) -> dict[str, object]:
    """What all cases of a command have in common."""
    return {
        "model": arguments.model,
        "generation": arguments.generation,
        "base_width": arguments.base_width,
        "dtype": arguments.dtype,
        "width": arguments.size[0],
        "height": arguments.size[1],
        "tiles": arguments.tile or "default",
        "memory_budget": arguments.memory_budget,
    }


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 768x512")
    return int(match[1]), int(match[2])


if __name__ == "__main__":
    sys.exit(main())
