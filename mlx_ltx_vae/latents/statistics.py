"""Check whether latents look like a model's output: the one rule of `info` and of every decode."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ..errors import option

_LEAST_STD = 1e-3  # of a channel that is not constant
_MUCH_NEARER = 0.5
# Normalized latents have a standard deviation near 1 in every channel; in a plain or still clip some are smaller.
_MIN_USUAL_STD, _MAX_USUAL_STD = 1 / 3, 3.0
_LEAST_VALUES = 32  # of a channel: a corner of a clip varies less


def frame_moments(values: mx.array) -> np.ndarray:
    """Means and variances of the channels of a latent frame (B, C, 1, H', W'): (2, C) float64."""
    # In float64, in which no square of a float32 is infinite. Channel by channel, since it takes twice the memory.
    channels = (channel.astype(np.float64) for channel in np.moveaxis(np.array(values), 1, 0))
    return np.array([(channel.mean(), channel.var()) for channel in channels]).T


def join_moments(frames: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations (C,) of all latent frames together, from their `frame_moments`."""
    means, variances = np.moveaxis(np.array(frames), 1, 0)
    return means.mean(axis=0), np.sqrt(variances.mean(axis=0) + means.var(axis=0))


def count_unusual(stds: np.ndarray) -> int:
    """The number of channels whose standard deviation is far from 1."""
    return int(((stds < _MIN_USUAL_STD) | (stds > _MAX_USUAL_STD)).sum())


def are_unusual(stds: np.ndarray, num_values: int) -> bool:
    """Return whether most channels, of `num_values` each, are constant, or have a standard deviation far from 1."""
    is_constant = num_values > 1 and 2 * int((stds < _LEAST_STD).sum()) > len(stds)
    return is_constant or (num_values >= _LEAST_VALUES and 2 * count_unusual(stds) > len(stds))


def find_notice(
    means: np.ndarray,
    stds: np.ndarray,
    num_values: int,
    statistics: tuple[mx.array, mx.array] | None,
    *,
    was_unnormalized: bool,
) -> str | None:
    """The warning about latents whose channels have these moments when normalized; None for usual ones.

    `statistics` are the VAE's. `was_unnormalized` is True if they normalized the latents because the caller said so.
    """
    flag = option("unnormalized=True", "--unnormalized")
    if statistics is not None:
        mean, std = (np.array(array.astype(mx.float32)) for array in statistics)
        # The second: what normalization makes of the statistics 0 and 1.
        if was_unnormalized and _is_nearer(means, stds, -mean / std, 1 / std):
            return f"the channels have the statistics of normalized latents; if the picture is wrong, leave out {flag}."
        if not was_unnormalized and _is_nearer(means, stds, mean, std):
            return f"the channels have the statistics of unnormalized latents; if the picture is wrong, add {flag}."
    if are_unusual(stds, num_values):
        return (
            "most channels have a standard deviation far from 1: perhaps they are not normalized, or are of a plain, "
            "still clip; if the picture is wrong, check the program that made them."
        )
    return None


def _is_nearer(means: np.ndarray, stds: np.ndarray, mean: np.ndarray, std: np.ndarray) -> bool:
    """Return whether moments of channels match a mean and a std (C,) rather than 0 and 1."""
    stds = np.maximum(stds, _LEAST_STD)

    def distance(center: np.ndarray, scale: np.ndarray) -> float:
        return float((np.abs(means - center) / scale + np.abs(np.log(stds / scale))).mean())

    return distance(mean, std) < _MUCH_NEARER * distance(np.zeros_like(mean), np.ones_like(std))
