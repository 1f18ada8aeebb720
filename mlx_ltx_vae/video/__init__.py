"""Reading and writing videos, as numpy arrays. `ffmpeg.py` is the only module that starts a program."""

from .contact_sheet import is_sheet
from .frame_format import FrameFormat, FrameOutput, FrameStep
from .outputs import VideoWriter
from .reader import Fit, VideoReader
from .sink import Sink, SinkOptions
from .sinks import (
    add_metadata,
    check_output,
    check_output_options,
    frame_endings,
    is_sound,
    open_sink,
    output_files,
    takes_sound,
)

__all__ = ["Fit", "FrameFormat", "FrameOutput", "FrameStep", "Sink", "SinkOptions", "VideoReader", "VideoWriter"]
__all__ += [
    "add_metadata",
    "check_output",
    "check_output_options",
    "frame_endings",
    "is_sheet",
    "is_sound",
    "open_sink",
]
__all__ += ["output_files", "takes_sound"]
