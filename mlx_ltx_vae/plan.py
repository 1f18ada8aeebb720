"""How to decode: what is decided before the first latent is touched. Pure arithmetic, no MLX."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .config import NetworkConfig, NormKind, VAEConfig
from .errors import LatentsError, PlanError
from .padding import PaddingMode


class Mode(enum.Enum):
    """Which way a clip is decoded."""

    SINGLE = "single"  # the whole clip as one chunk
    EXACT = "exact"  # streamed chunk by chunk, the same result


class Order(enum.Enum):
    """Along which axis a clip is streamed."""

    TIME = "time"


# Latent frames handed to the network at a time. One keeps the least between the layers.
_DEFAULT_CHUNK = 1

# Frames that a layer takes at once where the activations are widest, and more where they are not. A convolution
# looks at two frames besides those it is given: norming these again for every single frame is what costs.
_STEP_FRAMES = 2


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
            frames = "1 latent frame" if self.chunk == 1 else f"{self.chunk} latent frames"
            lines += [
                f"mode     exact: the single pass's result, streamed along {self.order.value}, {frames} at a time",
                f"first    frame after {min(self.lookahead, time)} of {time} latent frames",
            ]
        return "\n".join(lines)


def make_plan(
    config: VAEConfig, latent_shape: Sequence[int], *, mode: str = "auto", order: str = "auto", chunk: int | None = None
) -> DecodePlan:
    """Decide how to decode latents of a shape.

    Args:
        config: of the VAE.
        latent_shape: (B, C, F', H', W').
        mode: "auto", "exact" or "single". "auto" is exact wherever the network allows it.
        order: "auto" or "time".
        chunk: latent frames at a time for the exact mode; None to choose.

    Raises:
        LatentsError: for a shape that the VAE cannot decode.
        PlanError: for a mode that it cannot be decoded in, or an option that is not known.
    """
    shape = check_latent_shape(config, latent_shape)
    if mode not in ("auto", "exact", "single"):
        raise PlanError(f"mode {mode!r} is not known; there are auto, exact and single.")
    if order not in ("auto", "time"):
        raise PlanError(f"order {order!r} is not known; there are auto and time.")
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise PlanError(f"a chunk is a whole number of latent frames, at least 1, and not {chunk!r}.")
    local = config.decoder.norm is not NormKind.GROUP
    if mode == "exact" and not local:
        raise PlanError("this decoder's group norms look at the whole clip, so it cannot be streamed; use mode single.")
    chosen = Mode.SINGLE if mode == "single" or not local else Mode.EXACT
    if chosen is Mode.SINGLE and chunk is not None:
        raise PlanError("a chunk length goes with mode exact; a single pass has one chunk.")
    time, height, width = config.scale
    return DecodePlan(
        mode=chosen,
        order=Order.TIME,
        latent_shape=shape,
        chunk=shape[2] if chosen is Mode.SINGLE else min(chunk or _DEFAULT_CHUNK, shape[2]),
        step_elements=_STEP_FRAMES * shape[0] * widest_frame(config.decoder, shape[3], shape[4]),
        num_frames=config.num_frames(shape[2]),
        height=height * shape[3],
        width=width * shape[4],
        lookahead=lookahead(config.decoder),
    )


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


def widest_frame(decoder: NetworkConfig, height: int, width: int) -> int:
    """Elements of one frame where the decoder's activations are widest, for latents of `height` x `width` cells."""
    widest = 0
    for block in decoder.blocks:
        widest = max(widest, height * width * block.in_channels)
        height, width = height * block.stride[1], width * block.stride[2]
        widest = max(widest, height * width * block.out_channels)
    return widest
