"""Checks the shapes of latents and frames against a network. No MLX."""

from collections.abc import Sequence
from itertools import count
from numbers import Integral

from ..errors import LatentsError, quote
from ..shapes import MAX_PIXELS, Axis, Border, Grid, LatentShape, format_size, is_possible_size
from .specs import NetworkSpec, PaddingMode

_MAX_LATENT_FRAMES = 2**17  # 12 hours at 24 frames per second


def check_latent_shape(spec: NetworkSpec, shape: Sequence[int]) -> LatentShape:
    """A latent shape that the decoder can decode; any other is a `LatentsError`."""
    _check_is_shape(shape, "latents")
    what = f"latents have the shape ({', '.join(str(size) for size in shape)})"
    if len(shape) != 5:
        raise LatentsError(f"{what}; expected five axes (B, C, F', H', W').")
    if not all(isinstance(size, Integral) for size in shape):
        raise LatentsError(f"{what}; expected five whole numbers.")
    latent_shape = LatentShape(*(int(size) for size in shape))
    channels = latent_shape.channels
    if 0 in latent_shape:
        raise LatentsError(f"{what}, which is empty.")
    if channels != spec.in_channels:
        decoded = f"this VAE decodes {spec.in_channels} (axes are (B, C, F', H', W'))"
        raise LatentsError(f"{what} with {channels} channels; {decoded}.")
    if latent_shape.frames > _MAX_LATENT_FRAMES:
        limit = f"at most {_MAX_LATENT_FRAMES} latent frames are decoded at once"
        raise LatentsError(f"{what}; {limit}, so decode them in parts.")
    _, height, width = spec.out_grid(latent_shape.grid)
    if not is_possible_size((width, height)):
        size = format_size(width, height)
        raise LatentsError(f"{what} and decode to {size}; frames have at most {MAX_PIXELS:,} pixels.")
    for axis, noun in zip(Axis, ("frames", "rows", "columns"), strict=True):
        least = least_cells(spec, axis)
        if latent_shape.grid[axis.grid] < least:
            raise LatentsError(f"{what}; this VAE needs at least {least} latent {noun}.")
    _check_reflection(spec, latent_shape.grid, what)
    return latent_shape


def check_frame_shape(spec: NetworkSpec, shape: Sequence[int], *, pad: bool) -> tuple[int, Grid]:
    """The batch size and (F, H, W) to encode, for frames of shape (B, 3, F, H, W) or (F, H, W, 3).

    F is rounded to 1 + t*k: up with `pad`, otherwise down, unless the network takes any number. A shape that cannot be
    encoded is a `LatentsError`.
    """
    _check_is_shape(shape, "frames")
    what = f"frames have the shape {tuple(shape)}"
    if len(shape) == 5 and shape[1] == (3 if spec.clip.unit == "frame" else spec.in_channels):
        batch, _, frames, height, width = shape
    elif len(shape) == 4 and shape[3] == 3:
        batch, (frames, height, width, _) = 1, shape
    else:
        raise LatentsError(f"{what}; expected is (B, 3, F, H, W) or (F, H, W, 3).")
    if min(batch, frames, height, width) < 1:
        raise LatentsError(f"{what}, which is empty.")
    grid = (spec.usable_frames(frames, pad=pad), height, width)
    cell = spec.scale.width, spec.scale.height
    if width % cell[0] or height % cell[1]:
        nearest = (max(1, round(side / each)) * each for side, each in zip((width, height), cell, strict=True))
        raise LatentsError(
            f"frames of {format_size(width, height)} are no whole number of latent cells, {format_size(*cell)} pixels "
            f"each; resize them to {format_size(*nearest)}, or crop them."
        )
    _check_reflection(spec, grid, what)
    return batch, grid


def least_cells(spec: NetworkSpec, axis: Axis) -> int:
    """The shortest clip that a decoder can decode along an axis: a window that shifts inwards needs all positions."""
    return next(length for length in count(1) if _fits(spec, axis, length))


def _fits(spec: NetworkSpec, axis: Axis, length: int) -> bool:
    for layer in spec.layers:
        window = layer.window(axis)
        if window.border is Border.SHIFT and length < window.kernel:
            return False
        length = layer.results(axis, length)
    return length > 0


def _check_is_shape(shape: Sequence[int], name: str) -> None:
    if getattr(shape, "ndim", 1) > 1:
        raise LatentsError(f"a plan takes the shape of {name}, not an array; pass {name}.shape.")
    if not isinstance(shape, Sequence) and not hasattr(shape, "__array__"):
        raise LatentsError(f"a plan takes the shape of {name}, not {quote(shape)}; pass {name}.shape.")


def _check_reflection(spec: NetworkSpec, grid: Grid, what: str) -> None:
    for layer, (_, height, width) in spec.walk(grid):
        reflects = layer.padding is PaddingMode.REFLECT and layer.window(Axis.HEIGHT).kernel > 1
        if reflects and min(height, width) < 2:
            raise LatentsError(f"{what}; this VAE pads by reflection, which needs at least 2 cells per side.")
