"""Block lists of checkpoints: each block's meaning, and its widths, which the weights decide. No MLX."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import CheckpointError, quote
from .block_types import BLOCKS, DOWNSAMPLE, RES_CHANGE, STEMS, UPSAMPLE, BlockConfig, BlockName, NetworkOptions
from .raw_config import check_block

#: The shapes of a network's stored weights by name, those of convolutions channels-last.
StoredShapes = Mapping[str, tuple[int, ...]]

_DEFAULT_BASE = 128
_MAX_LAYERS = 256  # of all blocks: ten times as many as any published network, and a plan still takes no time
_FRACTION_TOLERANCE = 0.01  # of the width: a fraction is written with few digits


class _Entry(NamedTuple):
    """A block of a list, and the path of its module."""

    name: str
    meaning: BlockName
    options: dict[str, Any]
    path: str

    @property
    def factor(self) -> float:
        """What the list says about the change of width; 1 if it states the width itself."""
        if not self.meaning.multiplier or self.options["out_channels"]:
            return 1
        factor = self.options["multiplier"] or self.meaning.multiplier
        return int(factor) if factor == int(factor) else factor

    @property
    def is_stated(self) -> bool:
        """Whether the list says how the width changes. Lists of pruned networks leave it out."""
        return self.meaning.type is not RES_CHANGE or bool(self.options["multiplier"] or self.options["out_channels"])

    @property
    def is_exact(self) -> bool:
        return self.is_stated and isinstance(self.factor, int)

    def out_width(self, network: str, width: int) -> int:
        """The width after the block, as the list states it."""
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
    stored: StoredShapes | None,
) -> tuple[BlockConfig, ...]:
    """The blocks of an encoder or a decoder in execution order, with their widths.

    `blocks` are in the order of checkpoints, which list a decoder's in reverse. `base_channels` is the width before an
    encoder's first block; a decoder's first width is its base times the factors of all blocks. None if it is not
    stated: the weights decide, or without weights (`stored` is None) the list and a base of 128.
    """
    entries = _read_entries(network, blocks, source)
    factors = [entry.factor for entry in entries] if network == "decoder" else []
    first = round((base_channels or _DEFAULT_BASE) * math.prod(factors))
    if stored is None:
        widths = [first]
        for entry in entries:
            widths.append(entry.out_width(network, widths[-1]))
    else:
        widths, first_weight = _stored_widths(network, entries, options, source, stored)
        is_exact = network == "encoder" or all(entry.is_exact for entry in entries)
        if base_channels and first != widths[0] and is_exact:
            raise CheckpointError(
                f"{source}: its {network}_base_channels = {base_channels} and its blocks make {first} channels before "
                f"the first block, but the tensor {network}.{first_weight} takes {widths[0]}; use the configuration "
                "that belongs to the file."
            )
    return tuple(
        _make_block(network, entry, width, out_width, source)
        for entry, width, out_width in zip(entries, widths, widths[1:], strict=False)
    )


def _read_entries(network: str, blocks: Sequence[Any], source: str) -> list[_Entry]:
    result = []
    for index, (name, raw_options) in enumerate(blocks if network == "encoder" else reversed(blocks)):
        meaning = BLOCKS[network].get(name)
        if meaning is None:
            raise CheckpointError(f"{source}: its {network} has a block of the unknown kind {quote(name)}.")
        options = check_block(name, raw_options, source)
        if options["inject_noise"] and network == "encoder":
            raise CheckpointError(f"{source}: its encoder injects noise, which no known encoder does.")
        if options["inject_noise"] and not meaning.takes_noise:
            kind = meaning.type.name
            raise CheckpointError(f"{source}: its decoder injects noise in a {kind} block, which is not known.")
        result.append(_Entry(name, meaning, options, f"{STEMS[network]}.{index}"))
    num_layers = sum(entry.options["num_layers"] for entry in result)
    if num_layers > _MAX_LAYERS:
        raise CheckpointError(
            f"{source}: its {network} has {num_layers} layers in its configuration; expected at most {_MAX_LAYERS}."
        )
    return result


def _stored_widths(
    network: str, entries: Sequence[_Entry], options: NetworkOptions, source: str, stored: StoredShapes
) -> tuple[list[int], str]:
    """The width before each block and after the last one, and the name of the weight that takes the first of them."""
    widths: list[int] = []
    after = "conv_out.conv.weight"
    width = _stored_width(network, after, "conv_out", source, stored)
    for entry in reversed(entries):
        widths.insert(0, width)
        block = BlockConfig(entry.meaning.type, 1, 1, stride=entry.meaning.stride)
        layers = entry.meaning.type.specs(block, options, entry.path)
        weight = next((name for layer in layers for name, _ in layer.weights), None)
        if weight is not None:
            width = _stored_width(network, weight, entry.name, source, stored)
        expected = entry.out_width(network, width)
        tolerance = 0 if entry.is_exact else _FRACTION_TOLERANCE * expected
        if entry.is_stated and abs(expected - widths[0]) > tolerance:
            raise CheckpointError(
                f"{source}: the block {network}.{entry.path} ({entry.name}) of its configuration makes {expected} "
                f"channels of {width}, but the tensor {network}.{after} takes {widths[0]}; use the configuration that "
                "belongs to the file."
            )
        after = weight or after
    return [width, *widths], after


def _stored_width(network: str, weight: str, kind: str, source: str, stored: StoredShapes) -> int:
    if weight not in stored:
        raise CheckpointError(
            f"{source}: its {network} lacks tensor {weight} of a {kind} in its configuration, so the file does not "
            "match its configuration; download both again from one release."
        )
    shape = stored[weight]
    return shape[-1] if len(shape) in (2, 4, 5) else math.prod(shape)  # the size of a vector


def _make_block(network: str, entry: _Entry, width: int, out_width: int, source: str) -> BlockConfig:
    """Refuses widths that the block's rearrangement of channels cannot have."""
    meaning, options = entry.meaning, entry.options
    is_chosen = network == "decoder" and options["residual"] is not None
    residual = options["residual"] if is_chosen else meaning.residual
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
