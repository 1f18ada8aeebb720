"""Writing latent files."""

import os
from fractions import Fraction
from pathlib import Path

import mlx.core as mx

from ..errors import WriterError
from ..part_file import PartFile
from .check import check_latents
from .metadata import make_metadata

_SUFFIX = ".safetensors"


def save_latents(
    path: str | os.PathLike,
    latents: mx.array,
    *,
    fps: str | float | Fraction | None = None,
    num_frames: int | None = None,
    height: int | None = None,
    width: int | None = None,
) -> None:
    """Write normalized latents `(B, C, F', H', W')` as safetensors. The file appears under its name only when whole.

    Args:
        path: ends in .safetensors.
        latents: float32, float16 or bfloat16.
        fps: frames per second of the video (see `parse_fps`).
        num_frames, height, width: of the video, in frames and pixels.

    Raises:
        LatentsError: for latents that `check_latents` refuses.
        WriterError: for another ending, an invalid frame rate, and a file that cannot be written.
    """
    target = _check_name(path)
    check_latents(latents, None, os.fspath(path))
    metadata = make_metadata(target, fps=fps, num_frames=num_frames, height=height, width=width)
    part = PartFile(target)
    try:
        mx.save_safetensors(str(part.path), {"latents": latents}, metadata)
        part.complete()
    except RuntimeError as error:  # MLX's exception for a full disk
        raise WriterError(f"{target}: cannot be written ({str(error).rstrip('.')}).") from error
    finally:
        part.discard()


def check_latents_target(path: str | os.PathLike, *, fps: str | float | Fraction | None = None) -> None:
    """Raise the errors that `save_latents` would raise for this path and frame rate, before any work is done.

    Raises:
        WriterError: for another ending than .safetensors, an invalid frame rate, and a folder that is missing or
            read-only.
    """
    target = _check_name(path)
    make_metadata(target, fps=fps, num_frames=None, height=None, width=None)
    PartFile(target).discard()


def _check_name(path: str | os.PathLike) -> Path:
    target = Path(path)
    if target.suffix != _SUFFIX:  # MLX would append it
        raise WriterError(f"{target}: latents are written as safetensors; use a name that ends in {_SUFFIX}.")
    return target
