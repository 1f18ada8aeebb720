"""Reading and writing videos, as numpy arrays. `ffmpeg.py` is the only module that starts a program."""

from ..frame_format import FrameFormat, FrameOutput, FrameStep
from ..options import OutputOptions
from ..units import parse_fps
from .compression import compress_still
from .exr import ExrReader
from .reader import Fit, VideoReader
from .sink import Sink
from .sink_table import (
    check_output,
    find_output,
    find_outputs,
    frame_endings,
    is_audio,
    open_sink,
    output_files,
    takes_audio,
)
from .stills import is_sheet
from .writer import VideoWriter

__all__ = ["ExrReader", "Fit", "FrameFormat", "FrameOutput", "FrameStep", "Sink", "OutputOptions", "VideoReader"]
__all__ += ["VideoWriter", "check_output", "find_output", "find_outputs", "frame_endings", "is_sheet"]
__all__ += ["compress_still", "is_audio", "open_sink"]
__all__ += ["output_files", "parse_fps", "takes_audio"]
