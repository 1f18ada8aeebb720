"""Reading and writing videos, as numpy arrays. `ffmpeg.py` is the only module that starts a program."""

from .contact_sheet import is_sheet
from .exr_reader import ExrReader
from .outputs import (
    VideoWriter,
    add_metadata,
    check_output,
    check_output_options,
    open_sink,
    output_files,
    takes_sound,
)
from .reader import Fit, VideoReader
from .sink import Sink, SinkOptions

__all__ = ["ExrReader", "Fit", "Sink", "SinkOptions", "VideoReader", "VideoWriter"]
__all__ += ["add_metadata", "check_output", "check_output_options", "is_sheet", "open_sink"]
__all__ += ["output_files", "takes_sound"]
