"""Block types of encoders and decoders: their names in checkpoints, their layers, and lists of them. No MLX."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...errors import CheckpointError, quote
from ...shapes import Axis, WindowSpec
from ..convolution.rules import ConvRule, choose
from ..specs import (
    SINUSOID_CHANNELS,
    Activation,
    ConvSpec,
    FrameAttentionSpec,
    LayerSpec,
    PaddingMode,
    Shapes,
    Stride,
    Weights,
    linear_weights,
)
from ..stored import Key, flag, is_number, read_config, whole

#: The size of every convolution.
KERNEL = (3, 3, 3)


class NetworkOptions(NamedTuple):
    """Options that all blocks of a network share. `padding` is the spatial padding, `rule` the rule of convolutions."""

    causal: bool
    padding: PaddingMode
    has_timestep: bool = False
    rule: ConvRule = choose


@dataclass(frozen=True)
class BlockConfig:
    """Block with its widths. With `residual`, its rearranged input is added to its output."""

    type: "BlockType"
    in_channels: int
    out_channels: int
    num_layers: int = 1
    stride: Stride = (1, 1, 1)
    residual: bool = False
    inject_noise: bool = False


@dataclass(frozen=True, eq=False)
class BlockType:
    """Kind of block, with its name in reports.

    `specs` returns its layers from its configuration, the network's options and the path of its module. The last axis
    of the first weight has the block's input channels, from which a checkpoint's widths are read.
    """

    name: str
    specs: Callable[[BlockConfig, NetworkOptions, str], list[LayerSpec]]


class BlockName(NamedTuple):
    """Meaning of a name in a block list. `multiplier` is the default factor of the width, or 0 if it never changes."""

    type: BlockType
    multiplier: int = 0
    stride: Stride = (1, 1, 1)


def conv_layer(
    name: str,
    in_channels: int,
    conv_channels: int,
    options: NetworkOptions,
    *,
    down: Stride = (1, 1, 1),
    time_kernel: int = 3,
) -> ConvSpec:
    """Return a layer around a 3x3x3 convolution at `name.conv`, with replication padding in time.

    An output frame depends on `time_kernel` input frames, more than 3 if it combines several convolved frames.
    """
    before, after = (time_kernel - 1, 0) if options.causal else (1, 1)
    time = WindowSpec(time_kernel, down[0], before, after)
    weights = ((f"{name}.conv.weight", (conv_channels, *KERNEL, in_channels)), (f"{name}.conv.bias", (conv_channels,)))
    return ConvSpec(
        name=name,
        in_channels=in_channels,
        out_channels=conv_channels,
        conv_channels=conv_channels,
        down=down,
        windows=(time, WindowSpec(3, down[1], 1, 1), WindowSpec(3, down[2], 1, 1)),
        padding=options.padding,
        rule=options.rule,
        weights=weights,
    )


def embedder_weights(name: str, channels: int) -> Weights:
    """Return the weights of a time embedder with `channels` output channels."""
    path = f"{name}.timestep_embedder"
    first = linear_weights(f"{path}.linear_1", SINUSOID_CHANNELS, channels)
    return first + linear_weights(f"{path}.linear_2", channels, channels)


def _residual_layers(block: BlockConfig, options: NetworkOptions, name: str) -> list[LayerSpec]:
    in_channels, out_channels = block.in_channels, block.out_channels
    conv1 = conv_layer(f"{name}.conv1", in_channels, out_channels, options)
    conv2 = conv_layer(f"{name}.conv2", out_channels, out_channels, options)
    weights1, weights2 = conv1.weights, conv2.weights
    if options.has_timestep:
        weights1 += ((f"{name}.scale_shift_table", (4, in_channels)),)
    if block.inject_noise:
        weights1 += ((f"{name}.per_channel_scale1", (out_channels,)),)
        weights2 += ((f"{name}.per_channel_scale2", (out_channels,)),)
    if in_channels != out_channels:
        weights2 += ((f"{name}.norm3.norm.weight", (in_channels,)), (f"{name}.norm3.norm.bias", (in_channels,)))
        weights2 += linear_weights(f"{name}.conv_shortcut", in_channels, out_channels)
    conv1 = replace(conv1, weights=weights1, activation=Activation.INPUT)
    conv2 = replace(conv2, weights=weights2, activation=Activation.CACHED, skip_channels=in_channels)
    is_modulated, has_noise = options.has_timestep, block.inject_noise
    return [replace(conv, is_modulated=is_modulated, has_noise=has_noise) for conv in (conv1, conv2)]


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
    """Return a convolution with depth-to-space. If time doubles, the first output frame is dropped."""
    conv = conv_layer(f"{name}.conv", block.in_channels, block.out_channels * math.prod(block.stride), options)
    trim = block.stride[0] - 1
    return [replace(conv, out_channels=block.out_channels, up=block.stride, trim=trim, has_residual=block.residual)]


def _downsample(block: BlockConfig, options: NetworkOptions, name: str) -> list[LayerSpec]:
    """Return a convolution with space-to-depth. If time halves, an output frame combines two convolved frames."""
    stride, conv_channels = block.stride, block.out_channels // math.prod(block.stride)
    time_kernel = 2 + stride[0]
    conv = conv_layer(f"{name}.conv", block.in_channels, conv_channels, options, down=stride, time_kernel=time_kernel)
    return [replace(conv, out_channels=block.out_channels, has_residual=True)]


def _strided(block: BlockConfig, options: NetworkOptions, name: str) -> list[LayerSpec]:
    conv = conv_layer(name, block.in_channels, block.out_channels, options, down=block.stride)
    return [replace(conv, conv_stride=block.stride)]


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
    "res_x": BlockName(RES_STACK),
    "res_x_y": BlockName(RES_CHANGE, 2),
    "attn": BlockName(ATTENTION),
}

#: Names in a checkpoint's `encoder_blocks` and `decoder_blocks`.
ENCODER_BLOCKS: dict[str, BlockName] = {
    **_BOTH,
    **{name: BlockName(STRIDED, 0, stride) for name, stride in _STRIDES.items()},
    **{f"{name}_x_y": BlockName(STRIDED, 2, stride) for name, stride in _STRIDES.items()},
    **{f"{name}_res": BlockName(DOWNSAMPLE, 2, stride) for name, stride in _STRIDES.items()},
}
DECODER_BLOCKS: dict[str, BlockName] = {
    **_BOTH,
    **{name: BlockName(UPSAMPLE, 1, stride) for name, stride in _STRIDES.items()},
}
#: Both tables by network, and the name of the module with the blocks in each network.
BLOCKS = {"encoder": ENCODER_BLOCKS, "decoder": DECODER_BLOCKS}
STEMS = {"encoder": "down_blocks", "decoder": "up_blocks"}


_DEFAULT_BASE = 128
_MAX_LAYERS = 256  # of all blocks: ten times as many as in any published network, and still planned at once
_FRACTION_TOLERANCE = 0.01  # relative to the width, since fractions are written with few digits

_OPTIONS = {
    "num_layers": whole(256, 1),
    "multiplier": Key(lambda value: is_number(value) and 1 <= value <= 64, "expected a number from 1 to 64"),
    "out_channels": whole(2**20),
    "residual": flag(None),
    "inject_noise": flag(False),
    "attention_head_dim": whole(2**16),
}


class _Entry(NamedTuple):
    """Block of a list, and the path of its module."""

    name: str
    meaning: BlockName
    options: dict[str, Any]
    path: str
    factor: float  # of the width, or 1 if the list has the width itself
    lists_width: bool  # whether the list says how the width changes; lists of pruned networks leave it out

    def out_width(self, network: str, width: int) -> int:
        """Return the width after the block, according to the list."""
        if self.options["out_channels"]:
            return self.options["out_channels"]
        if network == "encoder":
            return round(width * self.factor)
        return width // self.factor if isinstance(self.factor, int) else round(width / self.factor)


def resolve_blocks(
    network: str,
    blocks: Sequence[Any],
    base_channels: int | None,
    options: NetworkOptions,
    source: str,
    shapes: Shapes | None,
) -> tuple[BlockConfig, ...]:
    """Return the blocks of an encoder or a decoder in execution order, with their widths.

    `blocks` are in the order of checkpoints, which list a decoder's in reverse. `base_channels` is the width before an
    encoder's first block. A decoder's first width is its base times the factors of all blocks. If `base_channels` is
    `None`, the `shapes` of the weights decide, or without weights the list and a base of 128.
    """
    entries = _read_entries(network, blocks, source)
    factors = [entry.factor for entry in entries] if network == "decoder" else []
    first_width = round((base_channels or _DEFAULT_BASE) * math.prod(factors))
    if shapes is None:
        widths = [first_width]
        for entry in entries:
            widths.append(entry.out_width(network, widths[-1]))
    else:
        widths, first_weight = _stored_widths(network, entries, options, source, shapes)
        is_exact = all(entry.lists_width and isinstance(entry.factor, int) for entry in entries)
        if base_channels and first_width != widths[0] and (is_exact or network == "encoder"):
            raise CheckpointError(
                f"{source}: its {network}_base_channels = {base_channels} and its blocks make {first_width} channels "
                f"before the first block, but the tensor {network}.{first_weight} takes {widths[0]}; use the "
                "configuration that belongs to the file."
            )
    return tuple(
        _make_block(network, entry, width, out_width, source)
        for entry, width, out_width in zip(entries, widths, widths[1:], strict=False)
    )


def _read_entries(network: str, blocks: Sequence[Any], source: str) -> list[_Entry]:
    entries = []
    for index, (name, raw_options) in enumerate(blocks if network == "encoder" else reversed(blocks)):
        meaning = BLOCKS[network].get(name)
        if meaning is None:
            raise CheckpointError(f"{source}: its {network} has a block of the unknown kind {quote(name)}.")
        raw_block = raw_options if isinstance(raw_options, Mapping) else {"num_layers": raw_options}
        options = read_config(raw_block, _OPTIONS, f"{source}: block {quote(name)}")
        if options["inject_noise"] and network == "encoder":
            raise CheckpointError(f"{source}: its encoder injects noise, which no known encoder does.")
        if options["inject_noise"] and meaning.type is not RES_STACK:
            kind = meaning.type.name
            raise CheckpointError(f"{source}: its decoder injects noise in a {kind} block, which is not known.")
        multiplier, out_channels = options["multiplier"], options["out_channels"]
        factor = (multiplier or meaning.multiplier) if meaning.multiplier and not out_channels else 1
        factor = int(factor) if factor == int(factor) else factor
        lists_width = meaning.type is not RES_CHANGE or bool(multiplier or out_channels)
        entries.append(_Entry(name, meaning, options, f"{STEMS[network]}.{index}", factor, lists_width))
    num_layers = sum(entry.options["num_layers"] for entry in entries)
    if num_layers > _MAX_LAYERS:
        raise CheckpointError(
            f"{source}: its {network} has {num_layers} layers in its configuration; expected at most {_MAX_LAYERS}."
        )
    return entries


def _stored_widths(
    network: str, entries: Sequence[_Entry], options: NetworkOptions, source: str, shapes: Shapes
) -> tuple[list[int], str]:
    """Return the width before each block and after the last one, and the name of the weight with the first width."""
    widths: list[int] = []
    next_weight = "conv_out.conv.weight"
    width = _stored_width(network, next_weight, "conv_out", source, shapes)
    for entry in reversed(entries):
        widths.insert(0, width)
        block = BlockConfig(entry.meaning.type, 1, 1, stride=entry.meaning.stride)
        layers = entry.meaning.type.specs(block, options, entry.path)
        weight = next((name for layer in layers for name, _ in layer.weights), None)
        if weight is not None:
            width = _stored_width(network, weight, entry.name, source, shapes)
        expected = entry.out_width(network, width)
        tolerance = 0 if isinstance(entry.factor, int) else _FRACTION_TOLERANCE * expected
        if entry.lists_width and abs(expected - widths[0]) > tolerance:
            raise CheckpointError(
                f"{source}: the block {network}.{entry.path} ({entry.name}) of its configuration makes {expected} "
                f"channels of {width}, but the tensor {network}.{next_weight} takes {widths[0]}; use the configuration "
                "that belongs to the file."
            )
        next_weight = weight or next_weight
    return [width, *widths], next_weight


def _stored_width(network: str, weight: str, kind: str, source: str, shapes: Shapes) -> int:
    if weight not in shapes:
        raise CheckpointError(
            f"{source}: its {network} lacks tensor {weight} of a {kind} in its configuration, so the file does not "
            "match its configuration; download both again from one release."
        )
    shape = shapes[weight]
    return shape[-1] if len(shape) in (2, 4, 5) else math.prod(shape)  # size of a vector


def _make_block(network: str, entry: _Entry, width: int, out_width: int, source: str) -> BlockConfig:
    """Make a block; refuse widths that its rearrangement of channels cannot have."""
    meaning, options = entry.meaning, entry.options
    residual = meaning.type is DOWNSAMPLE if network == "encoder" else bool(options["residual"])
    cells = math.prod(meaning.stride)
    is_valid = width > 0 and out_width > 0
    if is_valid and meaning.type is DOWNSAMPLE:
        is_valid = out_width % cells == 0 and width * cells % out_width == 0
    elif is_valid and meaning.type is UPSAMPLE and residual:
        is_valid = width % cells == 0 and out_width * cells % width == 0
    elif not meaning.multiplier:
        is_valid = width == out_width
    if not is_valid:
        raise CheckpointError(
            f"{source}: the block {network}.{entry.path} ({entry.name}) of its configuration cannot make {out_width} "
            f"channels of {width}; use the configuration that belongs to the file."
        )
    return BlockConfig(
        meaning.type, width, out_width, options["num_layers"], meaning.stride, residual, options["inject_noise"]
    )
