"""`python -m benchmarks`: measurements that developers run, one subcommand each."""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from benchmarks.against import against_jobs, against_table
from benchmarks.against_diffusers import SUBJECTS, diffusers_jobs, diffusers_table
from benchmarks.audio import SECONDS, audio_table, share_jobs, share_table, work_share
from benchmarks.copies import copies_jobs, copies_table
from benchmarks.decoders import DECODERS, decoder_jobs, decoder_table
from benchmarks.formulations import formulation_jobs, formulation_table
from benchmarks.host import host_jobs, host_table
from benchmarks.loading import loading_jobs, loading_table
from benchmarks.measuring import Case, Job, Run, chosen_modes, make_case, open_case, report
from benchmarks.overlap import overlap, overlap_table
from benchmarks.plan_table import plan_table
from benchmarks.quality import precision_jobs, precision_table, quality_jobs, quality_table
from benchmarks.roofline import roofline, roofline_table
from benchmarks.validation import validation_jobs, validation_table
from mlx_ltx_vae.backend.machine import DtypeName
from mlx_ltx_vae.commands.cli import (
    CommandParser,
    add_common_options,
    frame_size,
    memory_budget,
    positive,
    tile,
)
from mlx_ltx_vae.commands.terminal import print_report, run_command
from mlx_ltx_vae.errors import LTXVAEError
from mlx_ltx_vae.latents import load_latents
from mlx_ltx_vae.networks.families import published
from mlx_ltx_vae.options import ModeName, OrderName
from mlx_ltx_vae.tiling import PRESETS

_DOCS = Path(__file__).parents[1] / "docs"

#: Measurements of fixed cases: what makes their jobs and their table, and a description.
_FIXED = {
    "copies": (copies_jobs, copies_table, "bytes that a decode by time copies with the formulations for Metal"),
    "formulations": (formulation_jobs, formulation_table, "what the package's convolutions gain over plain MLX"),
    "host": (host_jobs, host_table, "Python and graphs of a decode by time with the formulations for a GPU"),
    "validate-plan": (validation_jobs, validation_table, "planned peaks against measured ones"),
}


def _draw_pictures() -> str:
    """Draw the pictures of docs/; returns what is printed."""
    try:
        from benchmarks.pictures import draw_pictures
    except ImportError as error:  # the other measurements need no matplotlib
        raise LTXVAEError(f'pictures cannot be drawn ({error}); run: pip install "mlx_ltx_vae[dev]".') from error
    return f"written: {', '.join(draw_pictures(_DOCS))}"


#: What needs no options: what makes the text that is printed, and a description.
_PRINTED = {
    "plan-table": (plan_table, "LTX-2.3's planned peaks on a Mac"),
    "pictures": (
        _draw_pictures,
        "draw docs/demo.gif, docs/tiles.png and docs/previews.png from the demo clip",
    ),
}


def build_parser() -> CommandParser:
    """Build the command line."""
    parser = CommandParser(prog="python -m benchmarks", description="Measure this package in detail.")
    commands = parser.add_subparsers(required=True, metavar="MEASUREMENT")

    def add(name: str, run: Callable[[argparse.Namespace], None], description: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=description, description=description)
        command.set_defaults(run=run)
        return command

    ports = "our modes, and tiles as MLX ports run them, on the same weights and latents"
    _add_decode_options(add("against", partial(_compare, against_jobs, against_table), ports), 57)
    theirs = "the diffusion decoder, or audio, against diffusers on torch with the same weights"
    _add_diffusers(add("diffusers", _diffusers, theirs))
    _add_decoders(add("decoders", _decoders, "faster decoders against the full one on the same latents"))
    overlapping = add("overlap", _overlap, "whether frames are written while the next ones are decoded")
    _add_decode_options(overlapping, 241, ["exact"])
    overlapping.add_argument("--ffmpeg", action="store_true", help="write an mp4 too")
    precision = partial(_compare, precision_jobs, precision_table)
    _add_decode_options(add("precision", precision, "time, memory and accuracy of each dtype"), 57)
    _add_run_options(add("quality", _quality, "what tiles and half precision cost in quality, on the demo clip"))
    _add_loading(add("loading", _loading, "time and memory of loading a checkpoint"))
    _add_audio(add("audio", _audio, "speed and memory of an audio VAE, and its share of a video's decode"))
    share = "the audio's share of the time of a decode of 768x512, at reduced widths"
    _add_reduced(add("audio-share", partial(_reduced, share_jobs, share_table), share))
    limits = add("roofline", _roofline, "decodes against their convolutions alone, and synchronizations")
    _add_decode_options(limits, 57, ["exact", "single"])
    for name, (jobs, make_table, description) in _FIXED.items():
        _add_run_options(add(name, partial(_report_fixed, jobs, make_table), description))
    for name, (make_text, description) in _PRINTED.items():
        add_common_options(add(name, partial(_print_text, make_text), description))
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = build_parser().parse_args(argv)
    return run_command(options.run, options)


def _add_decode_options(parser: argparse.ArgumentParser, frames: int, modes: Sequence[str] = ()) -> None:
    """Options of decodes. Measurements with `modes` take several modes and lengths, the others one length."""
    length = f"length of the video, 1 + 8*k{'; may be given more than once' if modes else ''} (default: {frames})"
    several: dict[str, Any] = {"action": "append"} if modes else {"default": frames}
    parser.add_argument("--num-frames", type=positive, metavar="N", help=length, **several)
    if modes:
        modes_help = f"as in decode; may be given more than once (default: {' and '.join(modes)})"
        parser.add_argument("--mode", action="append", choices=get_args(ModeName), help=modes_help)
        orders = "of the exact mode, as in decode; may be given more than once (default: auto)"
        parser.add_argument("--order", action="append", choices=get_args(OrderName), help=orders)
        parser.set_defaults(default_modes=modes, default_frames=frames)
    parser.add_argument("-m", "--model", metavar="VAE", help="checkpoint (default: random weights)")
    parser.add_argument("--size", type=frame_size, default=(256, 256), metavar="WxH", help="(default: 256x256)")
    layers = "whose layers random weights have (default: ltx-2.3)"
    parser.add_argument("--generation", choices=published(), default="ltx-2.3", metavar="NAME", help=layers)
    channels = "channels of the last layers of random weights (default: 32; the published VAEs have 128)"
    parser.add_argument("--base-width", type=positive, default=32, metavar="N", help=channels)
    precision = "compute in this precision (default: the checkpoint's, float32 for random weights)"
    parser.add_argument("--dtype", choices=get_args(DtypeName), help=precision)
    parser.add_argument("--memory-budget", type=memory_budget, metavar="SIZE", help="as in decode")
    parser.add_argument("--chunk", type=positive, metavar="N", help="as in decode")
    tiles = parser.add_mutually_exclusive_group()
    tiles.add_argument("--tile", type=tile, metavar="SIZE:OVERLAP", help="tiles of mode tiled, as in decode")
    tiles.add_argument("--preset", choices=PRESETS, metavar="NAME", help="tiles of mode tiled, as in decode")
    _add_run_options(parser)


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    """Options that every measurement has."""
    parser.add_argument("--repeat", type=positive, default=3, metavar="N", help="runs, or rounds, of each (default: 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--save", metavar="FILE", help="write that object to FILE")
    add_common_options(parser)


def _report_fixed(
    jobs: Callable[[], list[Job]], make_table: Callable[[list[list[Run]]], str], options: argparse.Namespace
) -> None:
    report(options, jobs(), make_table)


def _print_text(make_text: Callable[[], str], _: argparse.Namespace) -> None:
    print_report(make_text())


def _compare(
    jobs: Callable[[Case, str], list[Job]], make_table: Callable[[list[list[Run]]], str], options: argparse.Namespace
) -> None:
    """Measure decodes of a case, which are compared with one whose frames are in a file."""
    case = make_case(options, frames=options.num_frames)
    with tempfile.TemporaryDirectory() as folder:
        report(options, jobs(case, f"{folder}/reference.npy"), make_table)


def _add_diffusers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", choices=list(SUBJECTS))
    _add_reduced(parser)


def _add_reduced(parser: argparse.ArgumentParser) -> None:
    width = "1/N of the published widths, with random weights: 1, 2, 4 or 8 (default: 4)"
    parser.add_argument("--divisor", type=int, choices=(1, 2, 4, 8), default=4, metavar="N", help=width)
    _add_run_options(parser)


def _reduced(
    jobs: Callable[[int], list[Job]], make_table: Callable[[int, list[list[Run]]], str], options: argparse.Namespace
) -> None:
    report(options, jobs(options.divisor), partial(make_table, options.divisor))


def _diffusers(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        jobs = diffusers_jobs(options.subject, options.divisor, folder)
        report(options, jobs, partial(diffusers_table, options.divisor))


def _add_decoders(parser: argparse.ArgumentParser) -> None:
    _add_decode_options(parser, 57)
    parser.add_argument("--latents", metavar="FILE", help="with -m, what to decode")
    files = f"with -m, a faster decoder ({', '.join(DECODERS)}) and its checkpoint, any number of times"
    parser.add_argument("--decoder", nargs=2, action="append", default=[], metavar=("NAME", "FILE"), help=files)


def _decoders(options: argparse.Namespace) -> None:
    case = make_case(options, frames=options.num_frames)
    if unknown := dict(options.decoder).keys() - DECODERS:
        raise LTXVAEError(f"the faster decoder {unknown.pop()!r} is not known; known are {', '.join(DECODERS)}.")
    if bool(options.model) != bool(options.latents):
        raise LTXVAEError("decoders takes -m and --latents together, or none of them for random weights and noise.")
    if options.latents:
        grid = load_latents(options.latents)[0].shape[2:]
        frames, height, width = open_case(case).config.scale.video_grid(grid)
        case = replace(case, latents=options.latents, frames=frames, height=height, width=width)
    with tempfile.TemporaryDirectory() as folder:
        jobs = decoder_jobs(case, dict(options.decoder), f"{folder}/full.npy")
        report(options, list(jobs.values()), partial(decoder_table, list(jobs)))


def _quality(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report(options, quality_jobs(f"{folder}/single.npy"), quality_table)


def _add_loading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--model", metavar="FILE", help="a checkpoint file (default: random weights, in float32)")
    width = "channels of the last layers of random weights (default: 128, as in the published VAEs)"
    parser.add_argument("--base-width", type=positive, default=128, metavar="N", help=width)
    _add_run_options(parser)


def _loading(options: argparse.Namespace) -> None:
    with loading_jobs(options.model, options.base_width) as jobs:
        report(options, jobs, loading_table)


def _add_audio(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("audio_model", metavar="AUDIO")
    parser.add_argument("-m", "--model", metavar="VAE", help="the video VAE, for the share")
    parser.add_argument("--seconds", nargs="+", type=positive, default=list(SECONDS), metavar="S")
    add_common_options(parser)


def _audio(options: argparse.Namespace) -> None:
    print_report(audio_table(options.audio_model, tuple(options.seconds)))
    if options.model:
        print_report(work_share(options.audio_model, options.model))


def _overlap(options: argparse.Namespace) -> None:
    report(options, _repeating_jobs(options, overlap, ffmpeg=options.ffmpeg), overlap_table)


def _roofline(options: argparse.Namespace) -> None:
    report(options, _repeating_jobs(options, roofline), roofline_table)


def _repeating_jobs(options: argparse.Namespace, measure: Callable[..., dict[str, Any]], **extra: Any) -> list[Job]:
    """Every mode with every length, for a measurement that repeats by itself."""
    return [
        Job(measure, make_case(options, frames=frames, **fields), {"rounds": options.repeat, **extra}, once=True)
        for frames in options.num_frames or [options.default_frames]
        for fields in chosen_modes(options, options.default_modes)
    ]


if __name__ == "__main__":
    sys.exit(main())
