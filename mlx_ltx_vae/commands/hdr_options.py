"""What a decode of HDR latents writes, by the arguments of a command."""

import argparse
import os

from ..errors import ItemsError
from ..pipeline.hdr_frames import HDROptions
from ..video.sink import SinkOptions
from .items import are_many, has_table

_OTHERS = ("hdr_output", "exposure", "exr", "exr_space")  # that need --hdr


def choose_exr_output(arguments: argparse.Namespace) -> bool:
    """Whether EXR images are the only output. The arguments then have it as theirs, in place of none."""
    if arguments.output or not arguments.exr or has_table(arguments.latents):
        return False
    arguments.output, arguments.exr = _exr_folder(arguments), None
    return True


def choose_hdr_frames(arguments: argparse.Namespace, sinks: SinkOptions, *, is_exr: bool) -> SinkOptions:
    """The options of outputs with the frames that the arguments want of HDR, which may be EXR alone."""
    if arguments.hdr is None:
        given = [name for name in _OTHERS if getattr(arguments, name) is not None]
        if given or is_exr:
            name = given[0] if given else "exr"
            raise ItemsError(f"--{name.replace('_', '-')} is for HDR latents; add --hdr acescct or logc3")
        return sinks
    names = {"signal": arguments.hdr_output, "exposure": arguments.exposure, "exr_space": arguments.exr_space}
    given_names = {name: value for name, value in names.items() if value is not None}
    hdr = HDROptions(arguments.hdr, exr=_exr_folder(arguments), **given_names)
    return hdr.choose_frames(sinks, is_exr=is_exr)


def _exr_folder(arguments: argparse.Namespace) -> str | None:
    """That of --exr, with one in it for each of several inputs."""
    if not arguments.exr or not are_many(arguments.latents) or "{name}" in arguments.exr:
        return arguments.exr and os.path.join(arguments.exr, "")
    return os.path.join(arguments.exr, "{name}", "")
