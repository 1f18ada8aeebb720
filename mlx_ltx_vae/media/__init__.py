"""Latent files and videos, in and out: what touches the disk on either side of a decode or an encode.

`latents` speaks MLX; everything else sees numpy arrays only.
"""

from .fit import Fit
from .frame_rate import parse_fps
from .latent_layouts import parse_grid
from .latents import LatentsInfo, check_latents, load_latents, save_latents, to_numpy
from .latents_writer import LatentsWriter
from .outputs import open_sink
from .sink import Sink
from .video_reader import VideoReader
from .video_writer import VideoWriter

__all__ = [
    "Fit",
    "LatentsInfo",
    "LatentsWriter",
    "Sink",
    "VideoReader",
    "VideoWriter",
    "check_latents",
    "load_latents",
    "open_sink",
    "parse_fps",
    "parse_grid",
    "save_latents",
    "to_numpy",
]
