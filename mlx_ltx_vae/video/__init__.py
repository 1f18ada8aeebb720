"""Reading and writing videos, as numpy arrays. `ffmpeg.py` is the only module that starts a program."""

from .outputs import VideoWriter, add_metadata, check_output, check_output_options, open_sink
from .reader import Fit, VideoReader
from .sink import Sink, SinkOptions

__all__ = ["Fit", "Sink", "SinkOptions", "VideoReader", "VideoWriter"]
__all__ += ["add_metadata", "check_output", "check_output_options", "open_sink"]
