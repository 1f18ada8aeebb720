"""Latent files: reading every kind that people have, writing one kind.

A latent array is `(B, C, F', H', W')`, normalised as the diffusion model makes it.
"""

import os
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import mlx.core as mx
import numpy as np

from ..errors import LatentsError, WriterError
from .frame_rate import parse_fps
from .part_file import PartFile
from .tensor_files import TensorFile, open_tensor_file

#: Names under which programs store latents: this package and MLX apps, ComfyUI, two-stage pipelines.
KNOWN_NAMES = ("latents", "latent", "samples", "latent_tensor", "stage_2_video_latent", "final_video_latent")
_LAYOUT = "BCFHW"
_MIN_PLAUSIBLE, _MAX_PLAUSIBLE = 1e-3, 1e3  # the largest magnitude of any clip's latents is between these


@dataclass(frozen=True)
class LatentsInfo:
    """What a latent file says about itself. What it does not say is None.

    Attributes:
        source: the file.
        tensor: the tensor's name in it.
        stored_shape: its shape in the file, before a batch axis was added or channels were moved.
        fps: frames per second.
        num_frames, height, width: of the video, in frames and pixels.
    """

    source: str
    tensor: str
    stored_shape: tuple[int, ...]
    fps: Fraction | None = None
    num_frames: int | None = None
    height: int | None = None
    width: int | None = None


def load_latents(
    path: str | os.PathLike, *, latent_channels: int | None = None, tensor: str | None = None
) -> tuple[mx.array, LatentsInfo]:
    """Read latents from a safetensors (also ComfyUI's .latent), .npy or .npz file.

    Args:
        path: the file.
        latent_channels: channels of the VAE. With it, channels-last files are understood and others refused.
        tensor: which tensor, where a file has several that could be meant.

    Returns:
        Latents `(B, C, F', H', W')` in the file's precision (float64 becomes float32), and what the file says of them.

    Raises:
        LatentsError: for a file that cannot be read, is a pickle or could mean several things, for packed or
            un-normalised latents, and for whatever `check_latents` refuses.
    """
    source = os.fspath(path)
    file = open_tensor_file(Path(path))
    info_fields = _parse_metadata(file.metadata, source)
    name = _choose_tensor(file, tensor, source)
    stored = file.tensors[name]()
    latents = _to_mlx(stored, source)
    is_channels_first = file.metadata.get("layout") == _LAYOUT
    latents = _to_channels_first(latents, None if is_channels_first else latent_channels, source)
    check_latents(latents, latent_channels, source)
    return latents, LatentsInfo(source, name, stored.shape, **info_fields)


def save_latents(
    path: str | os.PathLike,
    latents: mx.array,
    *,
    fps: str | float | Fraction | None = None,
    num_frames: int | None = None,
    height: int | None = None,
    width: int | None = None,
) -> None:
    """Write normalised latents `(B, C, F', H', W')` as safetensors, with what is known of their video.

    Raises:
        LatentsError: for whatever `check_latents` refuses.
        WriterError: for a frame rate that is none, and for a file that cannot be written.
    """
    check_latents(latents, None, os.fspath(path))
    target = Path(path)
    if target.suffix != ".safetensors":  # MLX would append it
        raise WriterError(f"{target}: latents are written as safetensors; let the name end in .safetensors.")
    try:
        exact_fps = None if fps is None else parse_fps(fps)
    except ValueError as error:
        raise WriterError(f"{target}: {error}") from error
    known = {"fps": exact_fps, "num_frames": num_frames, "height": height, "width": width}
    metadata = {key: str(value) for key, value in known.items() if value is not None}
    part = PartFile(target)
    try:
        mx.save_safetensors(str(part.path), {"latents": latents}, metadata | {"normalized": "true", "layout": _LAYOUT})
        part.complete()
    except RuntimeError as error:  # how MLX reports a full disk
        raise WriterError(f"{target}: cannot be written ({error}).") from error
    finally:
        part.discard()


def check_latents(latents: mx.array, latent_channels: int | None, source: str) -> None:
    """Refuse what a decoder cannot take.

    Args:
        latents: should be `(B, C, F', H', W')`, floating, finite.
        latent_channels: what C should be; None where any will do.
        source: what to call them in errors.

    Raises:
        LatentsError: naming what is wrong with them.
    """
    if latents.ndim == 3:
        raise LatentsError(
            f"{source}: latents {latents.shape} look packed (batch, tokens, channels), which is not supported yet; "
            "unpack them to (B, C, F', H', W')."
        )
    if latents.ndim != 5:
        raise LatentsError(f"{source}: latents {latents.shape} should have five axes, (B, C, F', H', W').")
    if latents.size == 0:
        raise LatentsError(f"{source}: latents {latents.shape} are empty; no axis may have the length 0.")
    if not mx.issubdtype(latents.dtype, mx.floating):
        raise LatentsError(f"{source}: latents are {latents.dtype}; they should be float32, float16 or bfloat16.")
    if latent_channels is not None and latents.shape[1] != latent_channels:
        raise LatentsError(
            f"{source}: latents {latents.shape} have {latents.shape[1]} channels where the VAE has {latent_channels}."
        )
    _refuse_not_finite(latents, source)


def _refuse_not_finite(latents: mx.array, source: str) -> None:
    bad = mx.logical_not(mx.isfinite(latents))
    count, first = mx.sum(bad), mx.argmax(bad)
    mx.eval(count, first)
    if count.item():
        index = tuple(int(i) for i in np.unravel_index(first.item(), latents.shape))
        raise LatentsError(
            f"{source}: {count.item()} of {latents.size} values are not finite (NaN or infinite), the first at "
            f"(b, c, f, h, w) = {index}; whatever made these latents failed."
        )


def _choose_tensor(file: TensorFile, wanted: str | None, source: str) -> str:
    names = list(file.tensors)
    candidates = [name for name in names if name in KNOWN_NAMES] or names
    if wanted is not None:
        candidates = [name for name in names if name == wanted]
    if len(candidates) == 1:
        return candidates[0]
    shown = ", ".join(sorted(candidates or names)[:8]) or "nothing"
    if wanted is not None:
        raise LatentsError(f"{source}: has no tensor {wanted!r}; it has {shown}.")
    if not candidates:
        raise LatentsError(f"{source}: has no tensors.")
    raise LatentsError(
        f"{source}: has {len(candidates)} tensors that could be the latents ({shown}); choose one with tensor=."
    )


def _parse_metadata(metadata: dict[str, str], source: str) -> dict[str, Fraction | int]:
    normalized = metadata.get("normalized", "true").lower()
    if normalized in ("false", "0"):
        raise LatentsError(f"{source}: un-normalised latents are not supported yet; save them normalised.")
    if normalized not in ("true", "1"):
        raise LatentsError(f"{source}: its metadata says normalized = {normalized!r}, which should be true or false.")
    parsers = {"fps": parse_fps, "num_frames": int, "height": int, "width": int}
    fields = {}
    for key in parsers.keys() & metadata.keys():
        try:
            fields[key] = parsers[key](metadata[key])
        except ValueError:
            raise LatentsError(f"{source}: its metadata says {key} = {metadata[key]!r}, which is no number.") from None
    return fields


def _to_mlx(array: np.ndarray, source: str) -> mx.array:
    """An MLX array of the same values; two-byte voids are bfloat16, and so are uint16 that only make sense so."""
    if array.dtype == np.dtype("V2"):
        return mx.array(array.view(np.uint16)).view(mx.bfloat16)
    if array.dtype == np.uint16 and array.size:
        as_bfloat16 = mx.array(array).view(mx.bfloat16)
        if _MIN_PLAUSIBLE < mx.max(mx.abs(as_bfloat16.astype(mx.float32))).item() < _MAX_PLAUSIBLE:
            return as_bfloat16
    if array.dtype.kind != "f":
        raise LatentsError(f"{source}: latents are {array.dtype}; they should be float32, float16 or bfloat16.")
    dtype = np.float16 if array.dtype.itemsize == 2 else np.float32
    return mx.array(array.astype(dtype, order="C", copy=False))


def _to_channels_first(latents: mx.array, latent_channels: int | None, source: str) -> mx.array:
    """`(B, C, F', H', W')` from it, without its batch, or with channels last; the latter if only that fits."""
    batched = latents[None] if latents.ndim == 4 else latents
    if batched.ndim != 5 or latent_channels is None:
        return batched
    fits_first, fits_last = (batched.shape[axis] == latent_channels for axis in (1, 4))
    if fits_first and fits_last:
        raise LatentsError(
            f"{source}: latents {latents.shape} could be (B, C, F', H', W') or (B, F', H', W', C), as both axes have "
            f"{latent_channels}; write them with save_latents, which notes the layout."
        )
    return mx.moveaxis(batched, 4, 1) if fits_last else batched
