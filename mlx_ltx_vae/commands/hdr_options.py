"""The options of HDR latents."""

import argparse


def add_hdr_options(video: argparse._ArgumentGroup) -> None:
    """Add the options."""
    curve = """the latents are HDR: acescct for those of LTX-2.5, logc3 for those of the HDR LoRA of LTX-2.3. Decodes in
        float32, unless --dtype says otherwise, to an HLG master in HEVC"""
    video.add_argument("--hdr", choices=["acescct", "logc3"], help=curve)
    signal = """what --hdr writes: hlg (default); pq, with diffuse white at 203 cd/m2; or sdr, tone-mapped"""
    video.add_argument("--hdr-output", choices=["hlg", "pq", "sdr"], help=signal)
    video.add_argument("--exposure", type=float, metavar="STOPS", help="brighten --hdr-output sdr (default: 0)")
    folder = """with --hdr, also write EXR images into this folder, for several inputs into one in it for each; alone
        without -o. -o frames.exr/ writes no others"""
    video.add_argument("--exr", metavar="FOLDER", help=folder)
    space = "of EXR images: linear sRGB (default), linear ACEScg, or ACEScct codes"
    video.add_argument("--exr-space", choices=["srgb", "acescg", "acescct"], help=space)
