"""The block types of encoders and decoders: their names in checkpoints and their layers. No MLX."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...streaming.axis import Axis, WindowSpec
from ..convolution.rules import ConvRule, choose
from ..specs import Activation, ConvSpec, FrameAttentionSpec, LayerSpec, PaddingMode, Stride, Weights, linear_weights

#: The size of every convolution.
KERNEL = (3, 3, 3)
_EMBEDDING = 256  # channels of the sinusoidal timestep embedding


class NetworkOptions(NamedTuple):
    """The options that all blocks of a network share. `padding` is the spatial padding, `rule` of all convolutions."""

    causal: bool
    padding: PaddingMode
    has_timestep: bool = False
    rule: ConvRule = choose


@dataclass(frozen=True)
class BlockConfig:
    """One block with its widths resolved; with `residual`, its rearranged input is added to its output."""

    type: "BlockType"
    in_channels: int
    out_channels: int
    num_layers: int = 1
    stride: Stride = (1, 1, 1)
    residual: bool = False
    inject_noise: bool = False


@dataclass(frozen=True, eq=False)
class BlockType:
    """A kind of block, by its name in reports.

    `specs` returns its layers from its configuration, the network's options and the path of its module. The last axis
    of the first weight is the block's input channels, in which a checkpoint states the block's width.
    """

    name: str
    specs: Callable[[BlockConfig, NetworkOptions, str], list[LayerSpec]]


class BlockName(NamedTuple):
    """The meaning of a name in a block list. The default `multiplier` of the width is 0 if that never changes."""

    type: BlockType
    multiplier: int = 0
    stride: Stride = (1, 1, 1)
    residual: bool = False
    takes_noise: bool = False


def conv_layer(
    name: str,
    in_channels: int,
    conv_channels: int,
    options: NetworkOptions,
    *,
    weights: Weights = (),
    time_kernel: int = 3,
    **attributes: Any,
) -> ConvSpec:
    """A layer around a 3x3x3 convolution at `name.conv`, with replication padding in time and further `weights`.

    An output frame takes `time_kernel` input frames: more than 3 if it combines several convolved frames.
    """
    down = attributes.get("down", (1, 1, 1))
    before, after = (time_kernel - 1, 0) if options.causal else (1, 1)
    time = WindowSpec(time_kernel, down[0], before, after)
    own = ((f"{name}.conv.weight", (conv_channels, *KERNEL, in_channels)), (f"{name}.conv.bias", (conv_channels,)))
    return ConvSpec(
        name=name,
        in_channels=in_channels,
        conv_channels=conv_channels,
        windows=(time, WindowSpec(3, down[1], 1, 1), WindowSpec(3, down[2], 1, 1)),
        padding=options.padding,
        rule=options.rule,
        weights=own + weights,
        **{"out_channels": conv_channels} | attributes,
    )


def embedder_weights(name: str, channels: int) -> Weights:
    """The weights of a time embedder with `channels` output channels."""
    path = f"{name}.timestep_embedder"
    first = linear_weights(f"{path}.linear_1", _EMBEDDING, channels)
    return first + linear_weights(f"{path}.linear_2", channels, channels)


def _residual_layers(block: BlockConfig, options: NetworkOptions, name: str) -> list[LayerSpec]:
    in_channels, out_channels = block.in_channels, block.out_channels
    first: Weights = ((f"{name}.scale_shift_table", (4, in_channels)),) if options.has_timestep else ()
    second: Weights = ()
    if block.inject_noise:
        first += ((f"{name}.per_channel_scale1", (out_channels,)),)
        second += ((f"{name}.per_channel_scale2", (out_channels,)),)
    if in_channels != out_channels:
        second += ((f"{name}.norm3.norm.weight", (in_channels,)), (f"{name}.norm3.norm.bias", (in_channels,)))
        second += linear_weights(f"{name}.conv_shortcut", in_channels, out_channels)
    shared = {"is_modulated": options.has_timestep, "has_noise": block.inject_noise}
    outer: dict[str, Any] = {"weights": first, "activation": Activation.INPUT, **shared}
    inner: dict[str, Any] = {"weights": second, "activation": Activation.CACHED, "skip_channels": in_channels, **shared}
    return [
        conv_layer(f"{name}.conv1", in_channels, out_channels, options, **outer),
        conv_layer(f"{name}.conv2", out_channels, out_channels, options, **inner),
    ]


def _res_stack(block: BlockConfig, options: NetworkOptions, name: str) -> list[LayerSpec]:
    layers: list[LayerSpec] = []
    for index in range(block.num_layers):
        layers += _residual_layers(block, options, f"{name}.res_blocks.{index}")
    if options.has_timestep:
        embedder = embedder_weights(f"{name}.time_embedder", 4 * block.in_channels)
        layers[0] = replace(layers[0], weights=layers[0].weights + embedder)
    return layers


def _res_change(block: BlockConfig, options: NetworkOptions, name: str) -> list[LayerSpec]:
    return _residual_layers(block, options._replace(has_timestep=False), name)


def _upsample(block: BlockConfig, options: NetworkOptions, name: str) -> list[LayerSpec]:
    """A convolution and depth-to-space. If time doubles, the first output frame is dropped."""
    layer = conv_layer(
        f"{name}.conv",
        block.in_channels,
        block.out_channels * math.prod(block.stride),
        options,
        out_channels=block.out_channels,
        up=block.stride,
        trim=block.stride[0] - 1,
        has_residual=block.residual,
    )
    return [layer]


def _downsample(block: BlockConfig, options: NetworkOptions, name: str) -> list[LayerSpec]:
    """A convolution and space-to-depth. If time halves, an output frame combines two convolved frames."""
    layer = conv_layer(
        f"{name}.conv",
        block.in_channels,
        block.out_channels // math.prod(block.stride),
        options,
        out_channels=block.out_channels,
        down=block.stride,
        time_kernel=2 + block.stride[0],
        has_residual=True,
    )
    return [layer]


def _strided(block: BlockConfig, options: NetworkOptions, name: str) -> list[LayerSpec]:
    stride = block.stride
    return [conv_layer(name, block.in_channels, block.out_channels, options, down=stride, conv_stride=stride)]


def _attention(block: BlockConfig, options: NetworkOptions, name: str) -> list[LayerSpec]:
    channels = block.in_channels
    weights: Weights = ((f"{name}.norm.gamma", (channels,)),)
    weights += linear_weights(f"{name}.to_qkv", channels, 3 * channels)
    weights += linear_weights(f"{name}.proj", channels, channels)
    space = frozenset({Axis.HEIGHT, Axis.WIDTH})
    return [FrameAttentionSpec(name, channels, channels, unbounded=space, weights=weights)]


RES_STACK = BlockType("residual", _res_stack)
RES_CHANGE = BlockType("residual, other width", _res_change)
UPSAMPLE = BlockType("depth to space", _upsample)
DOWNSAMPLE = BlockType("space to depth", _downsample)
STRIDED = BlockType("strided convolution", _strided)
ATTENTION = BlockType("attention", _attention)

_STRIDES = {"compress_space": (1, 2, 2), "compress_time": (2, 1, 1), "compress_all": (2, 2, 2)}
_BOTH = {
    "res_x": BlockName(RES_STACK, takes_noise=True),
    "res_x_y": BlockName(RES_CHANGE, 2),
    "attn": BlockName(ATTENTION),
}

#: The names in a checkpoint's `encoder_blocks` and `decoder_blocks`.
ENCODER_BLOCKS: dict[str, BlockName] = {
    **_BOTH,
    **{name: BlockName(STRIDED, 0, stride) for name, stride in _STRIDES.items()},
    **{f"{name}_x_y": BlockName(STRIDED, 2, stride) for name, stride in _STRIDES.items()},
    **{f"{name}_res": BlockName(DOWNSAMPLE, 2, stride, residual=True) for name, stride in _STRIDES.items()},
}
DECODER_BLOCKS: dict[str, BlockName] = {
    **_BOTH,
    **{name: BlockName(UPSAMPLE, 1, stride) for name, stride in _STRIDES.items()},
}
#: Both, by network, and what the module with the blocks is called there.
BLOCKS = {"encoder": ENCODER_BLOCKS, "decoder": DECODER_BLOCKS}
STEMS = {"encoder": "down_blocks", "decoder": "up_blocks"}
