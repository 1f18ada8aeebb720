"""Reading and writing videos, as numpy arrays. `ffmpeg.py` is the only module that starts a program."""

from .fit import Fit
from .outputs import check_output, check_output_options, open_sink
from .reader import VideoReader
from .sink import Sink, SinkOptions
from .writer import VideoWriter

__all__ = [
    "Fit",
    "Sink",
    "SinkOptions",
    "VideoReader",
    "VideoWriter",
    "check_output",
    "check_output_options",
    "open_sink",
]
