"""Reading latent files: safetensors (also ComfyUI's .latent), .npy and .npz.

Facts about the files of other programs:

- ComfyUI's `.latent` is safetensors with the tensor `latent_tensor`, the values of its LATENT type, which for LTX are
  normalized. An empty tensor `latent_format_version_0` marks the format. ComfyUI's loader multiplies files without
  that mark by 1/0.18215, the scale of Stable Diffusion latents in early 2023. LTX is newer than the mark, so an LTX
  file without it was written by another program, which stored the values as they were: they are never rescaled here.
- diffusers' LTX-Video pipelines return normalized latents, packed or not. Its LTX-2 pipelines return unnormalized
  ones, `latents * std + mean` (their `scaling_factor` is 1 for every LTX release).
- Data sets of the LTX trainers store `num_frames`, `height` and `width` of the latent grid.
- The sidecar of an MLX port's two-stage pipeline stores its result twice, as `stage_2_video_latent` and
  `final_video_latent`.
"""

import os
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import mlx.core as mx
import numpy as np

from ..errors import LatentsError
from ..mlx_utils import to_float
from ..shapes import Grid, LatentShape
from .check import check_finite, check_shape
from .layouts import Layout, find_layout
from .metadata import LatentsMetadata, merge_grids, parse_metadata
from .tensor_files import StoredTensor, TensorFile, open_tensor_file

#: Names under which programs store latents: this package and MLX apps, ComfyUI, two-stage pipelines.
KNOWN_NAMES = ("latents", "latent", "samples", "latent_tensor", "stage_2_video_latent", "final_video_latent")
_STAGE_2, _FINAL = KNOWN_NAMES[-2:]

# uint16 may be the bits of bfloat16: the files of programs whose numpy has no bfloat16.
_READABLE_DTYPES = ("float16", "bfloat16", "float32", "float64", "uint16")
_MIN_PLAUSIBLE, _MAX_PLAUSIBLE = 1e-3, 1e3  # the range of any clip's largest magnitude


@dataclass(frozen=True)
class LatentsInfo:
    """What a latent file states about itself. A value that it does not state is None.

    Attributes:
        source: the file.
        tensor: the name of the tensor in the file.
        stored_shape: the shape in the file, in the file's layout.
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


@dataclass(frozen=True)
class LatentsFile:
    """A latent file whose header has been read, and whose values are read by `read`.

    Attributes:
        info: what the file states about itself.
        shape: (B, C, F', H', W').
        normalized: what the metadata states; None if nothing, which `read` takes for True.
    """

    info: LatentsInfo
    shape: LatentShape
    normalized: bool | None
    _tensor: StoredTensor = field(repr=False)
    _layout: Layout = field(repr=False)

    @property
    def stored_dtype(self) -> str:
        """The dtype in the file, such as "bfloat16"."""
        return self._tensor.dtype

    @property
    def layout(self) -> str:
        """The axes in the file, such as "(B, tokens, C)"."""
        return str(self._layout)

    def read(
        self, *, statistics: tuple[mx.array, mx.array] | None = None, unnormalized: bool | None = None
    ) -> mx.array:
        """Normalized latents `(B, C, F', H', W')`.

        Args:
            statistics: `(vae.mean, vae.std)`, each (C,), which normalize unnormalized latents.
            unnormalized: whether the file stores `latents * std + mean`, as diffusers' LTX-2 pipelines return it. None
                follows the metadata.

        Returns:
            The file's dtype; float32 for float64 and for latents that were normalized here.

        Raises:
            LatentsError: for a file that cannot be read, values that are not finite, `unnormalized` that contradicts
                the metadata, and unnormalized latents without statistics.
        """
        source = self.info.source
        needs_normalizing = _is_unnormalized(self.normalized, unnormalized, source)
        mean_and_std = _check_statistics(statistics, self.shape, source) if needs_normalizing else None
        latents = _to_mlx(self._layout.to_channels_first(self._tensor.read()), source)
        check_finite(latents, source)
        if mean_and_std is None:
            return latents
        mean, std = (array.astype(mx.float32).reshape(-1, 1, 1, 1) for array in mean_and_std)
        return (latents - mean) / std


def open_latents(
    path: str | os.PathLike,
    *,
    latent_channels: int | None = None,
    tensor: str | None = None,
    grid: Grid | None = None,
) -> LatentsFile:
    """Read the header of a latent file, and none of its values.

    Args:
        path: a safetensors (also ComfyUI's .latent), .npy or .npz file.
        latent_channels: channels of the VAE. With it, channels-last files are understood and other channels refused.
        tensor: the tensor's name, for a file with several candidates.
        grid: (F', H', W'), needed for packed latents whose file does not state it, and checked for others.

    Raises:
        LatentsError: for a file that cannot be read, is a pickle or is ambiguous, and for shapes and dtypes that a
            decoder cannot take.
    """
    source = os.fspath(path)
    file = open_tensor_file(Path(path))
    metadata = parse_metadata(file.metadata, source)
    name = _choose_tensor(file, tensor, source)
    stored = file.tensors[name]
    layout = find_layout(
        stored.shape,
        source,
        latent_channels=None if metadata.is_channels_first else latent_channels,
        grid=merge_grids(grid, metadata.grid, source),
        sizes=metadata.ambiguous_sizes,
    )
    check_shape(layout.shape, latent_channels, source)
    if stored.dtype not in _READABLE_DTYPES:
        raise LatentsError(f"{source}: {name} is stored as {stored.dtype}; save it as float32, float16 or bfloat16.")
    return LatentsFile(_info(metadata, layout, name, source), layout.shape, metadata.normalized, stored, layout)


def load_latents(
    path: str | os.PathLike,
    *,
    latent_channels: int | None = None,
    tensor: str | None = None,
    grid: Grid | None = None,
    unnormalized: bool | None = None,
    statistics: tuple[mx.array, mx.array] | None = None,
) -> tuple[mx.array, LatentsInfo]:
    """Normalized latents `(B, C, F', H', W')` and what the file states about them.

    Args:
        path, latent_channels, tensor, grid: see `open_latents`.
        unnormalized, statistics: see `LatentsFile.read`.

    Raises:
        LatentsError: as `open_latents` and `LatentsFile.read`.
    """
    file = open_latents(path, latent_channels=latent_channels, tensor=tensor, grid=grid)
    return file.read(statistics=statistics, unnormalized=unnormalized), file.info


def _info(metadata: LatentsMetadata, layout: Layout, tensor: str, source: str) -> LatentsInfo:
    sizes: tuple[int | None, int | None, int | None] = metadata.num_frames, metadata.height, metadata.width
    if metadata.ambiguous_sizes == layout.shape.grid:  # the latents' own sizes, not the video's
        sizes = None, None, None
    return LatentsInfo(source, tensor, layout.stored_shape, metadata.fps, *sizes)


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


def _is_unnormalized(normalized: bool | None, unnormalized: bool | None, source: str) -> bool:
    """From the metadata's `normalized` and the caller's `unnormalized`."""
    if unnormalized is None:
        return normalized is False
    if normalized is unnormalized:
        states = ("unnormalized", "normalized")
        raise LatentsError(
            f"{source}: its metadata says that these latents are {states[normalized]}, and the caller that they are "
            f"{states[not normalized]}; leave out unnormalized= (--unnormalized)."
        )
    return unnormalized


def _check_statistics(
    statistics: tuple[mx.array, mx.array] | None, shape: LatentShape, source: str
) -> tuple[mx.array, mx.array]:
    if statistics is None:
        raise LatentsError(
            f"{source}: these latents are unnormalized; give the VAE's statistics=(vae.mean, vae.std) with them."
        )
    expected = (shape.channels,)
    if any(array.shape != expected for array in statistics):
        shapes = " and ".join(str(array.shape) for array in statistics)
        raise LatentsError(f"{source}: latents {tuple(shape)} need statistics {expected}, and these are {shapes}.")
    return statistics


def _to_mlx(array: np.ndarray, source: str) -> mx.array:
    """An MLX array of the same values, float64 as float32; `V2`, and uint16 that are plausible so, are bfloat16."""
    if array.dtype == np.dtype("V2"):
        return mx.array(array.view(np.uint16)).view(mx.bfloat16)
    if array.dtype == np.uint16:
        latents = mx.array(array).view(mx.bfloat16)
        if _MIN_PLAUSIBLE < to_float(mx.max(mx.abs(latents.astype(mx.float32)))) < _MAX_PLAUSIBLE:
            return latents
        raise LatentsError(f"{source}: latents are stored as uint16 and are not bfloat16; save them as float32.")
    dtype = np.float16 if array.dtype.itemsize == 2 else np.float32
    return mx.array(array.astype(dtype, order="C", copy=False))
