"""The noise that a decoder takes, drawn from a seed or passed by the caller.

Every draw has its own random key, made from the seed and an index: that of the latent frame of a batch item, or of the
noise map. The noise therefore depends neither on how a clip is cut nor on its length.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import mlx.core as mx
import numpy as np

from ..errors import LatentsError
from ..mlx_utils import evaluate
from ..shapes import LatentShape
from .specs import NetworkSpec

#: What callers pass: arrays in the order in which the network draws them, "zeros", or None to draw from a seed.
Noise = Sequence[mx.array | np.ndarray] | Literal["zeros"] | None

# The defaults of the pipelines of 0.9.1 to 0.9.8.
_DEFAULT_TIMESTEP = 0.05
_DEFAULT_SCALE = 0.025

_MASK = 2**32 - 1
_GOLDEN_RATIO = 0x9E3779B9
_MAPS = 2**31  # indices below belong to latent frames, indices from here on to noise maps
_ITEM = 2**20  # maximum number of latent frames per batch item


class Draws(NamedTuple):
    """All the noise of one decode.

    Attributes:
        latents: (B, C, F', H', W') float32 to mix into the normalized latents; None for zeros.
        scale: the fraction of the latents that is replaced by noise.
        maps: the noise maps by the name of the layer that adds them.
    """

    latents: mx.array | None
    scale: float
    maps: Mapping[str, mx.array]


def draw(
    noise: Noise, seed: int, shape: LatentShape, spec: NetworkSpec, dtype: mx.Dtype, *, scale: float | None = None
) -> Draws:
    """Draw the noise of one decode, or check the noise that the caller passed.

    Args:
        noise: None to draw from `seed`, "zeros", or the arrays themselves: the latent noise (B, C, F', H', W') if the
            network takes it, then the maps in order.
        seed: any integer.
        shape: shape of the latents.
        dtype: dtype of the maps.
        scale: the fraction of the latents that is replaced by noise, 0 to 1; None for 0.025.

    Raises:
        LatentsError: if the number of arrays or a shape does not match the network, or if the scale is out of range.
    """
    scale = _DEFAULT_SCALE if scale is None else _check_share(scale, "noise scale")
    shapes = spec.noise_shapes(shape.grid)
    if noise is None:
        maps = {
            name: mx.random.normal(size, dtype=mx.float32, key=_key(seed, _MAPS + index)).astype(dtype)
            for index, (name, size) in enumerate(shapes.items())
        }
        return Draws(_latent_noise(seed, shape) if spec.has_latent_noise else None, scale, maps)
    if isinstance(noise, str):
        if noise != "zeros":
            raise LatentsError(f'noise is "zeros", a sequence of arrays or None, not {noise!r}.')
        return Draws(None, scale, {name: mx.zeros(size, dtype) for name, size in shapes.items()})
    arrays = [array if isinstance(array, mx.array) else mx.array(array) for array in noise]
    evaluate("noise arrays", *arrays)
    latent_shapes = [tuple(shape)] if spec.has_latent_noise else []
    _check([array.shape for array in arrays], [*latent_shapes, *shapes.values()])
    latents = arrays.pop(0).astype(mx.float32) if spec.has_latent_noise else None
    return Draws(latents, scale, {name: array.astype(dtype) for name, array in zip(shapes, arrays, strict=True)})


def make_timesteps(spec: NetworkSpec, timestep: float | None, batch: int) -> mx.array | None:
    """The timesteps (B,) float32 of a decode; None if the network takes none.

    Raises:
        LatentsError: if the timestep is out of range, or if the network does not take one.
    """
    if spec.has_timestep:
        value = _DEFAULT_TIMESTEP if timestep is None else _check_share(timestep, "decode timestep")
        return mx.full((batch,), value, dtype=mx.float32)
    if timestep is not None:
        raise LatentsError("this VAE takes no timestep; those of 0.9.1 to 0.9.8 do.")
    return None


def _check_share(value: float, what: str) -> float:
    if not 0 <= float(value) <= 1:
        raise LatentsError(f"the {what} must be between 0 and 1, not {value}.")
    return float(value)


def _check(given: Sequence[tuple[int, ...]], expected: Sequence[tuple[int, ...]]) -> None:
    if given and not expected:
        raise LatentsError(f"{len(given)} noise arrays were given, but this network draws none.")
    for index, (got, wanted) in enumerate(zip(given, expected, strict=False)):
        if got != wanted:
            raise LatentsError(f"noise array {index} has the shape {got}; the network expects {wanted}.")
    if len(given) != len(expected):
        raise LatentsError(f"{len(given)} noise arrays were given, and the network draws {len(expected)}.")


def _latent_noise(seed: int, shape: LatentShape) -> mx.array:
    frame = (shape.channels, shape.height, shape.width)
    items = []
    for item in range(shape.batch):
        keys = (_key(seed, item * _ITEM + index) for index in range(shape.frames))
        items.append(mx.stack([mx.random.normal(frame, key=key) for key in keys], axis=1))
    return mx.stack(items)


def _key(seed: int, index: int) -> mx.array:
    """A random key, different for each pair of seed and index."""
    high, low = (seed >> 32) & _MASK, seed & _MASK
    return mx.array([low ^ ((high * _GOLDEN_RATIO) & _MASK), index & _MASK], dtype=mx.uint32)
