"""Exact, streaming decoding and encoding of LTX video latents on MLX, in constant memory."""

from .process import startup  # noqa: F401  (first, before the imports that take long)

# isort: split
from importlib.metadata import version

try:
    import mlx.core  # noqa: F401
except ImportError as error:
    raise ImportError(
        "MLX has no backend on this machine: on Linux install mlx_ltx_vae[cpu] or mlx_ltx_vae[cuda13]; on macOS MLX "
        "needs Apple Silicon and a native (arm64) Python."
    ) from error

from .errors import (
    CheckpointError,
    DecodeCancelled,
    DecodeError,
    DeviceError,
    DistributedError,
    LatentsError,
    LTXVAEError,
    PlanError,
    ReaderError,
    WriterError,
)
from .latents import LatentsInfo, load_latents, save_latents
from .models.video_vae.config import VAEConfig
from .pipeline.decode_stream import DecodeStream
from .pipeline.postprocess import FrameChunk
from .planning.plan import DecodePlan, EncodePlan
from .shapes import ScaleFactors
from .vae import VideoVAE
from .video import Fit, VideoReader, VideoWriter

__version__ = version("mlx_ltx_vae")

__all__ = [
    "CheckpointError",
    "DecodeCancelled",
    "DecodeError",
    "DecodePlan",
    "DecodeStream",
    "DeviceError",
    "DistributedError",
    "EncodePlan",
    "Fit",
    "FrameChunk",
    "LTXVAEError",
    "LatentsError",
    "LatentsInfo",
    "PlanError",
    "ReaderError",
    "ScaleFactors",
    "VAEConfig",
    "VideoReader",
    "VideoVAE",
    "VideoWriter",
    "WriterError",
    "load_latents",
    "save_latents",
]
