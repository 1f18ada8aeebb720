"""Keyframe planes: stills that LTX-2.5's diffusion decoder sees in addition to the latents of a video."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import mlx.core as mx
import numpy as np

from ..backend.mlx_utils import native_array
from ..errors import LatentsError, excerpt, warn
from ..shapes import LatentShape
from ..units import format_count
from .formats import MappedLatents, StoredArray, TensorFile, check_readable, open_tensor_file
from .metadata import CHANNELS_FIRST, Layout, parse_metadata
from .statistics import GivenStatistics, choose_statistics

#: Names of the stills and of their frame numbers in files: first diffusers' arguments, which this package writes, then
#: diffusers' outputs.
STILL_NAMES, NUMBER_NAMES = ("keyframe_latents", "keyframes"), ("keyframe_frame_indices", "keyframe_positions")
KEYFRAME_NAMES = STILL_NAMES + NUMBER_NAMES
_MAX_FRAME = 2**31 - 1
_LISTED_FRAMES = 6


@dataclass(frozen=True, eq=False)
class Keyframes:
    """Stills at some frames of a video, which the diffusion decoder attends to at any distance in time.

    Attributes:
        latents: (B, C, P, H', W') on the grid of the video's latents and normalized like them, each still encoded as a
            clip of one frame.
        frames: the frame number of each still in the decoded video, (P,) whole numbers from 0 on. They may repeat, lie
            after the end of the video, and have any order.

    Raises:
        LatentsError: if the latents have other axes or no stills, or the frame numbers do not fit them.
    """

    latents: mx.array | np.ndarray
    frames: Sequence[int]

    def __post_init__(self) -> None:
        latents = native_array(self.latents, "keyframe latents")
        _check_axes(latents.shape)
        frames = np.asarray(native_array(self.frames, "frame numbers of keyframes"))
        object.__setattr__(self, "latents", latents)
        object.__setattr__(self, "frames", _check_frames(frames, latents.shape[2]))

    def __repr__(self) -> str:
        return f"Keyframes(latents {tuple(self.latents.shape)}, frames {list(self.frames)})"

    def check(self, shape: Sequence[int], source: str = "") -> None:
        """Raise a `LatentsError` unless the stills are on the grid of latents (B, C, F', H', W').

        `source` is the start of its message, such as a file and a colon.
        """
        _check_grid(self.latents.shape, shape, source)

    def item(self, index: int) -> "Keyframes":
        """Return the keyframes of one video of the batch."""
        return Keyframes(self.latents[index : index + 1], self.frames)


def check_keyframes(keyframes: object) -> None:
    """Raise a `LatentsError` unless this is a `Keyframes`."""
    if not isinstance(keyframes, Keyframes):
        raise LatentsError(
            f"keyframes have the type {type(keyframes).__name__}; expected Keyframes(latents, frames), or in a plan "
            "their frame numbers, such as [0, 120]."
        )


def frame_numbers(keyframes: Keyframes | Sequence[int] | None) -> tuple[int, ...]:
    """Return the frame numbers of keyframes, which may be given as frame numbers; raise a `LatentsError` otherwise."""
    if isinstance(keyframes, Keyframes):
        return tuple(keyframes.frames)
    numbers = keyframes.tolist() if isinstance(keyframes, np.ndarray) else [] if keyframes is None else keyframes
    if not isinstance(numbers, Sequence) or not all(isinstance(number, int) for number in numbers):
        check_keyframes(keyframes)
    return _check_frames(np.array(numbers), len(numbers)) if numbers else ()


@dataclass(frozen=True)
class KeyframesFile:
    """Keyframes in a latent file. Only their frame numbers have been read."""

    source: str
    shape: LatentShape  # (B, C, P, H', W')
    frames: tuple[int, ...]
    normalized: bool | None  # as the metadata states, also for the latents; None if it states nothing
    stored_dtype: str  # such as "bfloat16"
    _stored: MappedLatents = field(repr=False)  # all stills of the tensor, before they are normalized
    _indices: tuple[int, ...] = field(repr=False)  # of these stills among the stored ones

    def check(self, shape: Sequence[int]) -> None:
        """Run `Keyframes.check`. The error names the file."""
        _check_grid(self.shape, shape, f"{self.source}: ")

    def read(self, *, statistics: GivenStatistics | None = None, unnormalized: bool | None = None) -> Keyframes:
        """Return the keyframes with normalized latents. Arguments, dtype and errors as in `LatentsFile.read`."""
        latent_statistics = choose_statistics(
            self.source, self.normalized, self.shape.channels, statistics, unnormalized
        )
        latents = replace(self._stored, statistics=latent_statistics)
        return Keyframes(latents[()][:, :, list(self._indices)], self.frames)


def load_keyframes(
    path: str | os.PathLike, *, unnormalized: bool | None = None, statistics: GivenStatistics | None = None
) -> Keyframes | None:
    """Return the keyframes of a file, with normalized latents, or `None` if it has none. It may also have latents.

    Args:
        path: as in `load_latents`. The tensors are `keyframe_latents` (B, C, P, H', W') and `keyframe_frame_indices`
            (P,), or `keyframes` and `keyframe_positions`. Keyframes after the last of the `num_frames` that the
            file states are left out, with a warning.
        unnormalized: True if the file stores `latents * std + mean`; `None` follows the metadata.
        statistics: `(vae.mean, vae.std)`, each (C,), which normalize unnormalized latents.

    Raises:
        LatentsError: for a file that cannot be read, keyframes without frame numbers or of other shapes and dtypes,
            values that are not finite, and arguments that contradict the metadata.
    """
    file = open_keyframes(path)
    return None if file is None else file.read(statistics=statistics, unnormalized=unnormalized)


def open_keyframes(path: str | os.PathLike, num_frames: int | None = None) -> KeyframesFile | None:
    """Open a file and return its keyframes, as `find_keyframes`. Raises a `LatentsError`, too, if it cannot."""
    return find_keyframes(open_tensor_file(path), num_frames)


def find_keyframes(file: TensorFile, num_frames: int | None = None) -> KeyframesFile | None:
    """Return the keyframes among the tensors of a file, or `None` if there are none.

    Frame numbers without latents are ignored. Keyframes after the last of `num_frames`, by default the number in the
    metadata, are left out with a warning. Raises a `LatentsError` for latents without frame numbers, with other axes,
    or of a dtype that is not read.
    """
    tensors, entries, source = file
    name, numbers_name = _choose_name(STILL_NAMES, tensors, source), _choose_name(NUMBER_NAMES, tensors, source)
    if name is None:
        return None
    if numbers_name is None:
        raise LatentsError(f"{source}: has {name} and no {NUMBER_NAMES[STILL_NAMES.index(name)]}, their frame numbers.")
    stored, numbers = tensors[name], tensors[numbers_name]
    _check_axes(stored.header.shape, f"{source}: ")
    check_readable(stored, name)
    shape = LatentShape(*stored.header.shape)
    if numbers.header.shape != (shape.frames,) or not numbers.header.dtype.startswith(("int", "uint")):
        raise LatentsError(
            f"{source}: {numbers_name} has the shape {excerpt(numbers.header.shape)} in "
            f"{excerpt(numbers.header.dtype)}; expected ({shape.frames},) whole numbers, one for each of {name}."
        )
    frames = _check_frames(numbers.read(), shape.frames, f"{source}: ")
    metadata = parse_metadata(entries, source)
    end = num_frames or metadata.sizes[0] or math.inf
    indices = tuple(index for index, frame in enumerate(frames) if frame < end)
    if len(indices) < len(frames):
        later = describe_keyframes([frame for frame in frames if frame >= end])
        warn(f"{source}: the {end} frames of its video leave out {later}.")
    if not indices:
        return None
    layout = Layout(dict(zip(CHANNELS_FIRST, shape, strict=True)))
    latents = MappedLatents(stored, layout, shape, f"{source}: keyframe latents")
    shape, frames = shape._replace(frames=len(indices)), tuple(frames[index] for index in indices)
    return KeyframesFile(source, shape, frames, metadata.normalized, stored.header.dtype, latents, indices)


def _choose_name(names: Sequence[str], tensors: Mapping[str, StoredArray], source: str) -> str | None:
    """Return the one of several synonymous names that a file uses. Raises a `LatentsError` if it uses several."""
    used_names = [name for name in names if name in tensors]
    if len(used_names) > 1:
        raise LatentsError(f"{source}: has {' and '.join(used_names)}, two names for the same; keep one.")
    return used_names[0] if used_names else None


def describe_keyframes(frames: Sequence[int]) -> str:
    """Return a count and the first frame numbers: "5 keyframes at frames 24, 48, 72, 96, 120"."""
    numbers = [*map(str, frames[:_LISTED_FRAMES]), *["..."] * (len(frames) > _LISTED_FRAMES)]
    return f"{format_count(len(frames), 'keyframe')} at frame{'s' * (len(frames) > 1)} {', '.join(numbers)}"


def _check_axes(shape: Sequence[int], source: str = "") -> None:
    if len(shape) != 5 or 0 in shape:
        raise LatentsError(
            f"{source}keyframe latents have the shape {excerpt(tuple(shape))}; expected (B, C, P, H', W')."
        )


def _check_frames(frames: np.ndarray, count: int, source: str = "") -> tuple[int, ...]:
    """Return the frame numbers of `count` stills. Raises a `LatentsError` if they are invalid, or not as many."""
    if frames.shape != (count,) or frames.dtype.kind not in "iu" or frames.min() < 0 or frames.max() > _MAX_FRAME:
        raise LatentsError(
            f"{source}keyframes need one frame number from 0 to {_MAX_FRAME} for each of their {count} stills, and "
            f"have {excerpt(frames.tolist(), 80)}."
        )
    return tuple(frames.tolist())


def _check_grid(keyframe_shape: Sequence[int], shape: Sequence[int], source: str) -> None:
    batch, channels, _, *size = shape
    if tuple(keyframe_shape) != (expected := (batch, channels, keyframe_shape[2], *size)):
        raise LatentsError(
            f"{source}keyframe latents have the shape {tuple(keyframe_shape)}, and the latents of the video "
            f"{tuple(shape)}; expected {expected}."
        )
