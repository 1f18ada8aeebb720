"""The configurations of the published generations, for files without metadata, and of pruned decoders. No MLX.

Pruning makes a network narrower. Where a block returns more channels than the next one takes, a residual block between
them changes their number. Files of pruned decoders of LTX-2.3, such as PrunaVAED, disagree about the place of this
projection:

    original   up_blocks.3.conv1             a block of its own, before the upsampler up_blocks.4.conv
    MLX packs  up_blocks.3.conv_in.conv1     a part of the upsampler up_blocks.3.conv
    diffusers  up_blocks.1.conv_in.conv1     before up_blocks.1.upsamplers.0 and up_blocks.1.resnets

What an upsampler doubles follows from its widths. Padding and skip connections are in no tensor. So a decoder is only
read here if it has the upsamplers of LTX-2.3, and then it has LTX-2.3's options too.
"""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ...shapes import Shape
from ..specs import Shapes
from .block_types import DECODER_BLOCKS, STEMS, UPSAMPLE


def _res(layers: int, **options: Any) -> tuple[str, dict[str, Any]]:
    return ("res_x", {"num_layers": layers, **options})


_ENCODER_0_9_0 = (
    _res(4), ("compress_all", 1), ("res_x_y", 1), _res(3), ("compress_all", 1), ("res_x_y", 1), _res(3),
    ("compress_all", 1), _res(3), _res(4),
)  # fmt: skip
_UP_RESIDUAL = ("compress_all", {"residual": True, "multiplier": 2})
_ENCODER_0_9_5 = (
    _res(4), ("compress_space_res", {"multiplier": 2}), _res(6), ("compress_time_res", {"multiplier": 2}), _res(6),
    ("compress_all_res", {"multiplier": 2}), _res(2), ("compress_all_res", {"multiplier": 2}), _res(2),
)  # fmt: skip
_DECODER_0_9_5 = (_res(5), _UP_RESIDUAL, _res(5), _UP_RESIDUAL, _res(5), _UP_RESIDUAL, _res(5))

_ENCODER_2_3 = (
    _res(4), ("compress_space_res", {"multiplier": 2}), _res(6), ("compress_time_res", {"multiplier": 2}), _res(4),
    ("compress_all_res", {"multiplier": 2}), _res(2), ("compress_all_res", {"multiplier": 1}), _res(2),
)  # fmt: skip

#: LTX-2.3 with a decoder of fewer channels.
PRUNA_VAED = "PrunaVAED"

#: Configurations by common name, in the format of checkpoint metadata. The metadata of a file takes precedence.
GENERATIONS: dict[str, dict[str, Any]] = {
    "LTX-Video 0.9.0": {"blocks": _ENCODER_0_9_0},
    "LTX-Video 0.9.1": {
        "encoder_blocks": _ENCODER_0_9_0,
        "decoder_blocks": (
            _res(5, inject_noise=True), _UP_RESIDUAL, _res(6, inject_noise=True), _UP_RESIDUAL,
            _res(7, inject_noise=True), _UP_RESIDUAL, _res(8),
        ),
        "timestep_conditioning": True,
    },
    "LTX-Video 0.9.5": {
        "encoder_blocks": _ENCODER_0_9_5,
        "decoder_blocks": _DECODER_0_9_5,
        "timestep_conditioning": True,
    },
    "LTX-2": {"encoder_blocks": _ENCODER_0_9_5, "decoder_blocks": _DECODER_0_9_5},
    "LTX-2.3": {
        "encoder_blocks": _ENCODER_2_3,
        "decoder_blocks": (
            _res(4), ("compress_space", {"multiplier": 2}), _res(6), ("compress_time", {"multiplier": 2}), _res(4),
            ("compress_all", {"multiplier": 1}), _res(2), ("compress_all", {"multiplier": 2}), _res(2),
        ),
        "spatial_padding_mode": "zeros",
    },
    PRUNA_VAED: {
        "encoder_blocks": _ENCODER_2_3,
        "decoder_blocks": (
            _res(4), ("compress_space", {"multiplier": 2}), _res(6), ("compress_time", {"multiplier": 2}),
            ("res_x_y", {"multiplier": 1.5}), _res(4), ("compress_all", {"multiplier": 1}),
            ("res_x_y", {"multiplier": 4 / 3}), _res(2), ("compress_all", {"multiplier": 2}), _res(2),
        ),
        "decoder_base_channels": 64,
        "spatial_padding_mode": "zeros",
    },
}  # fmt: skip


def name_generation(
    encoder_blocks: Sequence[Any] | None, decoder_blocks: Sequence[Any] | None, has_timestep: bool
) -> str:
    """The generation with these block lists, or "custom". A decoder's list is enough: no two generations share it."""
    if not decoder_blocks:
        return "custom"
    for name, known in GENERATIONS.items():
        encoder, decoder = (known.get(key, known.get("blocks", ())) for key in ("encoder_blocks", "decoder_blocks"))
        is_decoder = _structure(decoder_blocks) == _structure(decoder)
        is_encoder = not encoder_blocks or _structure(encoder_blocks) == _structure(encoder)
        if is_decoder and is_encoder and has_timestep == known.get("timestep_conditioning", False):
            return name
    return "custom"


def _structure(blocks: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        (name, options if isinstance(options, int) else options.get("num_layers", 1)) for name, options in blocks
    )


_WHOLE = GENERATIONS["LTX-2.3"]
# The name of an upsampler by the number of positions that it makes of one.
_NAMES = {math.prod(kind.stride): name for name, kind in DECODER_BLOCKS.items() if kind.type is UPSAMPLE}
_UPSAMPLERS = [name for name, _ in reversed(_WHOLE["decoder_blocks"]) if name in _NAMES.values()]

# A tensor: its group of blocks; what it belongs to in the group, nothing for what is the group itself; its own name.
_TENSOR = re.compile(
    rf"(mid_block|{STEMS['decoder']}\.(?P<group>\d{{1,4}}))\."
    r"((?P<first>conv_in)\.|upsamplers\.0\.|(resnets|res_blocks)\.(?P<layer>\d{1,4})\.)?(?P<own>.+)"
)
_UPSAMPLER_WEIGHT, _LAYER_WEIGHT, _SHORTCUT = "conv.conv.weight", "conv1.conv.weight", "conv_shortcut.weight"


class PrunedDecoder(NamedTuple):
    """The keys of its configuration, and the original's name of each tensor by its name within the network."""

    raw_config: dict[str, Any]
    names: dict[str, str]


class _Part(NamedTuple):
    """An upsampler, a projection, or a layer of a residual block, and its tensors by their own names."""

    group: int
    tensors: Mapping[str, str]
    weight: Shape  # the first: (output channels, 3, 3, 3, input channels)

    @property
    def is_upsampler(self) -> bool:
        return _UPSAMPLER_WEIGHT in self.tensors

    @property
    def is_layer(self) -> bool:
        return not self.is_upsampler and _SHORTCUT not in self.tensors


def read_pruned_decoder(shapes: Shapes) -> PrunedDecoder | None:
    """The decoder with tensors of these shapes, of convolutions channels-last; None if it is not a pruned LTX-2.3."""
    blocks = _join_layers(_read_parts(shapes))
    conv_out = shapes.get("conv_out.conv.weight", ())
    if all(part.is_upsampler or part.is_layer for part, *_ in blocks) or len(conv_out) != 5:
        return None
    widths = [*(part.weight[-1] for part, *_ in blocks), conv_out[-1]]
    if min(widths) < 1:
        return None
    entries = [_make_entry(block, pair) for block, pair in zip(blocks, pairwise(widths), strict=True)]
    upsamplers = [name for (name, _), (part, *_) in zip(entries, blocks, strict=True) if part.is_upsampler]
    if upsamplers != _UPSAMPLERS:
        return None
    raw: dict[str, Any] = {"decoder_blocks": [list(entry) for entry in reversed(entries)]}
    base, rest = divmod(widths[0], math.prod(options.get("multiplier", 1) for _, options in entries))
    if not rest:
        raw["decoder_base_channels"] = base
    return PrunedDecoder(raw, {**{name: name for name in shapes}, **_rename(blocks)})


def _read_parts(shapes: Shapes) -> list[_Part]:
    """The parts of all groups in execution order; none if there is a gap, or a part that is not known."""
    found: dict[tuple[int, bool, int], dict[str, str]] = {}
    for name in shapes:
        if match := _TENSOR.fullmatch(name):
            group, layer = (-1 if number is None else int(number) for number in match.group("group", "layer"))
            own = match["own"].replace("conv_shortcut.conv.", "conv_shortcut.")
            found.setdefault((group, not match["first"], layer), {})[own] = name
    parts: list[_Part] = []
    for (group, is_inside, layer), tensors in sorted(found.items()):
        weight = shapes.get(tensors.get(_UPSAMPLER_WEIGHT) or tensors.get(_LAYER_WEIGHT, ""), ())
        has_previous = layer < 1 or (group, is_inside, layer - 1) in found
        follows = group - (parts[-1].group if parts else -1) < 2
        if not (has_previous and follows and len(weight) == 5):
            return []
        parts.append(_Part(group, tensors, weight))
    return parts


def _join_layers(parts: Sequence[_Part]) -> list[list[_Part]]:
    """The parts of each block: all consecutive layers of a group, or one upsampler or projection."""
    blocks: list[list[_Part]] = []
    for part in parts:
        if part.is_layer and blocks and blocks[-1][0].is_layer and blocks[-1][0].group == part.group:
            blocks[-1].append(part)
        else:
            blocks.append([part])
    return blocks


def _make_entry(block: Sequence[_Part], widths: tuple[int, int]) -> tuple[str, dict[str, Any]]:
    """A block of the list, with the widths before and after it; without a name if no upsampler makes these of those."""
    width, out_width = widths
    if block[0].is_layer:
        return "res_x", {"num_layers": len(block)}
    if not block[0].is_upsampler:
        return "res_x_y", {"out_channels": out_width}
    factor, rest = divmod(width, out_width)
    positions, mixed = divmod(block[0].weight[0], out_width)
    name = "" if mixed else _NAMES.get(positions, "")
    return name, {"out_channels": out_width} if rest else {"multiplier": factor}


def _rename(blocks: Sequence[Sequence[_Part]]) -> dict[str, str]:
    names: dict[str, str] = {}
    for index, block in enumerate(blocks):
        for layer, part in enumerate(block):
            prefix = f"{STEMS['decoder']}.{index}." + (f"res_blocks.{layer}." if part.is_layer else "")
            names |= {stored: prefix + own for own, stored in part.tensors.items()}
    return names
