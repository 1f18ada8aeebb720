"""Checks of latents before they reach a network."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ..errors import LatentsError
from ..mlx_utils import count_nonfinite, to_int


def check_latents(latents: mx.array, latent_channels: int | None, source: str) -> None:
    """Refuse latents that a decoder cannot take.

    Args:
        latents: should be `(B, C, F', H', W')`, floating point and finite.
        latent_channels: the expected C; None accepts any.
        source: the latents' name in errors.

    Raises:
        LatentsError: for another number of axes or channels, an axis of length 0, integers and values that are not
            finite.
    """
    check_shape(latents.shape, latent_channels, source)
    if not mx.issubdtype(latents.dtype, mx.floating):
        raise LatentsError(f"{source}: latents are {latents.dtype}; expected float32, float16 or bfloat16.")
    check_finite(latents, source)


def check_shape(shape: Sequence[int], latent_channels: int | None, source: str) -> None:
    """The part of `check_latents` that concerns the shape.

    Raises:
        LatentsError: for another number of axes or channels, and an axis of length 0.
    """
    shape = tuple(shape)
    if len(shape) == 3:
        raise LatentsError(f"{source}: latents {shape} look packed, (B, tokens, C); unpack them to (B, C, F', H', W').")
    if len(shape) != 5:
        raise LatentsError(f"{source}: latents {shape} should have five axes, (B, C, F', H', W').")
    if 0 in shape:
        raise LatentsError(f"{source}: latents {shape} are empty; no axis may have the length 0.")
    if latent_channels not in (None, shape[1]):
        raise LatentsError(f"{source}: latents {shape} have {shape[1]} channels where the VAE has {latent_channels}.")


def check_finite(latents: mx.array, source: str) -> None:
    """Refuse NaN and infinite values in latents `(B, C, F', H', W')`.

    Raises:
        LatentsError: with their number and the index of the first.
    """
    count = count_nonfinite(latents)
    if count:
        first = to_int(mx.argmax(mx.logical_not(mx.isfinite(latents))))
        index = tuple(int(i) for i in np.unravel_index(first, latents.shape))
        raise LatentsError(
            f"{source}: {count} of {latents.size} values are not finite (NaN or infinite), the first at "
            f"(b, c, f, h, w) = {index}; check the program that made these latents."
        )
