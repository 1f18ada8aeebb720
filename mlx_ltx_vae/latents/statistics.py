"""Statistics of latents. Latents are normalized, and denormalized, here only."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from ..errors import LatentsError, option

GivenStatistics = tuple[mx.array | None, mx.array | None]  # `(vae.mean, vae.std)`; None if the VAE has none
_CHANNELS_FIRST = (-1, 1, 1, 1)  # of latents (B, C, T, H, W)


class Statistics(NamedTuple):
    """Mean and standard deviation of each channel (C,) of latents. Results are float32.

    `shape` is that of the channels beside the other axes, by default of latents (B, C, T, H, W).
    """

    mean: mx.array
    std: mx.array

    @property
    def fingerprint(self) -> str:
        """Hash of the values, which VAEs of the same latents share, whatever their layout, dtype and decoder.

        The values are rounded to bfloat16, in which some files store them.
        """
        values = mx.concatenate([array.reshape(-1).astype(mx.bfloat16) for array in self])
        return hashlib.sha256(np.array(values.view(mx.uint16)).astype("<u2").tobytes()).hexdigest()[:16]

    def normalize(self, latents: mx.array, shape: Sequence[int] = _CHANNELS_FIRST) -> mx.array:
        mean, std = (values.astype(mx.float32).reshape(shape) for values in self)
        return (latents.astype(mx.float32) - mean) / std

    def denormalize(self, latents: mx.array) -> mx.array:
        mean, std = (values.astype(mx.float32).reshape(_CHANNELS_FIRST) for values in self)
        return latents.astype(mx.float32) * std + mean


def choose_statistics(
    source: str, normalized: bool | None, channels: int, statistics: GivenStatistics | None, unnormalized: bool | None
) -> Statistics | None:
    """Return the statistics that normalize latents of a file, float32 (C,) and evaluated.

    `normalized` is from the metadata, and `unnormalized` from the caller. Returns `None` if the latents are normalized.
    Raises a `LatentsError` if metadata and caller contradict each other, or if the statistics are missing or have
    another number of channels.
    """
    if unnormalized is not None and unnormalized is normalized:
        file_state, caller_state = ("normalized", "unnormalized") if unnormalized else ("unnormalized", "normalized")
        caller = option("the caller", "--unnormalized")
        raise LatentsError(
            f"{source}: its metadata says that these latents are {file_state}, and {caller} "
            f"that they are {caller_state}; leave out {option('unnormalized=', '--unnormalized')}."
        )
    if not (normalized is False if unnormalized is None else unnormalized):
        return None
    mean, std = statistics or (None, None)
    if mean is None or std is None:
        raise LatentsError(f"{source}: is unnormalized; give the VAE's statistics=(vae.mean, vae.std) with it.")
    if any(array.shape != (channels,) for array in (mean, std)):
        shapes = f"{mean.shape} and {std.shape}"
        raise LatentsError(f"{source}: these latents need statistics {(channels,)}, and these are {shapes}.")
    mean, std = mean.astype(mx.float32), std.astype(mx.float32)
    mx.eval(mean, std)  # lazy arrays could be used in this thread only
    return Statistics(mean, std)
