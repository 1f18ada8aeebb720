"""Configuration of a tiny autoencoder, and the layer specs of its encoder and decoder. No MLX.

A layer's name is its index in the checkpoint: `layers.3.conv.0` is `decoder.3.conv.0` there.
"""

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction

from ...backend.machine import FLOAT32_BYTES, Backend, Machine
from ...errors import CheckpointError
from ...shapes import DEFAULT_SCALE, Axis, Grid, Scaled, ScaleFactors, WindowSpec
from ..specs import LayerSpec, NetworkSpec, PaddingMode, Step, Stride, Weights, linear_weights

#: Channels of LTX's latents, which tell files for LTX from files for other models.
LTX_CHANNELS = 128
#: Pixels per side of the patches of a picture.
PATCH = 4
#: Widths of the published decoders, the channels of a group in the wide one, and the width of the encoders.
STANDARD_WIDTHS = (256, 128, 64, 64)
WIDE_WIDTHS = (1024, 512, 256, 64)
WIDE_GROUP_WIDTH = 64
ENCODER_WIDTH = 64


class OutputKind(Enum):
    """Output of a decoder for each latent frame."""

    FRAMES = "frames"
    STILLS = "stills"  # one picture, for the last of its frames
    SMALL_STILLS = "small stills"  # of 4x4 pixels per latent cell, since no layer repeats positions


@dataclass(frozen=True)
class PreviewConfig(Scaled):
    """Configuration of a tiny autoencoder. The widths of a network are `None` if the autoencoder does not have it.

    Attributes:
        decoder_widths: channels of the decoder's three levels, and of the last convolution's input.
        group_width: channels per group of the convolutions in the wide decoder's memory blocks. `None` means the
            standard blocks.
        generation: name of the published file, such as "taeltx2_3". Files of equal shapes differ only in their names.
    """

    decoder_widths: tuple[int, int, int, int] | None = STANDARD_WIDTHS
    encoder_width: int | None = ENCODER_WIDTH
    group_width: int | None = None
    latent_channels: int = LTX_CHANNELS
    generation: str = field(default="custom", compare=False)
    output: OutputKind = OutputKind.FRAMES

    @property
    def scale(self) -> ScaleFactors:
        return DEFAULT_SCALE


#: Video frames for each latent frame. All but the last of the first latent frame's are dropped.
FRAMES = 8
#: Index of each level's first memory block in the decoder, and of each level's pooling in the encoder.
LEVELS, POOLS = (3, 9, 15), (2, 7, 12)
BLOCKS = 3  # memory blocks of a level

_ONE, _THREE, _STRIDED = WindowSpec(), WindowSpec(3, 1, 1, 1), WindowSpec(3, 2, 1, 1)
_PAIR = WindowSpec(2, 1, 1, 0)  # a frame and the one before it
_COLORS = 3 * PATCH**2
_LAST_DECODER_LAYER, _LAST_ENCODER_LAYER = 22, 17


@dataclass(frozen=True)
class FrameLayerSpec(LayerSpec):
    """Layer with a convolution of single frames, or of two frames that are joined, which computes in float32.

    The first of its `weights` is the convolution's weight (O, 3, 3, I / groups) or (O, I).
    """

    groups: int = 1
    is_upsampled: bool = False  # each position of the input counts as 2x2 equal ones
    skip_channels: int = 0  # channels of the skip connection that is added to the output, or 0

    def reach(self, axis: Axis) -> tuple[Fraction, Fraction]:
        """Return the reach, in which neighbors of repeated positions are half a position away."""
        before, after = super().reach(axis)
        return (before / self.up[axis.grid], after / self.up[axis.grid]) if self.is_upsampled else (before, after)

    def weight_copy_bytes(self, machine: Machine) -> int:
        """Return the bytes of the weights in float32, with 4x4 taps for the nine taps of repeated positions."""
        size = math.prod(self.weights[0][1]) * FLOAT32_BYTES
        phases = 16 * size // 9 if self.is_upsampled else 0
        return phases + (0 if machine.itemsize == FLOAT32_BYTES else size)

    def multiply_adds(self, grid: Grid) -> int:
        work = super().multiply_adds(grid)
        return 16 * work // 9 if self.is_upsampled else work

    def cache_bytes(self, axis: Axis, grid: Grid, piece: int, machine: Machine) -> int:
        """Return the cached bytes. Along rows and columns, the skip connection waits for its block's convolutions."""
        cached = super().cache_bytes(axis, grid, piece, machine)
        if not self.skip_channels or axis is Axis.TIME:
            return cached
        extent = grid[axis.grid]
        waiting = min(extent, 3 + piece) * (math.prod(grid) // extent)
        return cached + waiting * self.skip_channels * machine.itemsize

    def work_bytes(self, step: Step) -> int:
        itemsize, in_view, positions = step.machine.itemsize, self.positions_in_view(step), math.prod(step.grid)
        out_channels = self.weights[0][1][0]
        results = positions // math.prod(self.down) * (4 if self.is_upsampled else 1)
        time, height, width = step.grid
        window, is_point = self.window(Axis.TIME), len(self.weights[0][1]) == 2
        joined = window.kernel // window.stride * self.in_channels
        padded = joined * (math.prod(step.grid) if is_point else time * (height + 2) * (width + 2))
        # The input with what is cached, the next cache, and the skip connection.
        size = (2 * in_view * self.in_channels + in_view * self.skip_channels) * itemsize
        size += results * out_channels * itemsize if itemsize != FLOAT32_BYTES else 0
        # In float32: the input, the joined frames, the padded input, and the input ordered by groups of channels.
        copies = 1 + (joined > self.in_channels) + (self.groups > 1) + (itemsize != FLOAT32_BYTES)
        if self.is_upsampled:
            copies += 4  # the 2x2 positions that an output sees
        if math.prod(self.down) > 1 and not is_point and step.machine.backend is Backend.CPU:
            copies += 9 // math.prod(self.down)  # unfolded by MLX's CPU backend
        # The products as one part per block of rows, joined, and after bias and activation.
        return size + (copies * padded + 3 * results * out_channels) * FLOAT32_BYTES


@dataclass(frozen=True)
class WholeGroupsSpec(LayerSpec):
    """Layer that repeats the last frame of a clip until its frames are groups of `FRAMES`."""

    def num_outputs(self, axis: Axis, length: int) -> int:
        return FRAMES * -(-length // FRAMES) if axis is Axis.TIME else length

    def ready(self, axis: Axis, num_inputs: int) -> int:
        return FRAMES * (num_inputs // FRAMES) if axis is Axis.TIME else num_inputs

    def needed(self, axis: Axis, count: int) -> int:
        return FRAMES * -(-count // FRAMES) if axis is Axis.TIME else count

    def cache_bytes(self, axis: Axis, grid: Grid, piece: int, machine: Machine) -> int:
        """Return 0: a group is cached until it is complete, and then waits for the next layer, which counts it."""
        return 0

    def work_bytes(self, step: Step) -> int:
        """Return the bytes of a group, into which its frames are joined."""
        return FRAMES * math.prod(step.grid[1:]) * self.in_channels * step.machine.itemsize


def decoder_spec(config: PreviewConfig) -> NetworkSpec:
    """Return the decoder of normalized latents (B, T, H, W, C) to pixels (B, 8T - 7, 32H, 32W, 3), or to stills.

    Each level makes two frames of a frame, except for stills, and 2x2 positions of a position, except for small stills.
    """
    grows, upsamples = config.output is OutputKind.FRAMES, config.output is not OutputKind.SMALL_STILLS
    if config.decoder_widths is None:
        raise CheckpointError("this tiny autoencoder has no decoder.")
    widths = config.decoder_widths
    layers: list[LayerSpec] = [_conv("layers.1", config.latent_channels, widths[0])]
    for level, start in enumerate(LEVELS):
        width, next_width = widths[level : level + 2]
        for index in range(start, start + BLOCKS):
            layers += _memory_block(f"layers.{index}", width, config.group_width)
        layers.append(_growth(f"layers.{start + 4}", width, grows, is_last=level == len(LEVELS) - 1))
        spec = _conv(f"layers.{start + 5}", width, next_width, has_bias=False)
        layers.append(replace(spec, up=(1, 2, 2), is_upsampled=True) if upsamples else spec)
    to_colors = _conv(f"layers.{_LAST_DECODER_LAYER}", widths[-1], _COLORS)
    layers.append(replace(to_colors, out_channels=3, up=(1, PATCH, PATCH)))
    return NetworkSpec(tuple(layers), patch_size=PATCH)


def encoder_spec(config: PreviewConfig) -> NetworkSpec:
    """Return the encoder of pixels (B, F, 32H, 32W, 3) to normalized latents (B, ceil(F / 8), H, W, C)."""
    if config.encoder_width is None:
        raise CheckpointError("this tiny autoencoder has no encoder.")
    width = config.encoder_width
    patch = WindowSpec(PATCH, PATCH)
    layers: list[LayerSpec] = [
        WholeGroupsSpec("whole_groups", 3, 3, windows=(WindowSpec(FRAMES, 1, 0, FRAMES - 1), _ONE, _ONE)),
        LayerSpec("pixel_unshuffle", 3, _COLORS, down=(1, PATCH, PATCH), windows=(_ONE, patch, patch)),
        _conv("layers.0", _COLORS, width),
    ]
    for start in POOLS:
        weights = ((f"layers.{start}.conv.weight", (width, 2 * width)),)
        pooled = (WindowSpec(2, 2), _ONE, _ONE)
        layers.append(FrameLayerSpec(f"layers.{start}", width, width, down=(2, 1, 1), windows=pooled, weights=weights))
        strided = _conv(f"layers.{start + 1}", width, width, has_bias=False)
        layers.append(replace(strided, down=(1, 2, 2), windows=(_ONE, _STRIDED, _STRIDED)))
        for index in range(start + 2, start + 2 + BLOCKS):
            layers += _memory_block(f"layers.{index}", width, None)
    layers.append(_conv(f"layers.{_LAST_ENCODER_LAYER}", width, config.latent_channels))
    return NetworkSpec(tuple(layers), stream_axes=(Axis.TIME,), takes_any_length=True)


def network_spec(config: PreviewConfig, network: str) -> NetworkSpec:
    """Return the encoder or the decoder, by its name."""
    return encoder_spec(config) if network == "encoder" else decoder_spec(config)


def _growth(name: str, width: int, grows: bool, *, is_last: bool) -> LayerSpec:
    """Return a layer that makes two frames of each. The last one drops surplus frames, since later layers see one."""
    up: Stride = (2, 1, 1) if grows else (1, 1, 1)
    weights = ((f"{name}.conv.weight", (2 * width, width)),)
    return FrameLayerSpec(name, width, width, up=up, weights=weights, trim=FRAMES - 1 if grows and is_last else 0)


def _memory_block(name: str, width: int, group_width: int | None) -> list[LayerSpec]:
    """Return three convolutions: of each frame joined to the previous one, of single frames, and with the skip."""
    pairs, alone = (_PAIR, _THREE, _THREE), (_ONE, _THREE, _THREE)
    if group_width is None:
        first, second, third = (_conv(f"{name}.conv.{index}", (1 + (index == 0)) * width, width) for index in (0, 2, 4))
        first = replace(first, in_channels=width, windows=pairs, time_padding=PaddingMode.ZEROS)
        return [first, second, replace(third, skip_channels=width)]
    groups = width // group_width
    inner = linear_weights(f"{name}.conv.0", 2 * width, width)
    paired, zeros = (_PAIR, _ONE, _ONE), PaddingMode.ZEROS
    joined = FrameLayerSpec(f"{name}.conv.0", width, width, windows=paired, weights=inner, time_padding=zeros)
    second, third = (
        replace(_conv(f"{name}.conv.{index}", group_width, width), in_channels=width, groups=groups, windows=alone)
        for index in (2, 6)
    )
    second = replace(second, weights=second.weights + linear_weights(f"{name}.conv.4", width, width))
    return [joined, second, replace(third, skip_channels=width)]


def _conv(name: str, in_channels: int, out_channels: int, *, has_bias: bool = True) -> FrameLayerSpec:
    weights: Weights = ((f"{name}.weight", (out_channels, 3, 3, in_channels)),)
    weights += ((f"{name}.bias", (out_channels,)),) if has_bias else ()
    return FrameLayerSpec(name, in_channels, out_channels, windows=(_ONE, _THREE, _THREE), weights=weights)
