"""The options of a plan, and the checks of options and shapes. No MLX."""

import enum
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from ..errors import LatentsError, PlanError
from ..models.specs import NetworkSpec, PaddingMode
from ..shapes import Grid, LatentShape
from ..streaming.axis import Axis
from ..tiling.batches import check_batch_size
from ..tiling.config import TilingConfig
from .plan import Mode, Order

EnumT = TypeVar("EnumT", bound=enum.Enum)


class PlanOptions(NamedTuple):
    """The parsed options of `VideoVAE.plan`. None leaves the choice to the planner."""

    mode: Mode | None = None
    order: Order | None = None
    tiling: TilingConfig | None = None
    tile_batch_size: int = 1
    chunk: int | None = None


def parse_options(
    spec: NetworkSpec,
    *,
    mode: str = "auto",
    order: str = "auto",
    tiling: TilingConfig | None = None,
    tile_batch_size: int = 1,
    chunk: int | None = None,
) -> PlanOptions:
    """Parse the options of `VideoVAE.plan`, and check them against each other and the network.

    Raises:
        PlanError: if a value is unknown, or if options contradict each other or the network.
        TilingError: if the tile batch size is invalid.
    """
    check_batch_size(tile_batch_size)
    options = PlanOptions(_parse(mode, Mode, "mode"), _parse(order, Order, "order"), tiling, tile_batch_size, chunk)
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise PlanError(f"a chunk must be a whole number of positions, at least 1, not {chunk!r}.")
    if tiling is not None and options.mode is not Mode.TILED:
        raise PlanError('tiling goes with mode "tiled"; the other modes blend nothing.')
    if options.mode is Mode.SINGLE and (chunk is not None or options.order not in (None, Order.TIME)):
        raise PlanError("a chunk and an order go with mode exact; a single pass has one chunk.")
    if options.mode is Mode.TILED and options.order not in (None, Order.TIME):
        raise PlanError("tiles are streamed in time; an order goes with mode exact.")
    reason = options.order and why_not(spec, options.order)
    if reason:
        raise PlanError(reason)
    return options


def why_not(spec: NetworkSpec, order: Order) -> str | None:
    """The reason why a network cannot be streamed in this order; None if it can."""
    if order.axis not in spec.stream_axes:
        return f"this network streams by time only, not by {order.value}."
    layer = spec.unbounded_layer(order.axis)
    if layer is None:
        return None
    sees, other = ("the whole clip", "mode single") if order is Order.TIME else ("whole frames", "order time")
    return f"layer {layer.name} sees {sees}, so the network cannot be streamed by {order.value}; use {other}."


def check_latent_shape(spec: NetworkSpec, shape: Sequence[int]) -> LatentShape:
    """Parse a latent shape and check that the decoder can decode it.

    Raises:
        LatentsError: if it cannot.
    """
    shown = "(" + ", ".join(str(size) for size in shape) + ")"
    if len(shape) != 5:
        raise LatentsError(f"latents have the shape {shown}; expected five axes (B, C, F', H', W').")
    latent_shape = LatentShape(*(int(size) for size in shape))
    if 0 in latent_shape:
        raise LatentsError(f"latents have the shape {shown}, which is empty.")
    if latent_shape.channels != spec.in_channels:
        raise LatentsError(
            f"latents have the shape {shown} with {latent_shape.channels} channels; this VAE decodes "
            f"{spec.in_channels} (axes are (B, C, F', H', W'))."
        )
    _check_reflection(spec, latent_shape.grid, f"latents have the shape {shown}")
    return latent_shape


def check_frame_shape(spec: NetworkSpec, shape: Sequence[int], *, pad: bool) -> tuple[int, Grid]:
    """The batch size and (F, H, W) to encode, for frames of shape (B, 3, F, H, W) or (F, H, W, 3).

    F is rounded to 1 + t*k: up with `pad`, otherwise down.

    Raises:
        LatentsError: if the encoder cannot encode the shape.
    """
    if len(shape) == 5 and shape[1] == 3:
        batch, _, frames, height, width = shape
    elif len(shape) == 4 and shape[3] == 3:
        batch, (frames, height, width, _) = 1, shape
    else:
        raise LatentsError(f"frames have the shape {tuple(shape)}; expected is (B, 3, F, H, W) or (F, H, W, 3).")
    if min(batch, frames, height, width) < 1:
        raise LatentsError(f"frames have the shape {tuple(shape)}, which is empty.")
    grid = (spec.scale.usable_frames(frames, pad=pad), height, width)
    spec.scale.latent_grid(grid)  # raises if it is not a whole number of cells
    _check_reflection(spec, grid, f"frames have the shape {tuple(shape)}")
    return batch, grid


def _check_reflection(spec: NetworkSpec, grid: Grid, what: str) -> None:
    for layer, (_, height, width) in spec.walk(grid):
        reflects = layer.padding is PaddingMode.REFLECT and layer.window(Axis.HEIGHT).kernel > 1
        if reflects and min(height, width) < 2:
            raise LatentsError(f"{what}; this VAE pads by reflection, which needs at least 2 cells per side.")


def _parse(name: str, kind: type[EnumT], what: str) -> EnumT | None:
    """The enum member of this name, or None for "auto"."""
    if name == "auto":
        return None
    try:
        return kind(name)
    except ValueError:
        known = ", ".join(str(member.value) for member in kind)
        raise PlanError(f"{what} {name!r} is not known; expected auto, {known}.") from None
