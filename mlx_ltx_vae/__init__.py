"""Exact, streaming decoding and encoding of LTX video latents on MLX, in constant memory."""

from .process import startup  # first, before the imports that take long

# isort: split
from importlib.metadata import version
from typing import TYPE_CHECKING

from .backend.mlx_import import MLX_ERROR, missing_names
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
from .models.video_vae.config import VAEConfig
from .planning.audio_plan import AudioEncodePlan, AudioPlan
from .planning.plan import DecodePlan, EncodePlan
from .shapes import ScaleFactors
from .video import Fit, VideoReader, VideoWriter

if TYPE_CHECKING or MLX_ERROR is None:
    from .audio_vae import AudioVAE
    from .latents import LatentsInfo, load_latents, save_latents
    from .pipeline.audio_run import AudioChunk, AudioStream
    from .pipeline.decode_run import DecodeStream
    from .pipeline.postprocess import FrameChunk
    from .preview_vae import PreviewVAE
    from .vae import VideoVAE
elif startup.IS_COMMAND:
    raise MLX_ERROR
else:
    __getattr__ = missing_names(
        __name__,
        "AudioChunk",
        "AudioStream",
        "AudioVAE",
        "DecodeStream",
        "FrameChunk",
        "LatentsInfo",
        "PreviewVAE",
        "VideoVAE",
        "load_latents",
        "save_latents",
    )

__version__ = version("mlx_ltx_vae")

__all__ = [
    "VideoVAE", "PreviewVAE", "FrameChunk", "DecodeStream", "DecodePlan", "EncodePlan", "load_latents", "save_latents",
    "LatentsInfo", "AudioVAE", "AudioChunk", "AudioStream", "AudioPlan", "AudioEncodePlan",
    "VideoWriter", "VideoReader", "Fit", "VAEConfig", "ScaleFactors",
    "LTXVAEError", "CheckpointError", "LatentsError", "PlanError", "DecodeError", "DecodeCancelled", "DeviceError",
    "DistributedError", "ReaderError", "WriterError",
]  # fmt: skip


def __dir__() -> list[str]:
    return [*__all__, "demo", "tiling"]
