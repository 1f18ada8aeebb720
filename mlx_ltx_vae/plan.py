"""How to decode: what is decided before the first latent is touched. Pure arithmetic, no MLX."""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .config import BlockKind, NetworkConfig, NormKind, VAEConfig
from .errors import LatentsError, PlanError
from .padding import PaddingMode


class Mode(enum.Enum):
    """Which way a clip is decoded."""

    SINGLE = "single"  # the whole clip as one chunk
    EXACT = "exact"  # streamed chunk by chunk, the same result


class Order(enum.Enum):
    """Along which axis a clip is streamed."""

    TIME = "time"
    ROWS = "rows"
    COLUMNS = "columns"


_LATENT_AXES = {Order.TIME: 2, Order.ROWS: 3, Order.COLUMNS: 4}
_LATENT_NOUNS = {Order.TIME: "frame", Order.ROWS: "row", Order.COLUMNS: "column"}

# Latent positions (frames, or rows, or columns) handed to the network at a time. One keeps the least between the layers.
_DEFAULT_CHUNK = 1

# Positions that a layer takes at once where the activations are widest, and more where they are not. A convolution
# looks at two positions besides those it is given: norming these again for every single one is what costs.
_STEP_POSITIONS = 2


@dataclass(frozen=True)
class DecodePlan:
    """How one clip will be decoded. `print(plan)` explains it.

    Attributes:
        mode: SINGLE or EXACT.
        order: the axis of the stream.
        latent_shape: (B, C, F', H', W').
        chunk: latent frames handed to the network at a time.
        step_elements: what a layer takes at once, in elements of its input.
        num_frames: frames that come out.
        height: their rows.
        width: their columns.
        lookahead: latent frames that must be seen before the first frame is final.
    """

    mode: Mode
    order: Order
    latent_shape: tuple[int, int, int, int, int]
    chunk: int
    step_elements: int
    num_frames: int
    height: int
    width: int
    lookahead: int

    @property
    def frame_size(self) -> tuple[int, int]:
        """(width, height) in pixels, as video writers want it."""
        return self.width, self.height

    def as_dict(self) -> dict[str, Any]:
        """The plan in JSON's terms."""
        return {
            "mode": self.mode.value,
            "order": self.order.value,
            "latent_shape": list(self.latent_shape),
            "chunk": self.chunk,
            "frames": self.num_frames,
            "height": self.height,
            "width": self.width,
            "lookahead": self.lookahead,
        }

    def __str__(self) -> str:
        batch, channels, time, height, width = self.latent_shape
        videos = f"{batch} x " if batch > 1 else ""
        lines = [
            f"latents  {videos}{channels} channels, {time} x {height} x {width} (frames x rows x columns)",
            f"video    {videos}{self.num_frames} frames of {self.width}x{self.height}",
        ]
        if self.mode is Mode.SINGLE:
            lines.append("mode     single: the whole clip at once; memory grows with its length")
        else:
            noun = _LATENT_NOUNS[self.order]
            unit = f"1 latent {noun}" if self.chunk == 1 else f"{self.chunk} latent {noun}s"
            lines.append(f"mode     exact: the single pass's result, streamed by {self.order.value}, {unit} at a time")
            if self.order is Order.TIME:
                lines.append(f"first    frame after {min(self.lookahead, time)} of {time} latent frames")
            else:
                lines.append(f"first    frame at the end: all frames wait on disk for their last {self.order.value}")
        return "\n".join(lines)


def make_plan(
    config: VAEConfig, latent_shape: Sequence[int], *, mode: str = "auto", order: str = "auto", chunk: int | None = None
) -> DecodePlan:
    """Decide how to decode latents of a shape.

    Args:
        config: of the VAE.
        latent_shape: (B, C, F', H', W').
        mode: "auto", "exact" or "single". "auto" is exact wherever the network allows it.
        order: "auto", "time", "rows" or "columns".
        chunk: latent frames (rows, columns) at a time for the exact mode; None to choose.

    Raises:
        LatentsError: for a shape that the VAE cannot decode.
        PlanError: for a mode that it cannot be decoded in, or an option that is not known.
    """
    shape = check_latent_shape(config, latent_shape)
    wanted_mode = _choice(mode, Mode, "mode")
    wanted_order = _choice(order, Order, "order")
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise PlanError(f"a chunk is a whole number of latent positions, at least 1, and not {chunk!r}.")
    local = config.decoder.norm is not NormKind.GROUP
    if wanted_mode is Mode.EXACT and not local:
        raise PlanError("this decoder's group norms look at the whole clip, so it cannot be streamed; use mode single.")
    chosen = Mode.SINGLE if not local else wanted_mode or Mode.EXACT
    if chosen is Mode.SINGLE and (chunk is not None or wanted_order not in (None, Order.TIME)):
        raise PlanError("a chunk length and an order go with mode exact; a single pass has one chunk.")
    chosen_order = wanted_order or Order.TIME
    _check_order(config.decoder, chosen_order)
    axis = _LATENT_AXES[chosen_order]
    time, height, width = config.scale
    return DecodePlan(
        mode=chosen,
        order=chosen_order,
        latent_shape=shape,
        chunk=shape[axis] if chosen is Mode.SINGLE else min(chunk or _DEFAULT_CHUNK, shape[axis]),
        step_elements=_STEP_POSITIONS * widest_position(config.decoder, shape, chosen_order),
        num_frames=config.num_frames(shape[2]),
        height=height * shape[3],
        width=width * shape[4],
        lookahead=lookahead(config.decoder) if chosen_order is Order.TIME else shape[2],
    )


def _choice(name: str, kind: type[enum.Enum], what: str) -> Any:
    """The member that a user's word means, or None for "auto"."""
    if name == "auto":
        return None
    try:
        return kind(name)
    except ValueError:
        known = ", ".join(member.value for member in kind)
        raise PlanError(f"{what} {name!r} is not known; there are auto, {known}.") from None


def _check_order(decoder: NetworkConfig, order: Order) -> None:
    """Refuse an order in which this decoder cannot be streamed."""
    if order is Order.TIME:
        return
    if any(block.kind is BlockKind.ATTENTION for block in decoder.blocks):
        raise PlanError(f"this decoder attends to whole frames, so it cannot be streamed by {order.value}; use time.")
    if decoder.padding is PaddingMode.CIRCULAR:
        raise PlanError(f"this decoder's padding goes round the frame, so {order.value} cannot be cut; use order time.")


def check_latent_shape(config: VAEConfig, shape: Sequence[int]) -> tuple[int, int, int, int, int]:
    """The shape as a tuple of five, if the VAE can decode it.

    Raises:
        LatentsError: saying what is wrong with it.
    """
    shown = "(" + ", ".join(str(size) for size in shape) + ")"
    if len(shape) != 5:
        raise LatentsError(f"latents have the shape {shown}; expected are five axes (B, C, F', H', W').")
    if 0 in shape:
        raise LatentsError(f"latents have the shape {shown}, which is empty.")
    batch, channels, time, height, width = shape
    if channels != config.latent_channels:
        raise LatentsError(
            f"latents have the shape {shown} with {channels} channels, and this VAE decodes {config.latent_channels} "
            "(axes are (B, C, F', H', W'))."
        )
    if config.decoder.padding is PaddingMode.REFLECT and min(height, width) < 2:
        raise LatentsError(
            f"latents have the shape {shown}; this VAE pads by reflection, which takes at least 2 cells a side."
        )
    return batch, channels, time, height, width


def lookahead(decoder: NetworkConfig) -> int:
    """Latent frames that must be seen before the first frame is final: 1 for a causal decoder.

    Walks from the first frame back through the layers: a convolution that is not causal needs one frame more, and
    a doubling of time (whose first frame is dropped) half as many.
    """
    if decoder.causal:
        return 1
    frames = 2
    for block in reversed(decoder.blocks):
        if block.stride[0] == 2:
            frames = frames // 2 + 1
        frames += block.num_convolutions
    return frames + 1


def widest_position(decoder: NetworkConfig, latent_shape: Sequence[int], order: Order) -> int:
    """Elements of one position along the stream where the decoder's activations are widest."""
    batch, _, *extents = latent_shape
    axis = _LATENT_AXES[order] - 2
    widest = 0
    for block in decoder.blocks:
        for channels in (block.in_channels, block.out_channels):
            slices = math.prod(extent for index, extent in enumerate(extents) if index != axis)
            widest = max(widest, batch * slices * channels)
            if channels is block.in_channels:
                extents = [extent * stride for extent, stride in zip(extents, block.stride, strict=True)]
    return widest
