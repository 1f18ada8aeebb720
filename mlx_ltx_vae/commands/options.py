"""Options of the commands, as typed values. This module imports no MLX."""

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from .. import tiling
from ..backend.machine import DtypeName
from ..model_table import Kind, list_names
from ..options import BitDepth, DecodeOptions, ExrSpaceName, OutputOptions, PlanOptions, SignalName, Transfer
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
    tile,
    tile_frames,
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


def add_network_options(
    parser: argparse.ArgumentParser, *, demo: str, kind: Kind = Kind.VIDEO, metavar: str = "VAE", default: str = ""
) -> None:
    """Add the options that choose the checkpoint, of this kind. `default` describes what is used without -m."""
    model = f"the checkpoint: {list_names([kind])}, or a file, folder, folder:file, or hub id{default}"
    parser.add_argument("-m", "--model", metavar=metavar, help=model)
    parser.add_argument("--demo", action="store_true", help=f"use {demo}")


#: Help of the inputs of commands that read latents.
LATENT_FILES = """latent files: .safetensors, .latent, .npy, .npz; folders of them; - for standard input; @clips.txt for
    a list of files, one per line; clips.csv for a table with a column path, and optionally output"""


def add_latents_options(group: argparse._ActionsContainer) -> None:
    """Add the options of commands that read latents."""
    group.add_argument("--tensor", metavar="NAME", help="the tensor to read from a latent file with several")
    sizes = "latent frames, rows and columns of packed latents (B, tokens, C), such as 16x22x40"
    group.add_argument("--grid", type=grid, metavar="FxHxW", help=sizes)


def add_list_option(parser: CommandParser) -> None:
    """Add the option of commands that take lists of latent files."""
    parser.add_argument("--list", metavar="FILE", help="a file that names latent files, one per line, as @FILE does")


def add_unnormalized_option(group: argparse._ActionsContainer) -> None:
    """Add the option that says that latents are not normalized."""
    unnormalized = "the latents are unnormalized, as diffusers' LTX-2 pipelines return them"
    group.add_argument("--unnormalized", action="store_true", default=None, help=unnormalized)


#: What happens to files that exist, also in docs/usage.md.
OVERWRITE_RULE = (
    "replace existing output files (default: ask in a terminal, and elsewhere refuse; without -o, the output gets the "
    "next free number)"
)

# Seconds without an exchange between ranks. Opening a checkpoint and the inputs takes less.
_RANK_TIMEOUT = 1800


def add_job_options(parser: CommandParser, group: argparse._ActionsContainer) -> None:
    """Add the options of commands that run a network.

    The `group` gets the options of memory, precision and ranks. The parser gets the options of existing outputs and of
    reports, and the options of every command.
    """
    add_plan_options(group)
    shared = """with mlx.launch, how ranks divide the work. batch: each runs some of the inputs, on its own; a single
        input is an error. off: only the first rank works. auto (default): batch for several inputs, off for one"""
    group.add_argument("--distributed", choices=["auto", "batch", "off"], default="auto", help=shared)
    timeout = """with mlx.launch, exit if the ranks exchange nothing for this long, because one is stopped or asleep
        (default: %(default)s)"""
    group.add_argument("--rank-timeout", type=positive, default=_RANK_TIMEOUT, metavar="SECONDS", help=timeout)
    group.add_argument("--dry-run", action="store_true", help="print the plan with its peak memory, and exit")
    add_progress_option(parser)
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


def add_progress_option(parser: CommandParser) -> None:
    """Add the option of commands that take long."""
    lines = """how progress is shown. json: a JSON object a line on standard error, each second and at each change, with
        the phase, the fraction of the work, frames, seconds and seconds left; at the end the report (default: a bar in
        a terminal, or a line a minute)"""
    parser.add_argument("--progress", choices=["auto", "json"], default="auto", help=lines)


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
    parser.add_argument("latents", nargs="*", metavar="LATENTS", help=LATENT_FILES)
    formats = f"""the output, by its ending .mp4 .mov .mkv .webm .gif .webp .avif .npy; {more}folder/ for videos named
        after the inputs, folder/clip.mp4; a pattern such as folder/{{name}}.mkv; frames/%%05d.png for stills; - for raw
        frames on standard output (default: {output} in the working folder)"""
    parser.add_argument("-o", "--output", metavar="OUT", help=formats)
    workflow = """do not copy ComfyUI's prompt and workflow, which may contain keys and paths, from the latent file to
        the output"""
    parser.add_argument("--no-workflow", dest="workflow", action="store_false", help=workflow)
    add_list_option(parser)
    variable = "" if kind is Kind.PREVIEW else f"{MODEL_VARIABLE}, or "
    default = f" (default: {variable}a cached model of the VAE that the latents state)"
    add_network_options(parser, demo=demo, kind=kind, metavar=model, default=default)
    film = parser.add_argument_group("a film of overlapping windows")
    join = """decode the latent files, or the files of a folder by their numbers, to one video: each alone, and
        crossfaded with the next one"""
    film.add_argument("--join", action="store_true", help=join)
    carry = "video frames that a window shares with the one before (default: as the files state, else 25)"
    film.add_argument("--carry", type=count, metavar="N", help=carry)
    blend = "how many of these frames, the last ones, are crossfaded; 0 for a hard cut (default: all that fit)"
    film.add_argument("--blend", type=count, metavar="N", help=blend)
    rate = "frames per second: 24, 23.976, 30000/1001 (default: the file's, else 24)"
    parser.add_argument("--fps", type=frame_rate, metavar="RATE", help=rate)
    frames = """decode only frames A to B - 1, counted from 0, exactly as in the whole video; 48 or :48 for the first
        48, 24: from frame 24 on, -24: for the last 24; 0:2s for the first two seconds"""
    parser.add_argument("--frames", type=time_range, metavar="A:B", help=frames)
    padding = "also decode the frames at the end with which encode --pad filled the last latent frame"
    parser.add_argument("--all-frames", action="store_true", help=padding)
    add_latents_options(parser)
    add_unnormalized_option(parser)


def add_mode_options(how: argparse._ArgumentGroup) -> None:
    """Add the options of mode, order and tiles."""
    add_option(how, PlanOptions, "mode")
    add_option(how, PlanOptions, "order")
    add_option(how, PlanOptions, "chunk", positive)
    space = "decode in tiles of SIZE pixels that share OVERLAP pixels with their neighbors, such as 512:64; not exact"
    how.add_argument("--tile", type=tile, metavar="SIZE:OVERLAP", help=space)
    time = """decode in tiles of SIZE frames of the video that share OVERLAP frames with the next, such as 64:24; the
        shared frames are blended, so not exact. Without --tile the frames stay whole"""
    how.add_argument("--tile-frames", type=tile_frames, metavar="SIZE:OVERLAP", help=time)
    presets = """tiles by name: default is --tile 512:64 --tile-frames 64:24, aggressive 256:64 and 32:8 (least memory),
        conservative 768:64 and 96:24 (fewest seams); spatial_only and temporal_only are one half of default; auto is
        default, along axes of more than 512 pixels or 65 frames; wide, for the diffusion decoder of LTX-2.5, 512:160
        and 96:40"""
    how.add_argument("--preset", choices=list(tiling.PRESETS), metavar="NAME", help=presets)
    add_option(how, PlanOptions, "tile_batch_size", positive)


def add_noise_options(how: argparse._ActionsContainer) -> None:
    """Add the options of decoders that take a timestep or noise."""
    add_option(how, DecodeOptions, "timestep", share)
    add_option(how, DecodeOptions, "seed", argument_type(_parse_seed))
    add_option(how, DecodeOptions, "noise_scale", share)
    add_option(how, DecodeOptions, "like")


def add_decoder_options(how: argparse._ArgumentGroup) -> None:
    """Add the options of decoders that take a timestep, denoise, or see keyframes."""
    add_noise_options(how)
    add_option(how, PlanOptions, "steps", positive)
    keyframes = """keyframe latents and their frame numbers, for the diffusion decoder of LTX-2.5: a file with
        keyframe_latents and keyframe_frame_indices (default: the latent file's own, if it has any)"""
    how.add_argument("--keyframes", metavar="FILE", help=keyframes)


def _parse_seed(text: str) -> int:
    check_seed = import_command("mlx_ltx_vae.networks.noise:check_seed")
    return check_seed(int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else text)


def add_audio_options(video: argparse._ArgumentGroup) -> None:
    """Add the options of the audio of the video."""
    model = f"""the audio VAE and its vocoder, which decode the audio latents beside the video's:
        {list_names([Kind.AUDIO])}, or a file, folder, or hub id (default: the checkpoint of -m, if it has them)"""
    video.add_argument("--audio-model", metavar="AUDIO", help=model)
    video.add_argument("--audio-latents", metavar="FILE", help="the audio latents, if they are not in the latent file")
    add_audio_tensor_option(video)
    for name in ("audio_codec", "audio", "shortest"):
        add_option(video, OutputOptions, name)


def add_audio_tensor_option(group: argparse._ActionsContainer) -> None:
    """Add the option of commands that read audio latents."""
    name = "the tensor with the audio latents, in a latent file (default: one of the names in docs/audio.md)"
    group.add_argument("--audio-tensor", metavar="NAME", help=name)


def add_video_options(video: argparse._ArgumentGroup) -> None:
    """Add the options of the video."""
    add_option(video, OutputOptions, "codec")
    add_option(video, OutputOptions, "crf", int)
    for name in ("encoder_preset", "pix_fmt", "fragmented"):
        add_option(video, OutputOptions, name)
    entry = """a metadata entry of an .mp4, .mov, .mkv or .webm, or of PNG stills; repeatable"""
    parse: Callable[[str], tuple[str, str]] = argument_type("mlx_ltx_vae.video.metadata:parse_entry")
    video.add_argument("--metadata", action="append", type=parse, default=[], metavar="KEY=VALUE", help=entry)
    add_option(video, OutputOptions, "contact_sheet")
    stills = "write numbered PNG pictures to the folder of -o, or for several inputs to a subfolder each"
    video.add_argument("--stills", action="store_true", help=stills)
    depth = "bits per channel (default: 8)"
    video.add_argument("--bit-depth", type=int, choices=get_args(BitDepth), default=8, help=depth)
    add_hdr_options(video)
    for step in STEP_OPTIONS:
        make: Callable[[str], FrameStep] = argument_type(step.make)
        video.add_argument(step.name, dest=step.dest, type=make, metavar=step.metavar, help=step.help)


def step_dests() -> list[str]:
    """Return the destinations of the options of steps."""
    return [step.dest for step in STEP_OPTIONS]


def chosen_steps(arguments: argparse.Namespace) -> "tuple[FrameStep, ...]":
    """Return the steps of the arguments, in order."""
    steps = (getattr(arguments, option.dest) for option in STEP_OPTIONS)
    return tuple(step for step in steps if step is not None)


def add_hdr_options(video: argparse._ArgumentGroup) -> None:
    """Add the options of HDR latents."""
    curve = """the latents are HDR: acescct for LTX-2.5, logc3 for the HDR LoRA of LTX-2.3. Decodes in float32, unless
        --dtype says otherwise, to an HLG master in HEVC"""
    video.add_argument("--hdr", choices=get_args(Transfer), help=curve)
    signal = """what --hdr writes: hlg (default); pq, with diffuse white at 203 cd/m2; or sdr, tone-mapped"""
    video.add_argument("--hdr-output", choices=get_args(SignalName), help=signal)
    video.add_argument("--exposure", type=float, metavar="STOPS", help="brighten --hdr-output sdr (default: 0)")
    folder = """with --hdr, also write EXR images to this folder, or for several inputs to a subfolder each; without -o,
        write nothing else, as with -o frames/%%05d.exr"""
    video.add_argument("--exr", metavar="FOLDER", help=folder)
    space = "the color space of EXR images: linear sRGB (default), linear ACEScg, or ACEScct codes"
    video.add_argument("--exr-space", choices=get_args(ExrSpaceName), help=space)
