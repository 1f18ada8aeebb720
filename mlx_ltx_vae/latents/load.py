"""Latent files: reading every kind that people have, writing one kind.

A latent array is `(B, C, F', H', W')`, normalised as the diffusion model makes it. `latent_layouts` knows how other
programs arrange its axes. Whose files are meant, and what there is to know of each:

- ComfyUI's `.latent` is safetensors with `latent_tensor`, the numbers of the LATENT wire, which for LTX are the
  sampler's. An empty tensor `latent_format_version_0` goes with it. Without that, ComfyUI's own loader multiplies by
  1/0.18215, the scale of Stable Diffusion's latents in files of early 2023. LTX is younger than the mark, so a file of
  LTX latents without it is by another program, which wrote the numbers as they were: they are never multiplied here.
- diffusers' LTX-Video pipelines return normalised latents, packed or not; its LTX-2 pipelines return un-normalised
  ones, `latents * std + mean` (their `scaling_factor` is 1 for every LTX release).
- Data sets of the LTX trainers hold `num_frames`, `height` and `width` beside the latents, and mean the grid.
- An MLX port's sidecar of two stages holds its result twice, as `stage_2_video_latent` and `final_video_latent`.
"""

import os
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import mlx.core as mx
import numpy as np

from ..errors import LatentsError, WriterError
from ..part_file import PartFile
from .layouts import Grid, to_channels_first
from .metadata import make_metadata, one_grid, parse_metadata
from .tensor_files import TensorFile, open_tensor_file

#: Names under which programs store latents: this package and MLX apps, ComfyUI, two-stage pipelines.
KNOWN_NAMES = ("latents", "latent", "samples", "latent_tensor", "stage_2_video_latent", "final_video_latent")
_STAGE_2, _FINAL = KNOWN_NAMES[-2:]
_MIN_PLAUSIBLE, _MAX_PLAUSIBLE = 1e-3, 1e3  # the largest magnitude of any clip's latents is between these


@dataclass(frozen=True)
class LatentsInfo:
    """What a latent file says about itself. What it does not say is None.

    Attributes:
        source: the file.
        tensor: the tensor's name in it.
        stored_shape: its shape in the file, whose layout may be another.
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
    path: str | os.PathLike,
    *,
    latent_channels: int | None = None,
    tensor: str | None = None,
    grid: Grid | None = None,
    unnormalized: bool | None = None,
    statistics: tuple[mx.array, mx.array] | None = None,
) -> tuple[mx.array, LatentsInfo]:
    """Read latents from a safetensors (also ComfyUI's .latent), .npy or .npz file.

    Args:
        path: the file.
        latent_channels: channels of the VAE. With it, channels-last files are understood and others refused.
        tensor: which tensor, where a file has several that could be meant.
        grid: (F', H', W') of packed latents whose file does not say it. Others must have it.
        unnormalized: whether the file holds `latents * std + mean`, as diffusers' LTX-2 pipelines return them. None
            for what its metadata says, which is that they are normalised where it says nothing.
        statistics: `(vae.mean, vae.std)`, each (C,), to normalise such latents with.

    Returns:
        Normalised latents `(B, C, F', H', W')` in the file's precision (float64 becomes float32, and so does whatever
        was not normalised), and what the file says of them.

    Raises:
        LatentsError: for a file that cannot be read, is a pickle or could mean several things, for arguments that
            contradict it, for un-normalised latents without statistics, and for whatever `check_latents` refuses.
    """
    source = os.fspath(path)
    file = open_tensor_file(Path(path))
    said = parse_metadata(file.metadata, source)
    needs_normalizing = _is_unnormalized(said.normalized, unnormalized, source)
    name = _choose_tensor(file, tensor, source)
    stored = file.tensors[name]()
    arranged = to_channels_first(
        stored,
        source,
        latent_channels=None if said.is_channels_first else latent_channels,
        grid=one_grid(grid, said.grid, source),
        sizes=said.foreign_sizes,
    )
    latents = _to_mlx(arranged, source)
    check_latents(latents, latent_channels, source)
    if needs_normalizing:
        latents = _normalize(latents, statistics, source)
    info = LatentsInfo(source, name, stored.shape, said.fps)
    if said.foreign_sizes == latents.shape[2:]:  # the latents' own
        return latents, info
    return latents, replace(info, num_frames=said.num_frames, height=said.height, width=said.width)


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
    metadata = make_metadata(target, fps=fps, num_frames=num_frames, height=height, width=width)
    part = PartFile(target)
    try:
        mx.save_safetensors(str(part.path), {"latents": latents}, metadata)
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
            f"{source}: latents {latents.shape} look packed, (B, tokens, C); unpack them to (B, C, F', H', W')."
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
    if {_STAGE_2, _FINAL} <= set(candidates):
        candidates.remove(_STAGE_2)
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
        f"{source}: has {len(candidates)} tensors that could be the latents ({shown}); choose one with tensor= "
        "(--tensor)."
    )


def _is_unnormalized(normalized: bool | None, given: bool | None, source: str) -> bool:
    """From what the file's metadata says, `normalized`, and what the caller says, `given`."""
    if given is None:
        return normalized is False
    if normalized is given:
        states = ("un-normalised", "normalised")
        raise LatentsError(
            f"{source}: its metadata says that these latents are {states[normalized]}, and the caller that they are "
            f"{states[not normalized]}; leave out unnormalized= (--unnormalized)."
        )
    return given


def _normalize(latents: mx.array, statistics: tuple[mx.array, mx.array] | None, source: str) -> mx.array:
    """`(latents - mean) / std`, float32 as the statistics are."""
    if statistics is None:
        raise LatentsError(
            f"{source}: these latents are un-normalised; give the VAE's statistics=(vae.mean, vae.std) with them."
        )
    channels = latents.shape[1]
    if any(array.shape != (channels,) for array in statistics):
        shapes = " and ".join(str(array.shape) for array in statistics)
        raise LatentsError(f"{source}: latents {latents.shape} need statistics ({channels},), and these are {shapes}.")
    mean, std = (array.astype(mx.float32).reshape(-1, 1, 1, 1) for array in statistics)
    return (latents - mean) / std


def to_numpy(latents: mx.array) -> np.ndarray:
    """Latents as `LatentsWriter` takes them: bfloat16, which numpy has not, as two-byte voids."""
    return np.asarray(latents.view(mx.uint16)).view("V2") if latents.dtype == mx.bfloat16 else np.asarray(latents)


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
