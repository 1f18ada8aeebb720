"""Descriptions of networks, layer by layer, from their configuration alone. No MLX.

A network describes itself once, as a sequence of `LayerSpec`. Memory, receptive field, lookahead, step sizes, weight
counts and noise shapes are folds over that sequence (`planning/`), and the modules are built from the same specs.
"""

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count
from numbers import Integral
from typing import NamedTuple

from ..backend.machine import FLOAT32_BYTES, Backend, Machine
from ..errors import LatentsError, quote
from ..shapes import (
    MAX_PIXELS,
    Axis,
    ClipRules,
    Grid,
    LatentShape,
    ScaleFactors,
    Shape,
    TileRules,
    WindowSpec,
    format_size,
    is_possible_size,
)
from .convolution.rules import TAPS, ConvRule, ConvShape, choose, scratch_bytes

#: Suffix of a layer's name that names the noise of its keyframe planes.
PLANES = ".keyframes"
#: Latent frames of a long clip: more than any window has. The memory of a stream by time grows no further.
LONG_CLIP = 64
#: Channels of the sinusoid of a timestep or a noise level.
SINUSOID_CHANNELS = 256
#: The networks of a VAE.
NETWORKS = ("encoder", "decoder")
_MAX_LATENT_FRAMES = 2**17  # 12 hours at 24 frames per second
_UNCOPIED = 2**14  # `mx.contiguous` copies a slice only if its array has more bytes outside of it

#: Names and shapes of tensors.
Weights = tuple[tuple[str, Shape], ...]
#: The shapes of tensors by name. Convolution weights are channels-last, except for `Family.find`.
Shapes = Mapping[str, Shape]
#: Factors along time, height and width.
Stride = tuple[int, int, int]
#: Positions per frame, row and column of a video.
Rate = tuple[Fraction | int, Fraction | int, Fraction | int]


def linear_weights(name: str, in_channels: int, out_channels: int) -> Weights:
    """Return the weights of a linear layer, or of a 1x1 convolution, which is stored as a matrix here."""
    return ((f"{name}.weight", (out_channels, in_channels)), (f"{name}.bias", (out_channels,)))


class PaddingMode(enum.Enum):
    """Padding of a layer at the ends of an axis."""

    ZEROS = "zeros"
    REFLECT = "reflect"
    REPLICATE = "replicate"


class Activation(enum.Enum):
    """Position of the norm and SiLU before a convolution, if it has them."""

    NONE = "none"
    INPUT = "input"  # applied to the whole view; the cache holds the layer's input unchanged
    CACHED = "cached"  # applied to new input; the cache holds values after the norm and, but for Metal, SiLU


class Step(NamedTuple):
    """Properties of one step of a layer that determine its memory."""

    axis: Axis
    grid: Grid  # of the step's input
    is_whole: bool  # the input is the whole clip, so that nothing is cached or concatenated
    machine: Machine


@dataclass(frozen=True)
class LayerSpec:
    """Stage of a network: its shapes, windows and weights.

    Plans use its methods. A layer that its windows do not describe completely, such as one with several branches or an
    attention, overrides them.
    """

    name: str  # the path of its module, such as "up_blocks.0.res_blocks.1.conv2"
    in_channels: int
    out_channels: int
    up: Stride = (1, 1, 1)
    down: Stride = (1, 1, 1)
    trim: int = 0  # leading output frames that are dropped
    # The input window of one output along time, height and width, before `up`.
    windows: tuple[WindowSpec, WindowSpec, WindowSpec] = (WindowSpec(), WindowSpec(), WindowSpec())
    unbounded: frozenset[Axis] = frozenset()  # axes that cannot be streamed: an output depends on the whole input
    padding: PaddingMode = PaddingMode.ZEROS
    time_padding: PaddingMode = PaddingMode.REPLICATE
    weights: Weights = ()  # the shape of each, by its name within the network
    has_noise: bool = False  # adds a noise map (H, W) that all frames share
    crop: int = 0  # output frames that are dropped at the end of the clip
    noise_channels: int = 0  # channels of the noise that it takes for each output position; 0 if it takes none
    fixed_bytes: int = 0  # that it holds during a stream in addition to its weights, for any input
    max_view: int | None = None  # elements of its input joined to the cache; `None` for the limit of all arrays

    def window(self, axis: Axis) -> WindowSpec:
        return self.windows[axis.grid]

    def of_tile(self, *, is_first: bool, is_last: bool) -> "LayerSpec":
        """Return the layer in a tile. A tile drops frames only if it has the first or the last ones of the clip."""
        return replace(self, trim=self.trim if is_first else 0, crop=self.crop if is_last else 0)

    def num_outputs(self, axis: Axis, length: int) -> int:
        """Return the number of outputs for a clip of `length` positions along an axis."""
        return self.up[axis.grid] * self.window(axis).num_outputs(length) - self._dropped(axis)

    def ready(self, axis: Axis, num_inputs: int) -> int:
        """Return the number of outputs after `num_inputs` positions have arrived, if more may follow."""
        return max(0, self.up[axis.grid] * self.window(axis).ready(num_inputs) - self._dropped(axis))

    def needed(self, axis: Axis, count: int) -> int:
        """Return the number of positions that must arrive before the first `count` outputs are returned."""
        return self.window(axis).needed(math.ceil((count + self._dropped(axis)) / self.up[axis.grid]))

    def _dropped(self, axis: Axis) -> int:
        return self.trim + self.crop if axis is Axis.TIME else 0

    def reach(self, axis: Axis) -> tuple[Fraction, Fraction]:
        """Return the number of input positions before and after its own position that an output depends on.

        An output of a layer that upsamples covers a fraction of an input position, so the numbers may be fractions.
        """
        return Fraction(self.window(axis).behind), Fraction(self.window(axis).ahead)

    def out_grid(self, grid: Grid) -> Grid:
        """Return (T, H, W) of the output for an input of this grid."""
        time, height, width = (self.num_outputs(axis, grid[axis.grid]) for axis in Axis)
        return time, height, width

    def cache_bytes(self, axis: Axis, grid: Grid, piece: int, machine: Machine) -> int:
        """Return the bytes cached between two steps, per batch item, if at most `piece` positions arrive at once."""
        extent = grid[axis.grid]
        position = math.prod(grid) // extent * self.in_channels * machine.itemsize
        cached = min(self.window(axis).cached, extent) * position
        outside = max(0, piece * position - cached)
        return cached + (outside if cached and outside <= _UNCOPIED else 0)

    def positions_in_view(self, step: Step) -> int:
        """Return the number of positions of the input of a step, concatenated to the cache."""
        extent = step.grid[step.axis.grid]
        return math.prod(step.grid) // extent * (extent + (0 if step.is_whole else self.window(step.axis).cached))

    def work_bytes(self, step: Step) -> int:
        """Return the bytes that one step allocates per batch item: the input joined to the cache, and the output."""
        results = math.ceil(math.prod(step.grid) * math.prod(self.up) / math.prod(self.down))
        return (self.positions_in_view(step) * self.in_channels + results * self.out_channels) * step.machine.itemsize

    def weight_copy_bytes(self, machine: Machine) -> int:
        """Return the bytes of the copies of weights that one step makes, for any batch size."""
        return 0

    def noise_shapes(self, out: Grid) -> dict[str, tuple[int, ...]]:
        """Return the shape of its noise for an output (T, H, W), by name: (H, W) of a map or (T, H, W, C)."""
        if self.noise_channels:
            return {self.name: (*out, self.noise_channels)}
        return {self.name: out[1:]} if self.has_noise else {}

    def multiply_adds(self, grid: Grid) -> int:
        """Return the multiply-adds of its matrix products per batch item, for an input (T, H, W)."""
        results = math.prod(window.num_outputs(extent) for window, extent in zip(self.windows, grid, strict=True))
        return results * sum(math.prod(shape) for _, shape in self.weights if len(shape) > 1)


@dataclass(frozen=True)
class ConvSpec(LayerSpec):
    """Layer around one 3x3x3 convolution, which has `conv_channels` outputs before any rearrangement."""

    conv_channels: int = 0
    conv_stride: Stride = (1, 1, 1)
    activation: Activation = Activation.NONE
    is_modulated: bool = False  # a timestep shifts and scales the normalized input
    skip_channels: int = 0  # of the skip connection that is added to the output; 0 if there is none
    has_residual: bool = False  # the layer adds its own input, rearranged like its output
    rule: ConvRule = choose

    def work_bytes(self, step: Step) -> int:
        # MLX allocates ahead of execution, so every array in a step's graph counts, not only those alive at one time.
        positions, new = self.positions_in_view(step), math.prod(step.grid)
        activated = {Activation.NONE: 0, Activation.INPUT: positions, Activation.CACHED: new}[self.activation]
        # The input concatenated to the cache, the next cache, the norm, and SiLU with its intermediate array.
        elements = (2 * positions - new + 3 * activated) * self.in_channels + positions * self.skip_channels
        padded = math.prod(extent + TAPS - 1 for extent in step.grid) * self.in_channels
        if step.axis is not Axis.TIME or step.is_whole:
            elements += padded  # time is padded by a copy and not by the convolution (see `conv.pad`)
        if self.padding is not PaddingMode.ZEROS:
            elements += 2 * padded  # height and width are padded by a copy each
        time, height, width = (-(-extent // stride) for extent, stride in zip(step.grid, self.conv_stride, strict=True))
        is_strided = self.conv_stride != (1, 1, 1)
        shape = ConvShape((time, height, width), self.in_channels, self.conv_channels, is_strided)
        results = shape.num_outputs * self.conv_channels
        elements += results if self.conv_channels != self.out_channels else 0  # rearranged
        if self.has_residual:
            elements += (results if math.prod(self.up) > 1 else 0) + new * self.in_channels
        size = elements * step.machine.itemsize
        if self.has_residual and math.prod(self.down) > 1:
            # A downsampling layer averages its rearranged input, which is done in float32.
            size += new * self.in_channels * (FLOAT32_BYTES + step.machine.itemsize)
        if step.machine.backend is Backend.CPU and step.machine.itemsize != FLOAT32_BYTES:
            # On a CPU, the norm, SiLU and the convolution's input are in float32.
            size += (positions + 3 * activated) * self.in_channels * FLOAT32_BYTES
        return size + self._scratch_bytes(shape, step.machine)

    def _scratch_bytes(self, shape: ConvShape, machine: Machine) -> int:
        is_half = machine.itemsize != FLOAT32_BYTES
        formulation = self.rule(shape, machine.backend, allows_winograd=not (is_half and machine.keeps_dtype))
        on_cpu = machine.backend is Backend.CPU
        bounds = machine.bounds_winograd
        return scratch_bytes(shape, formulation, machine.itemsize, on_cpu=on_cpu, bounds_winograd=bounds)

    def weight_copy_bytes(self, machine: Machine) -> int:
        """Return the bytes of the kernel in float32, in which the CPU backend computes for any dtype."""
        if machine.backend is not Backend.CPU or machine.itemsize == FLOAT32_BYTES:
            return 0
        return TAPS**3 * self.in_channels * self.conv_channels * FLOAT32_BYTES

    def multiply_adds(self, grid: Grid) -> int:
        """Return the multiply-adds of the convolution, and of a skip connection that changes the channels."""
        positions = math.prod(
            window.num_outputs(extent) * window.stride // stride
            for window, extent, stride in zip(self.windows, grid, self.conv_stride, strict=True)
        )
        has_shortcut = self.skip_channels not in (0, self.out_channels)
        products = TAPS**3 * self.in_channels * self.conv_channels
        return positions * (products + (self.skip_channels * self.out_channels if has_shortcut else 0))


@dataclass(frozen=True)
class FrameAttentionSpec(LayerSpec):
    """Self-attention layer over the positions of each frame. `max_scores` is far below what Metal can index."""

    max_scores: int = 2**27

    def query_block(self, frames: int, positions: int) -> int:
        """Return the number of queries of each frame that are computed at a time. Each attends to `positions`."""
        return max(1, min(positions, self.max_scores // (frames * positions)))

    def work_bytes(self, step: Step) -> int:
        # The norm in float32, queries, keys, values, scores per frame and their softmax, and the output.
        frames, height, width = step.grid
        elements = frames * height * width * self.in_channels
        scores = frames * height * width * self.query_block(frames, height * width)
        return elements * (2 * FLOAT32_BYTES + 6 * step.machine.itemsize) + 2 * scores * FLOAT32_BYTES

    def multiply_adds(self, grid: Grid) -> int:
        """Return the multiply-adds. Each position takes part in two products with all of its frame."""
        return super().multiply_adds(grid) + 2 * math.prod(grid) * math.prod(grid[1:]) * self.in_channels


@dataclass(frozen=True)
class NetworkSpec:
    """Network as one spec per stage, in execution order.

    `patch_size` is the pixels per side of the patches that a decoder makes of each position at the end. Pixels that
    repeat from patch to patch are then an error of the device. `None` means that they are not checked.

    The first layer pads an input that is smaller than `least`, and the last stage cuts off the outputs of the padding.
    With `takes_least_memory`, a plan takes the order with the least memory instead of the first that fits.

    `rows_on_gpu` is the length of its fastest steps along rows and columns on a GPU: by default the six outputs of a
    tile of Metal's Winograd convolutions.
    """

    layers: tuple[LayerSpec, ...]
    stream_axes: tuple[Axis, ...] = tuple(Axis)
    has_timestep: bool = False
    has_latent_noise: bool = False  # noise is mixed into the input latents
    patch_size: int | None = None
    takes_any_length: bool = False  # of an encoder: it completes the frames of the last latent frame by itself
    least: Grid = (1, 1, 1)
    takes_least_memory: bool = False
    rows_on_gpu: int = 6
    tiles: TileRules = TileRules()
    clip: ClipRules = ClipRules()
    denoising_steps: int | None = None  # `None` if it does not denoise
    keyframes: tuple[int, ...] = ()  # the frame numbers of the keyframe planes that it sees
    # The warning for a caller that passes keyframes. `None` if the network was trained with them.
    keyframe_warning: str | None = (
        "this VAE's decoder takes no keyframes, so they are ignored; LTX-2.5's diffusion decoder takes them."
    )
    # Returns the network with another number of denoising steps and with keyframe planes. `None` if it takes neither.
    variant: Callable[..., "NetworkSpec"] | None = field(default=None, compare=False, repr=False)

    @property
    def in_channels(self) -> int:
        return self.layers[0].in_channels

    @property
    def out_channels(self) -> int:
        return self.layers[-1].out_channels

    @property
    def scale(self) -> ScaleFactors:
        ups = (math.prod(layer.up[axis] for layer in self.layers) for axis in range(3))
        downs = (math.prod(layer.down[axis] for layer in self.layers) for axis in range(3))
        return ScaleFactors(*(max(up, down) // min(up, down) for up, down in zip(ups, downs, strict=True)))

    @property
    def first_frames(self) -> int:
        """Number of frames that a decoder makes of the first latent frame. It makes `scale.time` of every other one."""
        return self.out_grid((LONG_CLIP,) * 3)[0] - self.scale.time * (LONG_CLIP - 1)

    @property
    def weights(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for layer in self.layers for name, shape in layer.weights}

    @property
    def num_weights(self) -> int:
        return sum(math.prod(shape) for shape in self.weights.values())

    def walk(self, grid: Grid) -> Iterator[tuple[LayerSpec, Grid]]:
        """Yield each layer with the (T, H, W) of its input, for a network input of this grid."""
        for layer in self.layers:
            yield layer, grid
            grid = layer.out_grid(grid)

    def out_grid(self, grid: Grid) -> Grid:
        added = [sum(self.added(axis, grid[axis.grid])) for axis in Axis]
        for layer in self.layers:
            grid = layer.out_grid(grid)
        if not any(added):
            return grid
        factors = zip(grid, added, self.scale, strict=True)
        time, height, width = (extent - padding * factor for extent, padding, factor in factors)
        return time, height, width

    def decoded_grid(self, grid: Grid) -> Grid:
        """Return (T, H, W) of the decoder's output for latents with this grid. T counts frames or samples."""
        time, height, width = self.out_grid(grid)
        if self.clip.cell is not None:
            return self.clip.cell.video_grid((time, height, width))
        if self.clip.lengths is None:
            return time, height, width
        first_length, next_length = self.clip.lengths
        return first_length + next_length * (grid[0] - 1), height, width

    def added(self, axis: Axis, length: int) -> tuple[int, int]:
        """Return the number of positions before and after a clip of `length` that pad it to `least` along an axis.

        In time all of them follow the clip. In space half of them, rounded down, precede it.
        """
        missing = max(0, self.least[axis.grid] - length)
        before = 0 if axis is Axis.TIME else missing // 2
        return before, missing - before

    def before_tiles(self) -> "NetworkSpec":
        """Return the layers that run on the whole clip if it is cut into tiles after them."""
        return replace(self, layers=self.layers[: self.tiles.start], least=(1, 1, 1))

    def of_tile(self, *, is_first: bool, is_last: bool) -> "NetworkSpec":
        """Return the layers that run on a tile, which may have the first frames of the clip, and the last ones."""
        if not self.tiles.start:
            return self
        layers = tuple(layer.of_tile(is_first=is_first, is_last=is_last) for layer in self.layers[self.tiles.start :])
        return replace(self, layers=layers, least=(1, 1, 1))

    def multiply_adds(self, grid: Grid) -> int:
        """Return the multiply-adds for one batch item with an input (T, H, W)."""
        return sum(layer.multiply_adds(extents) for layer, extents in self.walk(grid))

    def usable_frames(self, num_frames: int, *, pad: bool) -> int:
        """Return the number of frames that an encoder takes of `num_frames`, or of these padded with the last one."""
        return num_frames if self.takes_any_length and not pad else self.scale.usable_frames(num_frames, pad=pad)

    def rate(self, name: str) -> Rate:
        """Return the positions of a decoder layer's output per frame, row and column of the video."""
        rates = [Fraction(1, factor) for factor in self.scale]
        for layer in self.layers:
            rates = [rate * up / down for rate, up, down in zip(rates, layer.up, layer.down, strict=True)]
            if layer.name == name:
                break
        time, height, width = rates
        return time, height, width

    def noise_shapes(self, grid: Grid) -> dict[str, tuple[int, ...]]:
        """Return the shape of each layer's noise by its name, (H, W) of a map or (T, H, W, C), in drawing order."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, extents in self.walk(grid):
            shapes |= layer.noise_shapes(layer.out_grid(extents))
        return shapes

    def unbounded_layer(self, axis: Axis) -> LayerSpec | None:
        """Return the first layer whose outputs depend on the whole input along an axis, or `None`."""
        return next((layer for layer in self.layers if axis in layer.unbounded), None)


def check_latent_shape(spec: NetworkSpec, shape: Sequence[int]) -> LatentShape:
    """Return a latent shape that the decoder can decode; raise a `LatentsError` for any other shape."""
    _check_is_shape(shape, "latents")
    description = f"latents have the shape ({', '.join(str(size) for size in shape)})"
    if len(shape) != 5:
        raise LatentsError(f"{description}; expected five axes (B, C, F', H', W').")
    if not all(isinstance(size, Integral) for size in shape):
        raise LatentsError(f"{description}; expected five whole numbers.")
    latent_shape = LatentShape(*(int(size) for size in shape))
    channels = latent_shape.channels
    if 0 in latent_shape:
        raise LatentsError(f"{description}, which is empty.")
    if channels != spec.in_channels:
        network = "VAE decodes" if spec.clip.cell is None else "upsampler takes"
        decoded = f"this {network} {spec.in_channels} (axes are (B, C, F', H', W'))"
        raise LatentsError(f"{description} with {channels} channels; {decoded}.")
    if latent_shape.frames > _MAX_LATENT_FRAMES:
        limit = f"at most {_MAX_LATENT_FRAMES} latent frames are decoded at once"
        raise LatentsError(f"{description}; {limit}, so decode them in parts.")
    _, height, width = spec.out_grid(latent_shape.grid)
    if not is_possible_size((width, height)):
        size = format_size(width, height)
        raise LatentsError(f"{description} and decode to {size}; frames have at most {MAX_PIXELS:,} pixels.")
    for axis, noun in zip(Axis, ("frames", "rows", "columns"), strict=True):
        least = least_cells(spec, axis)
        if latent_shape.grid[axis.grid] < least:
            raise LatentsError(f"{description}; this VAE needs at least {least} latent {noun}.")
    _check_reflection(spec, latent_shape.grid, description)
    return latent_shape


def check_frame_shape(spec: NetworkSpec, shape: Sequence[int], *, pad: bool) -> tuple[int, Grid]:
    """Return the batch size and (F, H, W) to encode, for frames of shape (B, 3, F, H, W) or (F, H, W, 3).

    F is rounded to 1 + t*k: up with `pad`, otherwise down, unless the network takes any number. Raises a `LatentsError`
    for a shape that cannot be encoded.
    """
    _check_is_shape(shape, "frames")
    description = f"frames have the shape {tuple(shape)}"
    if len(shape) == 5 and shape[1] == (3 if spec.clip.unit == "frame" else spec.in_channels):
        batch, _, frames, height, width = shape
    elif len(shape) == 4 and shape[3] == 3:
        batch, (frames, height, width, _) = 1, shape
    else:
        raise LatentsError(f"{description}; expected (B, 3, F, H, W) or (F, H, W, 3).")
    if min(batch, frames, height, width) < 1:
        raise LatentsError(f"{description}, which is empty.")
    grid = (spec.usable_frames(frames, pad=pad), height, width)
    cell = spec.scale.width, spec.scale.height
    if width % cell[0] or height % cell[1]:
        nearest = (max(1, round(side / step)) * step for side, step in zip((width, height), cell, strict=True))
        raise LatentsError(
            f"frames of {format_size(width, height)} are not whole latent cells, {format_size(*cell)} pixels "
            f"each; resize them to {format_size(*nearest)}, or crop them."
        )
    _check_reflection(spec, grid, description)
    return batch, grid


def least_cells(spec: NetworkSpec, axis: Axis) -> int:
    """Return the minimum latent length along an axis. A window that shifts inwards needs all of its positions."""
    return next(length for length in count(1) if _fits(spec, axis, length))


def _fits(spec: NetworkSpec, axis: Axis, length: int) -> bool:
    for layer in spec.layers:
        window = layer.window(axis)
        if window.shifts and length < window.kernel:
            return False
        length = layer.num_outputs(axis, length)
    return length > 0


def _check_is_shape(shape: Sequence[int], name: str) -> None:
    if getattr(shape, "ndim", 1) > 1:
        raise LatentsError(f"a plan takes the shape of {name}, not an array; pass {name}.shape.")
    if not isinstance(shape, Sequence) and not hasattr(shape, "__array__"):
        raise LatentsError(f"a plan takes the shape of {name}, not {quote(shape)}; pass {name}.shape.")


def _check_reflection(spec: NetworkSpec, grid: Grid, description: str) -> None:
    for layer, (_, height, width) in spec.walk(grid):
        reflects = layer.padding is PaddingMode.REFLECT and layer.window(Axis.HEIGHT).kernel > 1
        if reflects and min(height, width) < 2:
            raise LatentsError(f"{description}; this VAE pads by reflection, which needs at least 2 cells per side.")
