"""Parsers of the commands. This module imports no MLX, so that --help and --version work without its backend."""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, get_args

from .. import LTXVAEError, tiling
from ..backend.machine import Backend, DtypeName, ReaderName
from ..codec_table import AUDIO_CODECS, CODECS, ENCODER_PRESETS, LATER_STILL_CRF, MAX_STILL_CRF, STILL_CRF
from ..errors import quote
from ..model_table import Kind, list_names
from ..options import CHOICES, OutputOptions, PlanOptions
from ..startup import import_command
from .cli import (
    PATHS,
    CommandParser,
    add_common_options,
    add_report_options,
    argument_type,
    count,
    frame_rate,
    frame_size,
    memory_budget,
    positive,
    preview_size,
    shorten,
    tile,
    tile_frames,
    time_range,
)
from .options import (
    AUDIO_TENSOR,
    MODEL_VARIABLE,
    PROGRESS,
    add_hdr_options,
    add_input_options,
    add_job_options,
    add_latent_files,
    add_latents_options,
    add_noise_options,
    add_option,
    add_plan_options,
    add_step_options,
)

# Options of `decode`, `preview`, `encode` and `upscale` by what one does with them, those that are rarely needed last.
_GROUPS = {
    "input": "latents video model vae demo frames size fit fps pad all_frames list tensor grid unnormalized keyframes "
    "matrix as_stored compress",
    "output": "output skip_existing overwrite stills max_size watch picks contact_sheet layout metadata workflow "
    "fragmented",
    "picture": "codec crf encoder_preset bit_depth pix_fmt hdr hdr_output exposure exr exr_space",
    "audio": "audio audio_model audio_latents audio_tensor audio_codec shortest",
    "memory": "memory_budget dtype mode order chunk preset tile tile_frames tile_batch_size",
    "report": "dry_run json quiet progress color debug help version",
    "a film of overlapping windows": "join windows carry blend",
    "noise": "seed steps timestep noise_scale like",
    "several machines": "distributed rank_timeout",
}

SHELLS = ("bash", "zsh", "tcsh", "fish")


def decode_parser() -> CommandParser:
    """Make the parser of `decode`."""
    parser = CommandParser(
        first=("latents", "output", "model", "fps", "frames", "memory_budget", "codec", "crf", "audio", "dry_run"),
        prog="python -m mlx_ltx_vae decode",
        usage="%(prog)s LATENTS... -m VAE [-o OUT] [options]\n       %(prog)s --demo [options]",
        description="Decode LTX video latents to videos, exactly, in memory that does not grow with the clip.",
        examples=("--demo", "clip.safetensors -m ltx-2.3 -o clip.mp4", "a.npy b.npy @more.txt -m vae/ -o videos/"),
    )
    add_input_options(
        parser,
        output="clip.mp4 of clip.safetensors,",
        demo="the small VAE and the latents that ship with the package",
        more=".wav for the audio alone; a .png, .tif or .tiff without a number for one frame; ",
    )
    add_option(parser, PlanOptions, "mode")
    add_option(parser, PlanOptions, "order")
    add_option(parser, PlanOptions, "chunk", positive)
    space = "decode in tiles of SIZE pixels that share OVERLAP pixels with their neighbors, such as 512:64; not exact"
    parser.add_argument("--tile", type=tile, metavar="SIZE:OVERLAP", help=space)
    time = """decode in tiles of SIZE frames of the video that share OVERLAP frames with the next, such as 64:24; the
        shared frames are blended, so not exact. Without --tile the frames stay whole"""
    parser.add_argument("--tile-frames", type=tile_frames, metavar="SIZE:OVERLAP", help=time)
    presets = """tiles by name: default is --tile 512:64 --tile-frames 64:24, aggressive 256:64 and 32:8 (least memory),
        conservative 768:64 and 96:24 (fewest seams); spatial_only and temporal_only are one half of default; auto is
        default, along axes of more than 512 pixels or 65 frames; wide, for the diffusion decoder of LTX-2.5, 512:160
        and 96:40"""
    parser.add_argument("--preset", choices=list(tiling.PRESETS), metavar="NAME", help=presets)
    add_option(parser, PlanOptions, "tile_batch_size", positive)
    add_job_options(parser)
    add_noise_options(parser)
    add_option(parser, PlanOptions, "steps", positive)
    keyframes = """keyframe latents and their frame numbers, for the diffusion decoder of LTX-2.5: a file with
        keyframe_latents and keyframe_frame_indices (default: the latent file's own, if it has any)"""
    parser.add_argument("--keyframes", metavar="FILE", help=keyframes)
    model = f"""the audio VAE and its vocoder, which decode the audio latents beside the video's:
        {list_names([Kind.AUDIO])}, or a file, folder, or hub id (default: the checkpoint of -m, if it has them)"""
    parser.add_argument("--audio-model", metavar="AUDIO", help=model)
    parser.add_argument("--audio-latents", metavar="FILE", help="the audio latents, if they are not in the latent file")
    parser.add_argument("--audio-tensor", metavar="NAME", help=AUDIO_TENSOR)
    names = ("audio_codec", "audio", "shortest", "codec", "encoder_preset", "pix_fmt", "fragmented", "contact_sheet")
    for name in names:
        add_option(parser, OutputOptions, name)
    add_option(parser, OutputOptions, "crf", int)
    entry = """a metadata entry of an .mp4, .mov, .mkv or .webm, or of PNG stills; repeatable"""
    parse: Callable[[str], tuple[str, str]] = argument_type("mlx_ltx_vae.video.metadata:parse_entry")
    parser.add_argument("--metadata", action="append", type=parse, default=[], metavar="KEY=VALUE", help=entry)
    stills = "write numbered PNG pictures to the folder of -o, or for several inputs to a subfolder each"
    parser.add_argument("--stills", action="store_true", help=stills)
    depth = "bits per channel (default: 8)"
    parser.add_argument("--bit-depth", type=int, choices=CHOICES["bit_depth"], default=8, help=depth)
    add_hdr_options(parser)
    parser.arrange(_GROUPS | {"picture": " ".join([_GROUPS["picture"], *add_step_options(parser)])})
    return parser


def preview_parser() -> CommandParser:
    """Make the parser of `preview`."""
    parser = CommandParser(
        first=("latents", "output", "model", "demo", "fps", "frames", "memory_budget", "dry_run"),
        prog="python -m mlx_ltx_vae preview",
        usage="%(prog)s LATENTS... -m MODEL [-o OUT] [options]\n       %(prog)s --demo [options]",
        description="Show what is in LTX video latents, in seconds: as clips, pictures, or a page to choose from.",
        examples=(
            "--demo -o preview.png",
            "clip.npy -m taeltx-2.3 -o clip.png",
            "latents/ -m taeltx-2.3 -o gallery.html",
        ),
    )
    add_input_options(
        parser,
        output="clip-preview.mp4 of clip.safetensors,",
        demo="the latents of the package, and a projection that was fitted to its VAE",
        kind=Kind.PREVIEW,
        model="MODEL",
        more="NAME.png for one picture of up to 16 frames with their times; NAME.html for a page on which inputs are "
        "marked to be decoded, also without -m; ",
    )
    watch = "show new latent files on the page of -o NAME.html as they come, until Ctrl-C"
    parser.add_argument("--watch", action="store_true", help=watch)
    picks = "begin the page of -o NAME.html with the marks of this list, which such a page has saved; repeatable"
    parser.add_argument("--picks", action="append", default=[], metavar="FILE", help=picks)
    model = f"""also decode the audio latents beside the video's, with this audio VAE and its vocoder:
        {list_names([Kind.AUDIO])}, or a file, folder, or hub id"""
    parser.add_argument("--audio-model", metavar="AUDIO", help=model)
    size = "scale frames down, before they are written, until no side is longer than N pixels"
    parser.add_argument("--max-size", type=preview_size, metavar="N", help=size)
    add_job_options(parser)
    add_hdr_options(parser)
    parser.arrange(_GROUPS)
    return parser


def encode_parser() -> CommandParser:
    """Make the parser of `encode`."""
    parser = CommandParser(
        first=("video", "output", "model", "size", "fit", "frames", "fps", "audio_model", "memory_budget", "dry_run"),
        prog="python -m mlx_ltx_vae encode",
        usage="%(prog)s VIDEO... -m VAE [-o LATENTS] [options]",
        description="Encode videos to LTX latents, exactly, in memory that does not grow with the clip.",
        examples=(
            "clip.mp4 -m ltx-2.3 -o clip.safetensors",
            "clip.mov -m vae/ -o a.safetensors --size 768x512",
            "a.npy --frames -25: -m vae/ -o tail.safetensors",
        ),
    )
    videos = """videos or GIFs, folders of them or of images, or patterns such as %%05d.png; latent files or folders of
        them, which are decoded in memory; - for standard input; @clips.txt for a list of videos, one per line;
        clips.csv for a table with a column path, and optionally output, width, height, frames, fps"""
    parser.add_argument("video", nargs="+", metavar="VIDEO", help=videos)
    output = """output file, .safetensors, or .latent for ComfyUI's LoadLatent; folder/ for files named after the
        inputs, folder/clip.safetensors; or a pattern such as folder/{name}-latents.safetensors (default:
        clip.safetensors of clip.mp4, in the working folder)"""
    parser.add_argument("-o", "--output", metavar="LATENTS", help=output)
    model = f"""the checkpoint: {list_names([Kind.VIDEO])}, or a file, folder, folder:file, or hub id (default:
        {MODEL_VARIABLE})"""
    parser.add_argument("-m", "--model", metavar="VAE", help=model)
    parser.add_argument("--demo", action="store_true", help="use the small VAE that ships with the package")
    size = "frame size to encode; other proportions are cropped, or with --resize distorted (default: the video's)"
    parser.add_argument("--size", type=frame_size, metavar="WxH", help=size)
    fit = parser.add_mutually_exclusive_group()
    resize = "scale each side to --size, or to the nearest size that can be encoded"
    fit.add_argument("--resize", dest="fit", action="store_const", const="RESIZE", help=resize)
    crop = "fill --size and crop the rest, or crop to a size that can be encoded"
    fit.add_argument("--crop", dest="fit", action="store_const", const="CROP", help=crop)
    frames = """encode only frames A to B - 1, counted from 0 at the rate of --fps; 121 or :121 for the first 121, 24:
        from frame 24 on, -25: for the last 25, which reads the video twice; 0:2s for the first two seconds (default:
        all)"""
    parser.add_argument("--frames", type=time_range, metavar="A:B", help=frames)
    parser.add_argument("--pad", action="store_true", help="repeat the last frame up to 1 + 8*k (default: drop frames)")
    windows = """encode overlapping windows of N frames, 1 + 8*k, each alone and into a file of its own in a folder, as
        pipelines condition on them; decode --join makes them a video again"""
    parser.add_argument("--windows", type=positive, metavar="N", help=windows)
    carry = "frames that a window shares with the one before, 1 + 8*k or 0 (default: 25)"
    parser.add_argument("--carry", type=count, metavar="N", help=carry)
    rate = "drop or repeat frames to this rate, at unchanged speed; the rate of images (default: the video's)"
    parser.add_argument("--fps", type=frame_rate, metavar="RATE", help=rate)
    matrix = "the color matrix, instead of the one that the video states (default: its own, or bt601)"
    parser.add_argument("--matrix", choices=["bt601", "bt709"], help=matrix)
    stored = """do not convert HDR and wide colors to BT.709, oblong pixels to squares, and fields to whole frames, as
        players do"""
    parser.add_argument("--as-stored", action="store_true", help=stored)
    light = """encode EXR images as HDR, for LTX-2.5; their pixels are light with the primaries of sRGB (srgb_linear) or
        ACES (acescg), or codes (acescct)"""
    parser.add_argument("--hdr", choices=CHOICES["hdr_input"], help=light)
    compress = f"""send a picture through one frame of H.264 first, as pipelines do with those that condition a video:
        0 (none) to {MAX_STILL_CRF}; without a number {STILL_CRF}, or {LATER_STILL_CRF} for a VAE of LTX-2.4 or later"""
    parser.add_argument("--compress", nargs="?", type=_still_crf, const="auto", metavar="CRF", help=compress)
    model = f"""also encode the video's audio into the same file, with this audio VAE: {list_names([Kind.AUDIO])}, or a
        file, folder, or hub id"""
    parser.add_argument("--audio-model", metavar="AUDIO", help=model)
    layout = """write files that this trainer reads, without audio; in a folder they have the names that it expects,
        which for musubi-tuner state --size and --frames (default: files of this package)"""
    parser.add_argument("--layout", choices=CHOICES["layout"], help=layout)
    parser.add_argument("--tile", type=tile, metavar="SIZE:OVERLAP", help="encode in tiles, in pixels, such as 512:128")
    add_option(parser, PlanOptions, "tile_batch_size", positive)
    add_job_options(parser)
    parser.arrange(_GROUPS)
    return parser


def upscale_parser() -> CommandParser:
    """Make the parser of `upscale`."""
    parser = CommandParser(
        first=("latents", "output", "model", "vae", "memory_budget", "dry_run"),
        prog="python -m mlx_ltx_vae upscale",
        usage="%(prog)s LATENTS... -m UPSAMPLER [-o OUT] [options]",
        description="Make LTX video latents larger by a latent upsampler: more rows and columns, or more frames. They "
        "decode softer than latents that a second stage of a pipeline refines.",
        examples=("a.npy -m ltx-2.3-upscaler-x2 --vae ltx-2.3", "latents/ -m x2.safetensors --vae vae/ -o big/"),
    )
    add_latent_files(parser)
    output = """output file, .safetensors, or .latent for ComfyUI's LoadLatent; folder/ for files named after the
        inputs; or a pattern such as folder/{name}-x2.safetensors (default: clip-upscaled.safetensors of
        clip.safetensors, in the working folder)"""
    parser.add_argument("-o", "--output", metavar="OUT", help=output)
    model = f"the latent upsampler: {list_names([Kind.UPSAMPLER])}, or a file, folder, folder:file, or hub id"
    parser.add_argument("-m", "--model", metavar="UPSAMPLER", help=model)
    vae = """the VAE of the latents, whose statistics it needs: a name, file, folder, or hub id (default: a cached model
        of the VAE that the latents state)"""
    parser.add_argument("--vae", metavar="VAE", help=vae)
    add_job_options(parser)
    parser.arrange(_GROUPS)
    return parser


def _still_crf(text: str) -> int | Literal["auto"]:
    """Parse `--compress 33`. Without a number, the argument is "auto"."""
    if text == "auto":
        return "auto"
    if not re.fullmatch("[0-9]{1,2}", text) or int(text) > MAX_STILL_CRF:
        raise argparse.ArgumentTypeError(f"expected a CRF from 0 to {MAX_STILL_CRF}, not {quote(text)}")
    return int(text)


def info_parser() -> CommandParser:
    """Make the parser of `info`."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae info",
        usage="%(prog)s FILE... [options]\n       %(prog)s GENERATION --size WxH --frames N [options]",
        description="Describe a checkpoint, a latent file, a video or an image: generation, sizes, layout, metadata, "
        "and the memory that decodes take. Reads only the headers of a checkpoint. Or plan a decode without a file.",
        examples=("vae.safetensors", "clip.safetensors -m vae.safetensors", "ltx-2.3 --size 768x512 --frames 121"),
    )
    files = """checkpoint files, folders, names or hub ids; latent files, or folders of them; videos; or with --size and
        --frames a published VAE: ltx-2.3, ltx-2.5-diffusion, 0.9.5, prunavaed, taehv and others"""
    parser.add_argument("file", nargs="+", metavar="FILE", help=files)
    everything = "describe each latent file of a folder completely, not in a line"
    parser.add_argument("--all", action="store_true", help=everything)
    values = "print one JSON object on standard output, nothing else; one per line for several files"
    parser.add_argument("--json", action="store_true", help=values)
    latents = parser.add_argument_group("for latents and videos")
    latents.add_argument("-m", "--model", metavar="VAE", help="the checkpoint that they are for")
    audio = "the audio VAE and its vocoder, for audio latents (default: the checkpoint of -m, if it has them)"
    latents.add_argument("--audio-model", metavar="AUDIO", help=audio)
    add_latents_options(latents, unnormalized=False)
    latents.add_argument("--audio-tensor", metavar="NAME", help=AUDIO_TENSOR)
    plan = parser.add_argument_group("for the plan of a decode without a file")
    plan.add_argument("--size", type=frame_size, metavar="WxH", help="size of the video, multiples of 32")
    plan.add_argument("--frames", type=positive, metavar="N", help="frames of the video, 1 + 8*k")
    add_plan_options(plan)
    add_option(plan, PlanOptions, "mode")
    add_option(plan, PlanOptions, "order")
    add_common_options(parser)
    return parser


def convert_parser() -> CommandParser:
    """Make the parser of `convert`."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae convert",
        usage="%(prog)s SOURCE -o FOLDER [options]\n       %(prog)s LATENTS -o FILE.latent [options]\n"
        "       %(prog)s --verify A B [options]",
        description="Convert the VAE of an LTX checkpoint to a folder that MLX loads faster, and verify it; or saved "
        "latents to a file for ComfyUI's node LoadLatent. Also called python -m weights_convert.",
        examples=("ltx-2.3.safetensors -o vae", "clip.safetensors -o clip.latent", "--verify ltx-2.3.safetensors vae"),
    )
    sources = "checkpoint file, folder, name (ltx-2.3), or hub id; or a latent file"
    parser.add_argument("source", nargs="?", metavar="SOURCE", help=sources)
    output = "folder to write; must not exist, or be empty; or FILE.latent, for latents"
    parser.add_argument("-o", "--output", metavar="FOLDER", help=output)
    verify = "only check that B has the weights of A, as they are or cast"
    parser.add_argument("--verify", nargs=2, metavar=("A", "B"), help=verify)
    dtype = "store the weights or latents in this precision (default: each tensor's own)"
    parser.add_argument("--dtype", choices=get_args(DtypeName), help=dtype)
    only = """convert or verify only the encoder, the decoder, or the audio VAE with its vocoder (default: encoder and
        decoder, or audio if the source has nothing else)"""
    parser.add_argument("--only", choices=["encoder", "decoder", "audio"], help=only)
    latents = parser.add_argument_group("for latents")
    latents.add_argument(
        "-m", "--model", metavar="VAE", help="the checkpoint whose statistics normalize unnormalized ones"
    )
    add_latents_options(latents)
    latents.add_argument("-y", "--overwrite", action="store_true", help="replace FILE.latent")
    add_report_options(parser)
    return parser


def export_parser() -> CommandParser:
    """Make the parser of `export`."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae export",
        usage="%(prog)s -m VAE -o FOLDER --size WxH [options]",
        description="Export the exact decode, or encode, of videos of one size and any length as MLX functions, which "
        "programs in C++, Swift or Python run without this package: see docs/export.md.",
        examples=(
            "-m ltx-2.3 -o out --size 768x512",
            "-m vae -o out --size 768x512 --size 512x768",
            "-m vae -o out --size 768x512 --for mlx-swift",
        ),
    )
    model = f"the checkpoint: a file, folder, name such as ltx-2.3, or hub id (default: {MODEL_VARIABLE})"
    parser.add_argument("-m", "--model", metavar="VAE", help=model)
    parser.add_argument("-o", "--output", metavar="FOLDER", help="folder to write; new or empty, without -y")
    size = "size of the videos, multiples of 32; repeatable, for a folder of each size in -o, with shared weights"
    parser.add_argument("--size", action="append", type=frame_size, metavar="WxH", help=size)
    readers = "what runs the functions: their format, and the memory that is planned (default: mlx, as installed here)"
    parser.add_argument("--for", dest="reader", choices=get_args(ReaderName), default="mlx", help=readers)
    parser.add_argument("--encoder", action="store_true", help="export the encode, of frames to latents")
    device = "where the functions run: their formulation and their device (default: this machine's)"
    parser.add_argument("--backend", choices=[item.value for item in Backend], help=device)
    precision = "compute in this precision (default: the checkpoint's)"
    parser.add_argument("--dtype", choices=get_args(DtypeName), help=precision)
    budget = "the most memory of a decode, weights included, such as 8GB; refuses a size that takes more"
    parser.add_argument("--memory-budget", type=memory_budget, metavar="SIZE", help=budget)
    add_noise_options(parser)
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument(
        "-n", "--skip-existing", action="store_true", help="do nothing where the folder has an export"
    )
    existing.add_argument("-y", "--overwrite", action="store_true", help="replace an export in the folder")
    add_report_options(parser)
    return parser


def bench_parser() -> CommandParser:
    """Make the parser of `bench`."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae bench",
        usage="%(prog)s [-m VAE | --generation NAME] [options]",
        description="Measure time and peak memory of decodes and of an encode of noise. Without -m the VAE has random "
        "weights, which take the same time and memory. Results from a Mac are welcome: send the table that this "
        "prints.",
        examples=(
            "-m vae.safetensors",
            "--size 768x512 --num-frames 121 --mode exact",
            "--generation ltx-2.5-diffusion --order rows",
        ),
    )
    vae = parser.add_mutually_exclusive_group()
    vae.add_argument("-m", "--model", metavar="VAE", help="the checkpoint: a file, folder, name, or hub id")
    names = "random weights of a published VAE: ltx-2.3 (default), ltx-2.5, ltx-2.5-diffusion, taehv and others"
    vae.add_argument("--generation", default="ltx-2.3", metavar="NAME", help=names)
    channels = "channels of the last layers of random weights (default: as published, slow on a CPU)"
    parser.add_argument("--base-width", type=positive, metavar="N", help=channels)
    precision = "compute in this precision (default: the checkpoint's, or the published one)"
    parser.add_argument("--dtype", choices=get_args(DtypeName), help=precision)
    size = "size of the video, multiples of 32 (default: 256x256)"
    parser.add_argument("--size", type=frame_size, default=(256, 256), metavar="WxH", help=size)
    length = "frames of the video, 1 + 8*k (default: 57)"
    parser.add_argument("--num-frames", type=positive, default=57, metavar="N", help=length)
    modes = "a mode of decode, or encode; repeatable (default: exact, single and encode)"
    parser.add_argument("--mode", action="append", choices=[*CHOICES["mode"], "encode"], help=modes)
    orders = "the order of the exact mode, as in decode; repeatable (default: auto)"
    parser.add_argument("--order", action="append", choices=CHOICES["order"], help=orders)
    parser.add_argument("--repeat", type=positive, default=3, metavar="N", help="runs of each (default: 3)")
    parser.add_argument("--progress", choices=["auto", "json"], default="auto", help=PROGRESS)
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    add_common_options(parser)
    return parser


class _ProgramParser(CommandParser):
    """Parser of options before a program. The program and its arguments stay as they are."""

    def parse_inputs(self, argv: list[str] | None) -> argparse.Namespace:
        option_arguments: list[str] = []
        program = sys.argv[1:] if argv is None else list(argv)
        while program and program[0] not in ("--", "-m") and program[0].startswith("-"):
            action = self._option_string_actions.get(program[0])
            count = 2 if action is not None and action.nargs is None else 1
            option_arguments, program = option_arguments + program[:count], program[count:]
        arguments = self.parse_args(option_arguments)
        arguments.program = program[1:] if program[:1] == ["--"] else program
        if arguments.program in ([], ["-m"]):
            self.error("give the program to run, such as: -- ltx-2-mlx generate ...")
        return arguments


def run_parser() -> CommandParser:
    """Make the parser of `run`."""
    parser = _ProgramParser(
        prog="python -m mlx_ltx_vae run",
        usage="%(prog)s [options] -- PROGRAM [ARGUMENTS]\n       %(prog)s [options] -- -m MODULE [ARGUMENTS]",
        description="Run an MLX app of LTX latents with its decoders and encoders replaced by this package's. "
        "PROGRAM is a command of this Python environment, or a script; its command line and exit code are unchanged. "
        "Apps: see docs/integrations.md.",
        examples=(
            "-- ltx-2-mlx generate --prompt 'a fox'",
            "--save-latents latents/ -- -m mlx_video.generate",
            "--memory-budget 8GB -- generate.py",
        ),
    )
    folder = """also write the latents that the app decodes to files in this folder, named by date and number, with the
        rate, keyframes and audio that are known"""
    parser.add_argument("--save-latents", metavar="FOLDER", help=folder)
    budget = "the most memory for each decode, such as 8GB or 50%% (default: half of the available memory)"
    parser.add_argument("--memory-budget", type=memory_budget, metavar="SIZE", help=budget)
    add_common_options(parser)
    return parser


#: The parser of each of `commands.COMMANDS`.
PARSERS: dict[str, Callable[[], CommandParser]] = {
    "decode": decode_parser,
    "preview": preview_parser,
    "encode": encode_parser,
    "upscale": upscale_parser,
    "info": info_parser,
    "convert": convert_parser,
    "export": export_parser,
    "bench": bench_parser,
    "run": run_parser,
}


def completion(shell: str, commands: Mapping[str, str]) -> str:
    """Return the completion script of a shell. `commands` are the descriptions of the commands by name.

    The script is static: Tab starts no Python, which would take as long as an import of MLX. Raises an `LTXVAEError`
    if shtab is missing.
    """
    try:
        import shtab
    except ImportError:
        raise LTXVAEError(
            'completion needs shtab, which is not installed; install it with: pip install "mlx_ltx_vae[completion]".'
        ) from None

    names: dict[str, Iterable[str]] = {"codec": CODECS, "audio_codec": AUDIO_CODECS, "encoder_preset": ENCODER_PRESETS}
    names["generation"] = import_command("mlx_ltx_vae.networks.families:published")()
    parser = argparse.ArgumentParser(prog="mlx_ltx_vae")
    parser.add_argument("--version", action="version", help="show the version")
    parser.add_argument("--completion", choices=SHELLS, help="print the completion script of a shell")
    subparsers = parser.add_subparsers()
    for name, description in commands.items():
        subparser = subparsers.add_parser(name, parents=[PARSERS[name]()], add_help=False, help=description)
        for action in subparser._actions:
            action.help = action.help and shorten(action.help)
            action.choices = action.choices or names.get(action.dest)
            if action.choices is None and action.metavar in PATHS:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)
