"""The noise that decoders of 0.9.x take: a function of position, or what a caller hands in.

Every draw has a key of its own, made from the seed and from what is drawn: the latent frame of a batch item, or the
number of the injected field. So the result does not depend on how a clip is cut or on how long it is.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import mlx.core as mx
import numpy as np

from ...errors import LatentsError

Noise = Sequence[mx.array | np.ndarray] | Literal["zeros"] | None

_MASK = 2**32 - 1
_GOLDEN_RATIO = 0x9E3779B9
_FIELDS = 2**31  # draws below it belong to latent frames, from it on to injected fields
_ITEM = 2**20  # latent frames that a batch item may have


class Draws(NamedTuple):
    """All the noise of one decode.

    Attributes:
        latents: (B, C, F', H', W') to mix into the normalised latents, or None for zeros.
        fields: the injected (H, W) fields in the order of the network.
    """

    latents: mx.array | None
    fields: list[mx.array]


def draw(
    noise: Noise, seed: int, latent_shape: Sequence[int], field_shapes: Sequence[tuple[int, int]], dtype: mx.Dtype
) -> Draws:
    """The noise of one decode.

    Args:
        noise: None to draw from `seed`, "zeros", or the arrays themselves: the latent noise (B, C, F', H', W'), then
            the fields in order.
        seed: any integer.
        latent_shape: (B, C, F', H', W').
        field_shapes: (H, W) of each injected field.
        dtype: what the fields are added to.

    Raises:
        LatentsError: for arrays of another number or other shapes.
    """
    if noise is None:
        return _from_seed(seed, latent_shape, field_shapes, dtype)
    if isinstance(noise, str):
        if noise != "zeros":
            raise LatentsError(f'noise is "zeros", a sequence of arrays or None, and not {noise!r}.')
        return Draws(None, [mx.zeros(shape, dtype) for shape in field_shapes])
    arrays = [mx.array(array) for array in noise]
    wanted = [tuple(latent_shape), *field_shapes]
    given = [array.shape for array in arrays]
    if given != wanted:
        for index, (got, expected) in enumerate(zip(given, wanted, strict=False)):
            if got != expected:
                raise LatentsError(f"noise array {index} has the shape {got}; the network draws {expected} there.")
        raise LatentsError(f"{len(given)} noise arrays were given and the network draws {len(wanted)}.")
    return Draws(arrays[0].astype(mx.float32), [array.astype(dtype) for array in arrays[1:]])


def _from_seed(
    seed: int, latent_shape: Sequence[int], field_shapes: Sequence[tuple[int, int]], dtype: mx.Dtype
) -> Draws:
    batch, channels, time, height, width = latent_shape
    items = []
    for item in range(batch):
        frames = [
            mx.random.normal((channels, height, width), key=_key(seed, item * _ITEM + frame)) for frame in range(time)
        ]
        items.append(mx.stack(frames, axis=1))
    fields = [
        mx.random.normal(shape, dtype=mx.float32, key=_key(seed, _FIELDS + index)).astype(dtype)
        for index, shape in enumerate(field_shapes)
    ]
    return Draws(mx.stack(items), fields)


def _key(seed: int, index: int) -> mx.array:
    """A random key of its own for each pair of seed and index."""
    high, low = (seed >> 32) & _MASK, seed & _MASK
    return mx.array([low ^ ((high * _GOLDEN_RATIO) & _MASK), index & _MASK], dtype=mx.uint32)
