"""Exact, streaming decoding and encoding of LTX video latents on MLX, in constant memory.

Everything is imported when it is first used: `--help` and plans need no MLX.
"""

from typing import TYPE_CHECKING

from .startup import lazy_names

if TYPE_CHECKING:
    from .audio_vae import AudioVAE
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
    from .latents import LatentsInfo, load_audio_latents, load_latents, save_latents
    from .latents.keyframes import Keyframes, load_keyframes
    from .networks.video_vae.config import VAEConfig
    from .pipeline.audio import AudioChunk, AudioStream
    from .pipeline.decode import DecodeStream
    from .pipeline.film import Film
    from .pipeline.frames import FrameChunk
    from .pipeline.hdr_frames import HDROptions
    from .pipeline.output import DecodeReport
    from .planning.plan import DecodePlan, EncodePlan
    from .shapes import ScaleFactors
    from .upsampler import LatentUpsampler
    from .vae import PreviewVAE, VideoVAE
    from .video import Fit, VideoReader, VideoWriter, compress_still

    __version__: str

__all__ = [
    "VideoVAE", "PreviewVAE", "FrameChunk", "DecodeStream", "DecodePlan", "DecodeReport", "EncodePlan", "Film",
    "load_latents", "load_audio_latents", "save_latents", "LatentsInfo", "Keyframes", "load_keyframes", "AudioVAE",
    "LatentUpsampler",
    "AudioChunk", "AudioStream", "VideoWriter", "VideoReader", "Fit", "HDROptions", "VAEConfig", "ScaleFactors",
    "compress_still", "LTXVAEError", "CheckpointError", "LatentsError", "PlanError", "DecodeError", "DecodeCancelled",
    "DeviceError", "DistributedError", "ReaderError", "WriterError",
]  # fmt: skip


_MODULES = {
    ".audio_vae": ("AudioVAE",),
    ".errors": (
        "LTXVAEError", "CheckpointError", "LatentsError", "PlanError", "DecodeError", "DecodeCancelled", "DeviceError",
        "DistributedError", "ReaderError", "WriterError",
    ),
    ".latents": ("LatentsInfo", "load_audio_latents", "load_latents", "save_latents"),
    ".latents.keyframes": ("Keyframes", "load_keyframes"),
    ".networks.video_vae.config": ("VAEConfig",),
    ".pipeline.audio": ("AudioChunk", "AudioStream"),
    ".pipeline.decode": ("DecodeStream",),
    ".pipeline.film": ("Film",),
    ".pipeline.frames": ("FrameChunk",),
    ".pipeline.hdr_frames": ("HDROptions",),
    ".pipeline.output": ("DecodeReport",),
    ".planning.plan": ("DecodePlan", "EncodePlan"),
    ".shapes": ("ScaleFactors",),
    ".upsampler": ("LatentUpsampler",),
    ".vae": ("PreviewVAE", "VideoVAE"),
    ".video": ("Fit", "VideoReader", "VideoWriter", "compress_still"),
    ".demo": ("demo",),
    ".hdr": ("hdr",),
    ".integrations": ("integrations",),
    ".tiling": ("tiling",),
}  # fmt: skip
_get = lazy_names(__name__, {name: module for module, names in _MODULES.items() for name in names})


def __dir__() -> list[str]:
    return [*__all__, "demo", "hdr", "integrations", "tiling"]


if not TYPE_CHECKING:  # for which any name would be one of the package

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version  # which takes as long as all else here

            return version(__name__)
        return _get(name)
