"""Options of the commands, as typed values. This module imports no MLX."""

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from ..backend.machine import DtypeName
from ..model_table import Kind, list_names
from ..options import CHOICES, DecodeOptions, OutputOptions, PlanOptions
from ..startup import import_command
from .cli import (
    CommandParser,
    add_report_options,
    argument_type,
    count,
    frame_rate,
    grid,
    memory_budget,
    positive,
    share,
    time_range,
)

OptionsT = TypeVar("OptionsT", PlanOptions, DecodeOptions, OutputOptions)

#: Environment variable with the default of -m.
MODEL_VARIABLE = "MLX_LTX_VAE_MODEL"


def add_option(
    group: argparse._ActionsContainer, options: type[OptionsT], name: str, parse: Callable[[str], Any] = str
) -> None:
    """Add the option of a field, with its default, choices and help. `parse` is the type of its argument."""
    field = options.__dataclass_fields__[name]
    notes, help = field.metadata, field.metadata["help"]
    keywords: dict[str, Any] = {"type": parse, "metavar": notes["metavar"], "choices": notes["choices"]}
    if field.default is False:
        keywords = {"action": "store_true"}
    flag = notes["flag"] or f"--{name.replace('_', '-')}"
    group.add_argument(flag, dest=name, default=field.default, help=help, **keywords)


def read_options(options: type[OptionsT], arguments: argparse.Namespace, **values: Any) -> OptionsT:
    """Return the options that `add_option` added, as their arguments have them, and other values."""
    names = [field.name for field in fields(options) if "help" in field.metadata and hasattr(arguments, field.name)]
    return options(**{name: getattr(arguments, name) for name in names} | values)


def add_latent_files(parser: CommandParser) -> None:
    """Add the inputs of commands that read lists of latent files."""
    files = """latent files: .safetensors, .latent, .npy, .npz; folders of them; - for standard input; @clips.txt for
        a list of files, one per line; clips.csv for a table with a column path, and optionally output"""
    parser.add_argument("latents", nargs="*", metavar="LATENTS", help=files)
    parser.add_argument("--list", metavar="FILE", help="a file that names latent files, one per line, as @FILE does")
    add_latents_options(parser)


def add_latents_options(group: argparse._ActionsContainer, *, unnormalized: bool = True) -> None:
    """Add the options of how latents are read, that they are not normalized among them."""
    if unnormalized:
        pipelines = "the latents are unnormalized, as diffusers' LTX-2 pipelines return them"
        group.add_argument("--unnormalized", action="store_true", default=None, help=pipelines)
    group.add_argument("--tensor", metavar="NAME", help="the tensor to read from a latent file with several")
    sizes = "latent frames, rows and columns of packed latents (B, tokens, C), such as 16x22x40"
    group.add_argument("--grid", type=grid, metavar="FxHxW", help=sizes)


#: What happens to files that exist, also in docs/usage.md.
OVERWRITE_RULE = (
    "replace existing output files (default: ask in a terminal, and elsewhere refuse; without -o, the output gets the "
    "next free number)"
)

# Seconds without an exchange between ranks. Opening a checkpoint and the inputs takes less.
_RANK_TIMEOUT = 1800


def add_job_options(parser: CommandParser) -> None:
    """Add the options of commands that run a network, and those of every command."""
    add_plan_options(parser)
    shared = """with mlx.launch, how ranks divide the work. batch: each runs some of the inputs, on its own; a single
        input is an error. off: only the first rank works. auto (default): batch for several inputs, off for one"""
    parser.add_argument("--distributed", choices=["auto", "batch", "off"], default="auto", help=shared)
    timeout = """with mlx.launch, exit if the ranks exchange nothing for this long, because one is stopped or asleep
        (default: %(default)s)"""
    parser.add_argument("--rank-timeout", type=positive, default=_RANK_TIMEOUT, metavar="SECONDS", help=timeout)
    parser.add_argument("--dry-run", action="store_true", help="print the plan with its peak memory, and exit")
    parser.add_argument("--progress", choices=["auto", "json"], default="auto", help=PROGRESS)
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("-n", "--skip-existing", action="store_true", help="skip inputs whose output exists")
    existing.add_argument("-y", "--overwrite", action="store_true", help=OVERWRITE_RULE)
    add_report_options(parser)


def add_plan_options(group: argparse._ActionsContainer) -> None:
    """Add the options of memory and precision."""
    add_option(group, PlanOptions, "memory_budget", memory_budget)
    group.add_argument(
        "--dtype", choices=get_args(DtypeName), help="compute in this precision (default: the checkpoint's)"
    )


#: Help of --progress.
PROGRESS = """how progress is shown. json: a JSON object a line on standard error, each second and at each change, with
    the phase, the fraction of the work, frames, seconds and seconds left; at the end the report (default: a bar in
    a terminal, or a line a minute)"""


if TYPE_CHECKING:
    from ..frame_format import FrameStep


@dataclass(frozen=True)
class StepOption:
    """Option of `decode` that adds a step between decoder and outputs.

    `make` names a function, "module:function", which is imported when the option is used. It returns the step of an
    argument, or raises a `ValueError` or a `WriterError` that states which arguments are valid.
    """

    name: str  # such as "--grain"
    make: str
    metavar: str
    help: str

    @property
    def dest(self) -> str:
        return f"step{self.name}"  # differs from the destinations of all other options


#: In the order in which the steps run.
STEP_OPTIONS: tuple[StepOption, ...] = ()


def add_input_options(
    parser: CommandParser, *, output: str, demo: str, kind: Kind = Kind.VIDEO, model: str = "VAE", more: str
) -> None:
    """Add the latents, their output, the checkpoint and the frames to decode. `more` names more kinds of output."""
    add_latent_files(parser)
    formats = f"""the output, by its ending .mp4 .mov .mkv .webm .gif .webp .avif .npy; {more}folder/ for videos named
        after the inputs, folder/clip.mp4; a pattern such as folder/{{name}}.mkv; frames/%%05d.png for stills; - for raw
        frames on standard output (default: {output} in the working folder)"""
    parser.add_argument("-o", "--output", metavar="OUT", help=formats)
    workflow = """do not copy ComfyUI's prompt and workflow, which may contain keys and paths, from the latent file to
        the output"""
    parser.add_argument("--no-workflow", dest="workflow", action="store_false", help=workflow)
    variable = "" if kind is Kind.PREVIEW else f"{MODEL_VARIABLE}, or "
    checkpoints = f"""the checkpoint: {list_names([kind])}, or a file, folder, folder:file, or hub id (default:
        {variable}a cached model of the VAE that the latents state)"""
    parser.add_argument("-m", "--model", metavar=model, help=checkpoints)
    parser.add_argument("--demo", action="store_true", help=f"use {demo}")
    join = """decode the latent files, or the files of a folder by their numbers, to one video: each alone, and
        crossfaded with the next one"""
    parser.add_argument("--join", action="store_true", help=join)
    carry = "video frames that a window shares with the one before (default: as the files state, else 25)"
    parser.add_argument("--carry", type=count, metavar="N", help=carry)
    blend = "how many of these frames, the last ones, are crossfaded; 0 for a hard cut (default: all that fit)"
    parser.add_argument("--blend", type=count, metavar="N", help=blend)
    rate = "frames per second: 24, 23.976, 30000/1001 (default: the file's, else 24)"
    parser.add_argument("--fps", type=frame_rate, metavar="RATE", help=rate)
    frames = """decode only frames A to B - 1, counted from 0, exactly as in the whole video; 48 or :48 for the first
        48, 24: from frame 24 on, -24: for the last 24; 0:2s for the first two seconds"""
    parser.add_argument("--frames", type=time_range, metavar="A:B", help=frames)
    padding = "also decode the frames at the end with which encode --pad filled the last latent frame"
    parser.add_argument("--all-frames", action="store_true", help=padding)


def add_noise_options(how: argparse._ActionsContainer) -> None:
    """Add the options of decoders that take a timestep or noise."""
    add_option(how, DecodeOptions, "timestep", share)
    add_option(how, DecodeOptions, "seed", argument_type(_parse_seed))
    add_option(how, DecodeOptions, "noise_scale", share)
    add_option(how, DecodeOptions, "like")


def _parse_seed(text: str) -> int:
    check_seed = import_command("mlx_ltx_vae.networks.noise:check_seed")
    return check_seed(int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else text)


#: Help of --audio-tensor.
AUDIO_TENSOR = "the tensor with the audio latents, in a latent file (default: one of the names in docs/audio.md)"


def add_step_options(parser: CommandParser) -> list[str]:
    """Add the options of steps, and return their destinations."""
    for step in STEP_OPTIONS:
        make: Callable[[str], FrameStep] = argument_type(step.make)
        parser.add_argument(step.name, dest=step.dest, type=make, metavar=step.metavar, help=step.help)
    return [step.dest for step in STEP_OPTIONS]


def chosen_steps(arguments: argparse.Namespace) -> "tuple[FrameStep, ...]":
    """Return the steps of the arguments, in order."""
    steps = (getattr(arguments, option.dest) for option in STEP_OPTIONS)
    return tuple(step for step in steps if step is not None)


def add_hdr_options(parser: CommandParser) -> None:
    """Add the options of HDR latents."""
    curve = """the latents are HDR: acescct for LTX-2.5, logc3 for the HDR LoRA of LTX-2.3. Decodes in float32, unless
        --dtype says otherwise, to an HLG master in HEVC"""
    parser.add_argument("--hdr", choices=CHOICES["hdr"], help=curve)
    signal = """what --hdr writes: hlg (default); pq, with diffuse white at 203 cd/m2; or sdr, tone-mapped"""
    parser.add_argument("--hdr-output", choices=CHOICES["hdr_output"], help=signal)
    parser.add_argument("--exposure", type=float, metavar="STOPS", help="brighten --hdr-output sdr (default: 0)")
    folder = """with --hdr, also write EXR images to this folder, or for several inputs to a subfolder each; without -o,
        write nothing else, as with -o frames/%%05d.exr"""
    parser.add_argument("--exr", metavar="FOLDER", help=folder)
    space = "the color space of EXR images: linear sRGB (default), linear ACEScg, or ACEScct codes"
    parser.add_argument("--exr-space", choices=CHOICES["exr_space"], help=space)
