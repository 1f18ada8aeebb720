"""`python -m mlx_ltx_vae.bench`: measure this package on the machine at hand."""

import argparse
import json
import sys
from contextlib import redirect_stdout

from ..cli import add_common_options, frame_size, positive, run_command
from ..vae import DTYPES
from .against import OURS
from .case import GENERATION_NAMES, Case
from .measurements import ORDERS, choose
from .others import OTHERS
from .plans import plan_table
from .plot import check_plot, draw
from .processes import WORKER, describe_machine
from .worker import measure


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m mlx_ltx_vae.bench",
        description="Measure time and peak memory of decoding, each run in a fresh process.",
    )
    parser.add_argument("-m", "--model", metavar="VAE", help="checkpoint (default: random weights, see below)")
    parser.add_argument("--size", type=frame_size, default=(256, 256), metavar="WxH", help="default: 256x256")
    parser.add_argument(
        "--frames", type=positive, nargs="+", metavar="N", help="1 + 8*k (default: 57; 241 with --overlap)"
    )
    parser.add_argument("--dtype", choices=list(DTYPES), help="default: the checkpoint's, float32 for random weights")
    parser.add_argument("--repeat", type=positive, default=3, metavar="N", help="runs, or rounds, of each (default: 3)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE; - for standard output")
    parser.add_argument("--plot", metavar="FILE", help="draw memory and times of decodes (also of --against) to FILE")

    what = parser.add_argument_group("what to measure (default: decoding)").add_mutually_exclusive_group()
    what.add_argument("--encode", action="store_true", help="encoding, as frames come, and in tiles with --tile")
    what.add_argument("--roofline", action="store_true", help="decodes against their bare convolutions, and syncs")
    what.add_argument("--overlap", action="store_true", help="whether frames are written while others are computed")
    what.add_argument("--precision", action="store_true", help="speed, peak and accuracy of each precision")
    what.add_argument(
        "--against",
        nargs="*",
        choices=[*OURS, *OTHERS],
        metavar="WHAT",
        help=f"our ways and others' on the same weights and latents: {', '.join((*OURS, *OTHERS))} (default: all)",
    )
    what.add_argument("--validate-plan", action="store_true", help="hold planned peaks against measured ones")
    what.add_argument("--plan-table", action="store_true", help="print LTX-2.3's planned peaks on a Mac")
    what.add_argument("--quality", action="store_true", help="compare each mode's frames with the single pass's")

    how = parser.add_argument_group("how to decode")
    how.add_argument(
        "--modes",
        nargs="+",
        choices=["exact", *ORDERS, "single", "tiled"],
        help="time, rows and columns are the exact mode in that order (default: exact single; exact with --overlap)",
    )
    how.add_argument("--memory-budget", metavar="SIZE", help="plan with this budget, such as 8GB")
    how.add_argument("--chunk", type=positive, metavar="N", help="latent frames at a time in exact mode")
    how.add_argument("--tile", metavar="TILES", help="a preset, or SIZE:OVERLAP in pixels (mode tiled: default)")
    how.add_argument(
        "--tile-batch-size", type=positive, nargs="+", default=[1], metavar="N", help="tiles together (default: 1)"
    )
    how.add_argument("--ffmpeg", action="store_true", help="with --overlap: an mp4 as a sink too")

    random = parser.add_argument_group("random weights, without -m")
    random.add_argument("--generation", choices=sorted(GENERATION_NAMES), default="ltx-2.3")
    random.add_argument("--base-width", type=positive, default=32, metavar="N", help="base channels (128 is real)")
    add_common_options(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == [WORKER]:
        with redirect_stdout(sys.stderr):  # where others' code says what it likes
            measured = measure(Case.from_dict(json.loads(argv[1])))
        print(json.dumps(measured))
        return 0
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.ffmpeg and not arguments.overlap:
        parser.error("--ffmpeg goes with --overlap")
    if arguments.plan_table and arguments.json:
        parser.error("--plan-table measures nothing, so there is nothing for --json")
    if (arguments.against is not None or arguments.precision) and len(arguments.frames or []) > 1:
        parser.error("--against and --precision take one length; give --frames one number")
    if arguments.plot:
        _check_plot(parser, arguments)
    return run_command(_bench, arguments)


def _check_plot(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    others = ("encode", "roofline", "overlap", "precision", "validate_plan", "plan_table", "quality")
    if any(getattr(arguments, name) for name in others):
        parser.error("--plot draws decodes; it goes with --against, or with nothing else to measure")
    if len(arguments.frames or []) > 1:
        parser.error("--plot draws decodes of one length; give --frames one number")


def _bench(arguments: argparse.Namespace) -> None:
    if arguments.plan_table:
        print(plan_table())
        return
    if arguments.plot:
        check_plot()
    measurement = choose(arguments)
    runs = measurement.run(arguments)
    report = {"machine": describe_machine(), "runs": [run for results in runs for run in results]}
    if arguments.plot:
        draw(runs, arguments.plot)
    if arguments.json == "-":
        print(json.dumps(report))
        return
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    print(measurement.table(runs))


if __name__ == "__main__":
    sys.exit(main())
