"""Latent files in, frames out: what touches the disk on either side of a decode.

`latents` speaks MLX; everything that writes frames sees numpy arrays only.
"""

from .frame_rate import parse_fps
from .latent_layouts import parse_grid
from .latents import LatentsInfo, check_latents, load_latents, save_latents
from .outputs import open_sink
from .sink import Sink
from .video_writer import VideoWriter

__all__ = [
    "LatentsInfo",
    "Sink",
    "VideoWriter",
    "check_latents",
    "load_latents",
    "open_sink",
    "parse_fps",
    "parse_grid",
    "save_latents",
]
