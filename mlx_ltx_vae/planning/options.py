"""The options of a plan, and their checks. No MLX."""

import enum
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ..errors import PlanError, option
from ..models.specs import NetworkSpec
from ..shapes import Axis, Grid
from ..tiling.config import TilingConfig
from ..tiling.layout import Interval, check_batch_size
from .plan import Mode, Order

#: What the arguments `mode`, `order` and `bit_depth` accept.
ModeName = Literal["auto", "exact", "single", "tiled"]
OrderName = Literal["auto", "time", "rows", "columns"]
BitDepth = Literal[8, 10]

#: The largest number of denoising steps: each one takes as long as a decode of one step.
MAX_STEPS = 100

EnumT = TypeVar("EnumT", bound=enum.Enum)


@dataclass(frozen=True)
class PlanOptions:
    """The options of `VideoVAE.plan`, which documents them. None leaves the choice to the planner.

    Raises:
        PlanError: if a value is invalid, or if options contradict each other.
        TilingError: if the tiles or the tile batch size are invalid.
    """

    memory_budget: str | int | None = None
    mode: Mode | None = None
    order: Order | None = None
    tiling: TilingConfig | None = None
    tile_batch_size: int = 1
    chunk: int | None = None
    ranks: int = 1
    denoising_steps: int | None = None
    keyframes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_batch_size(self.tile_batch_size)
        chunk = self.chunk
        if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
            raise PlanError(f"a chunk must be a whole number of positions, at least 1, not {chunk!r}.")
        if self.tiling is not None and self.mode is not Mode.TILED:
            raise PlanError('tiling goes with mode "tiled"; the other modes blend nothing.')
        if self.mode is Mode.SINGLE and (chunk is not None or self.order not in (None, Order.TIME)):
            what = option("a chunk and an order go with mode exact", "--chunk and --order go with --mode exact")
            raise PlanError(f"{what}; a single pass has one chunk.")
        if self.mode is Mode.TILED and self.order not in (None, Order.TIME):
            what = option("an order goes with mode exact", "--order goes with --mode exact")
            raise PlanError(f"tiles are streamed in time; {what}.")
        if self.ranks > 1 and (self.mode not in (None, Mode.EXACT) or self.order not in (None, Order.TIME)):
            raise PlanError(f"{self.ranks} ranks decode bands of rows, which goes with mode exact and order time.")


def parse_options(
    *,
    mode: str | Mode | None = "auto",
    order: str | Order | None = "auto",
    tiling: TilingConfig | None = None,
    **options: Any,
) -> PlanOptions:
    """The options of these values, as `VideoVAE.plan` takes them: modes and orders by name, tiles of any app.

    Raises:
        PlanError: if a name is unknown; also the errors of `PlanOptions`.
    """
    tiles = None if tiling is None else TilingConfig.of(tiling)
    return PlanOptions(mode=_parse(mode, Mode, "mode"), order=_parse(order, Order, "order"), tiling=tiles, **options)


def choose_variant(spec: NetworkSpec, steps: int | None, keyframes: tuple[int, ...]) -> NetworkSpec:
    """The network with a number of denoising steps, and with planes of these keyframes if it takes any."""
    if spec.variant is None:
        if steps is not None:
            raise PlanError("this VAE takes no denoising steps; the diffusion decoder of LTX-2.5 does.")
        return spec
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MAX_STEPS):
        raise PlanError(f"the denoising steps must be a whole number from 1 to {MAX_STEPS}, not {steps!r}.")
    return spec.variant(steps, keyframes)


def check_order(spec: NetworkSpec, options: PlanOptions) -> None:
    """Raise a `PlanError` if the network cannot be run in the requested order, or in tiles."""
    reason = options.order and why_not(spec, options.order)
    if spec.sound is not None and options.mode is Mode.TILED:
        reason = "sound has no tiles; use mode exact or single."
    if reason:
        raise PlanError(reason)


def split_rows(rows: int, ranks: int) -> tuple[Interval, ...]:
    """Bands of latent rows, one per rank from top to bottom, as even as possible; larger ones come first.

    Raises:
        PlanError: if there are more ranks than rows.
    """
    if not 1 <= ranks <= rows:
        raise PlanError(f"{ranks} ranks cannot share {rows} latent rows; use at most {rows} ranks, or mode batch.")
    size, larger = divmod(rows, ranks)
    starts = [rank * size + min(rank, larger) for rank in range(ranks + 1)]
    return tuple(Interval(start, end) for start, end in zip(starts, starts[1:], strict=False))


def why_not(spec: NetworkSpec, order: Order) -> str | None:
    """The reason why a network cannot be streamed in this order; None if it can."""
    if order.axis not in spec.stream_axes:
        return f"this network streams by time only, not by {order.value}."
    layer = spec.unbounded_layer(order.axis)
    if layer is None:
        return None
    if spec.keyframes:
        return "frames see keyframes at any distance, so the decode cannot be streamed by time; use columns or rows."
    sees, other = ("the whole clip", "mode single") if order is Order.TIME else ("whole frames", "order time")
    return f"layer {layer.name} sees {sees}, so the network cannot be streamed by {order.value}; use {other}."


def _parse(name: str | EnumT | None, kind: type[EnumT], what: str) -> EnumT | None:
    """The enum member of this name, or None for "auto"."""
    if name is None or name == "auto":
        return None
    try:
        return kind(name)
    except ValueError:
        known = ", ".join(str(member.value) for member in kind)
        raise PlanError(f"{what} {name!r} is not known; expected auto, {known}.") from None


def check_bands(spec: NetworkSpec, grid: Grid, ranks: int) -> None:
    """Check that a band of this grid (T, H, W), the smallest of those of some ranks, has what its neighbors need."""
    for layer, (_, height, _) in spec.walk(grid):
        if height < layer.least_band(Axis.HEIGHT):
            raise PlanError(
                f"{ranks} ranks would have bands of {height} rows at layer {layer.name}, which needs at least "
                f"{layer.least_band(Axis.HEIGHT)}; use fewer ranks."
            )
