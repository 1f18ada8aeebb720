"""`python -m mlx_ltx_vae.preview`: latents to a small clip or a contact sheet, by a decoder that takes seconds."""

from dataclasses import replace

from .. import demo
from ..video import is_sheet
from . import decode_command
from .cli import CommandParser, examples, run_command
from .decode_options import add_input_options
from .hdr_options import add_hdr_options
from .job import run_job
from .options import add_job_options

_CHOICES = (
    "-m MODEL is missing: a tiny decoder, such as taeltx2_3.safetensors (github.com/madebyollin/taehv, in the folder "
    "safetensors), or a projection that examples/fit_latent_rgb.py fits to your VAE; --demo has its own"
)


def build_parser() -> CommandParser:
    """The command line. What it leaves out of the options of `decode` has their defaults."""
    parser = CommandParser(
        prog="python -m mlx_ltx_vae.preview",
        usage="%(prog)s LATENTS... -m MODEL -o OUT [options]\n       %(prog)s --demo [options]",
        description="Show what is in LTX video latents, in seconds: as a small clip, or as one picture.",
        epilog=examples(
            "python -m mlx_ltx_vae.preview --demo -o preview.png",
            "python -m mlx_ltx_vae.preview clip.npy -m taeltx2_3.safetensors -o clip.png",
            "python -m mlx_ltx_vae.preview a.npy b.npy -m latent_rgb.safetensors -o out/",
        ),
    )
    add_input_options(
        parser,
        output="preview.mp4",
        demo="the latents of the package, and a projection that was fitted to its VAE",
        model="MODEL",
        more="NAME.png for one picture of up to 16 frames with their times; ",
    )
    add_job_options(parser, parser.add_argument_group("how to decode"))
    add_hdr_options(parser.add_argument_group("the video"))
    given = vars(parser.parse_args([]))
    others = vars(decode_command.build_parser().parse_args([]))
    parser.set_defaults(**{name: value for name, value in others.items() if name not in given})
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = build_parser()
    arguments = parser.parse_inputs(argv)
    decode_command.complete_inputs(parser, arguments, demo.LATENT_RGB, "preview.mp4", _CHOICES)
    arguments.is_silent = True
    arguments.contact_sheet = is_sheet(arguments.output or "")
    job, make_task = decode_command.make_job(parser, arguments)
    if arguments.contact_sheet:  # whose pictures need no more than one of each latent frame
        open_whole = job.open
        job = replace(job, open=lambda: open_whole().for_stills())
    return run_command(lambda _: run_job(job, make_task), arguments, computes=not job.dry_run)
