"""Translate configurations and tensor names of diffusers and of pruned decoders to the original files' names.

diffusers groups the original's flat list of blocks into a mid block and down or up blocks. The order of the parts of
these groups gives each part's index in the original list, so one walk yields the configuration and the tensor names:

    encoder: down_blocks.i = resnets, [downsamplers.0], [conv_out]; mid_block comes last
    decoder: mid_block comes first; up_blocks.i = [conv_in], [upsamplers.0], resnets

Pruning makes a network narrower. If a block returns more channels than the next one takes, a residual block between
them changes their number. Files of pruned decoders of LTX-2.3, such as PrunaVAED, disagree about the position of this
projection:

    original   up_blocks.3.conv1             a separate block, before the upsampler up_blocks.4.conv
    MLX packs  up_blocks.3.conv_in.conv1     a part of the upsampler up_blocks.3.conv
    diffusers  up_blocks.1.conv_in.conv1     before up_blocks.1.upsamplers.0 and up_blocks.1.resnets

The axes that an upsampler doubles follow from its widths. Padding and skip connections are in no tensor. So a decoder
is only read here if it has the upsamplers of LTX-2.3, and then it has LTX-2.3's options too.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from ...errors import CheckpointError, excerpt
from ...shapes import Shape
from ..specs import Shapes
from ..stored import ANYTHING, only, read_config
from .block_types import DECODER_BLOCKS, STEMS, UPSAMPLE
from .config import CLASS_NAME, GENERATIONS

_LTX_VIDEO = "AutoencoderKLLTXVideo"
_LTX_2 = "AutoencoderKLLTX2Video"
_DIFFUSION_DECODER = "LTX2VideoDiffusionDecoderModel"

# Defaults for keys that a config.json leaves out (early files leave out the decoder's): for both classes, then each.
_SHARED_DEFAULTS: dict[str, Any] = {
    "in_channels": 3, "out_channels": 3, "latent_channels": 128, "patch_size": 4,
    "decoder_inject_noise": False, "timestep_conditioning": False, "scaling_factor": 1.0,
    "spatial_compression_ratio": None, "temporal_compression_ratio": None,
}  # fmt: skip
_DEFAULTS: dict[str, dict[str, Any]] = {
    _LTX_VIDEO: {
        "block_out_channels": (128, 256, 512, 512), "decoder_block_out_channels": (128, 256, 512, 512),
        "layers_per_block": (4, 3, 3, 3, 4), "decoder_layers_per_block": (4, 3, 3, 3, 4),
        "spatio_temporal_scaling": (True, True, True, False),
        "decoder_spatio_temporal_scaling": (True, True, True, False),
        "down_block_types": ("LTXVideoDownBlock3D",) * 4, "downsample_type": ("conv",) * 4,
        "upsample_residual": False, "upsample_factor": (1, 1, 1, 1), "decoder_causal": False,
    },
    _LTX_2: {
        "block_out_channels": (256, 512, 1024, 2048), "decoder_block_out_channels": (256, 512, 1024),
        "layers_per_block": (4, 6, 6, 2, 2), "decoder_layers_per_block": (5, 5, 5, 5),
        "spatio_temporal_scaling": True, "decoder_spatio_temporal_scaling": True,
        "down_block_types": ("LTX2VideoDownBlock3D",) * 4,
        "downsample_type": ("spatial", "temporal", "spatiotemporal", "spatiotemporal"),
        "upsample_type": ("spatiotemporal",) * 3,
        "upsample_residual": True, "upsample_factor": (2, 2, 2), "decoder_causal": True,
        "encoder_spatial_padding_mode": "zeros", "decoder_spatial_padding_mode": "reflect",
    },
}  # fmt: skip
_FIXED = {"patch_size_t": only(1), "resnet_norm_eps": only(1e-6), "encoder_causal": only(True)}
_SAME_KEYS = (  # keys with the same meaning in the original
    "in_channels", "out_channels", "latent_channels", "patch_size", "scaling_factor", "timestep_conditioning",
)  # fmt: skip
_COMPRESS = {"spatial": "compress_space", "temporal": "compress_time", "spatiotemporal": "compress_all"}

# Tensors outside the blocks: diffusers name -> original name.
_OUTSIDE = {
    "conv_in.": "conv_in.",
    "conv_out.": "conv_out.",
    "time_embedder.": "last_time_embedder.",
    "scale_shift_table": "last_scale_shift_table",
    "timestep_scale_multiplier": "timestep_scale_multiplier",
}
# Name of an upsampler by the number of positions that it makes of one.
_NAMES = {math.prod(kind.stride): name for name, kind in DECODER_BLOCKS.items() if kind.type is UPSAMPLE}
_UPSAMPLERS = [name for name, _ in reversed(GENERATIONS["LTX-2.3"]["decoder_blocks"]) if name in _NAMES.values()]
# Name of a tensor: its group of blocks, its part of the group (empty if the group is one part), its name in the part.
_TENSOR = re.compile(
    rf"(mid_block|{STEMS['decoder']}\.(?P<group>\d{{1,4}}))\."
    r"((?P<first>conv_in)\.|upsamplers\.0\.|(resnets|res_blocks)\.(?P<layer>\d{1,4})\.)?(?P<name>.+)"
)
_UPSAMPLER_WEIGHT, _LAYER_WEIGHT, _SHORTCUT = "conv.conv.weight", "conv1.conv.weight", "conv_shortcut.weight"


class _GroupPart(NamedTuple):
    """Block: its entry in the original configuration, and the prefix of its tensors in diffusers."""

    block: list[Any]
    prefix: str


class DiffusersVAE(NamedTuple):
    """Diffusers configuration in the vocabulary of the original, and each network's parts in execution order."""

    source: str
    raw_config: dict[str, Any]
    parts: Mapping[str, Sequence[_GroupPart]]

    def original_names(self, network: str, names: Iterable[str]) -> dict[str, str]:
        """Return the original names by the diffusers names, both within the network."""
        prefixes = dict(_OUTSIDE)
        for index, part in enumerate(self.parts[network]):
            original = f"{STEMS[network]}.{index}."
            if part.block[0] == "res_x":
                prefixes[f"{part.prefix}.resnets."] = f"{original}res_blocks."
                prefixes[f"{part.prefix}.time_embedder."] = f"{original}time_embedder."
            else:
                prefixes[f"{part.prefix}."] = original
        original_names = {}
        for name in names:
            prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
            if prefix is None:
                raise CheckpointError(
                    f"{self.source}: its tensor {network}.{excerpt(name)} belongs to no block of its config.json; use "
                    "the config.json that came with the weights."
                )
            original = prefixes[prefix] + name.removeprefix(prefix)
            original_names[name] = original.replace(".conv_shortcut.conv.", ".conv_shortcut.")
        return original_names


def is_diffusers_config(raw: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is the configuration of a diffusers autoencoder, supported or not."""
    return _class_name(raw).startswith(("AutoencoderKL", _DIFFUSION_DECODER))


def read_diffusers_config(raw: Mapping[str, Any], source: str) -> DiffusersVAE:
    """Translate the content of a `config.json`. Unknown keys and values are errors: they could change the result."""
    class_name = _class_name(raw)
    config = _complete(raw, class_name, source)
    try:
        encoder, encoder_base = _walk_encoder(class_name, config)
        decoder, decoder_base = _walk_decoder(class_name, config)
    except (LookupError, ArithmeticError, TypeError, ValueError) as error:
        reason = "" if isinstance(error, TypeError) else f" ({excerpt(error)})"  # its text names Python types
        raise CheckpointError(
            f"{source}: the lists of its config.json do not describe one network{reason}; use the config.json that "
            "came with the weights."
        ) from error
    original = {
        "_class_name": CLASS_NAME,
        "dims": 3,
        **{key: config[key] for key in _SAME_KEYS},
        "encoder_blocks": [part.block for part in encoder],
        "decoder_blocks": [part.block for part in reversed(decoder)],
        "norm_layer": "pixel_norm",
        "latent_log_var": "uniform",
        "causal_decoder": config["decoder_causal"],
        "encoder_base_channels": encoder_base,
        "decoder_base_channels": decoder_base,
        # Written even if they are the default, since pruned block lists belong to no generation.
        "encoder_spatial_padding_mode": config.get("encoder_spatial_padding_mode", "zeros"),
        "decoder_spatial_padding_mode": config.get("decoder_spatial_padding_mode", "zeros"),
    }
    if "_class_name" not in raw and "block_out_channels" not in raw:
        encoder = []
        del original["encoder_blocks"], original["encoder_base_channels"]
    return DiffusersVAE(source, original, {"encoder": encoder, "decoder": decoder})


def _class_name(raw: Mapping[str, Any]) -> str:
    """Return the class name. MLX packs of PrunaVAED leave out the class and the encoder; a key tells the class."""
    return str(raw.get("_class_name", _LTX_2 if "upsample_type" in raw else ""))


def _complete(raw: Mapping[str, Any], class_name: str, source: str) -> dict[str, Any]:
    if class_name == _DIFFUSION_DECODER:
        raise CheckpointError(
            f"{source}: its config.json describes a diffusion decoder ({class_name}), and its tensors belong to a "
            "convolutional VAE; use the config.json that came with the weights."
        )
    if class_name not in _DEFAULTS:
        raise CheckpointError(
            f"{source}: its class {excerpt(class_name)} is not supported; use an {_LTX_VIDEO} or {_LTX_2}."
        )
    defaults = _SHARED_DEFAULTS | _DEFAULTS[class_name]
    keys = {name: ANYTHING._replace(default=value) for name, value in defaults.items()}
    return read_config(raw, keys | _FIXED, f"{source}: its config.json")


def _walk_encoder(class_name: str, config: Mapping[str, Any]) -> tuple[list[_GroupPart], int]:
    """Return the parts of the encoder, and its base width."""
    types = config["down_block_types"]
    widths = list(config["block_out_channels"])
    if class_name == _LTX_2:
        widths = [config["latent_channels"], *widths]  # conv_in is as wide as the latents
    elif types[-1] == "LTXVideoDownBlock3D":
        widths = [*widths, widths[-1]]  # 0.9.0 and 0.9.1 list conv_in and repeat the last width
    layers = config["layers_per_block"]
    scaling = _per_block(config["spatio_temporal_scaling"], len(widths) - 1)
    parts = []
    for index in range(len(widths) - 1):
        prefix, width, out_width = f"down_blocks.{index}", widths[index], widths[index + 1]
        strided = types[index] == "LTXVideoDownBlock3D"
        kind = "conv" if strided else config["downsample_type"][index]
        parts.append(_res_stack(layers[index], prefix))
        if scaling[index]:
            block = ["compress_all", {}]
            if kind != "conv":
                block = [f"{_COMPRESS[kind]}_res", {"multiplier": _ratio(out_width, width)}]
            parts.append(_GroupPart(block, f"{prefix}.downsamplers.0"))
        if strided and width != out_width:
            parts.append(_GroupPart(["res_x_y", {"multiplier": _ratio(out_width, width)}], f"{prefix}.conv_out"))
    parts.append(_res_stack(layers[-1], "mid_block"))
    return parts, widths[0]


def _walk_decoder(class_name: str, config: Mapping[str, Any]) -> tuple[list[_GroupPart], int]:
    """Return the parts of the decoder, and its base width. All lists but `upsample_type` are in encoder order."""
    outputs = config["decoder_block_out_channels"][::-1]
    layers = config["decoder_layers_per_block"][::-1]
    scaling = _per_block(config["decoder_spatio_temporal_scaling"], len(outputs))[::-1]
    noise = _per_block(config["decoder_inject_noise"], len(outputs) + 1)[::-1]
    residual = _per_block(config["upsample_residual"], len(outputs))[::-1]
    factors = config["upsample_factor"][::-1]
    kinds = config["upsample_type"] if class_name == _LTX_2 else ("spatiotemporal",) * len(outputs)
    parts = [_res_stack(layers[0], "mid_block", noise[0])]
    width, divisor = outputs[0], 1  # the base width is the first one, divided by all multipliers
    for index, factor in enumerate(factors[: len(outputs)]):
        prefix = f"up_blocks.{index}"
        if width != outputs[index]:
            # The original's lists have a factor if it is a whole number.
            ratio, remainder = divmod(width, outputs[index])
            options = {"out_channels": outputs[index]} if remainder else {"multiplier": ratio}
            options |= {"inject_noise": True} if noise[index + 1] else {}
            parts.append(_GroupPart(["res_x_y", options], f"{prefix}.conv_in"))
            divisor *= options.get("multiplier", 1)
        if scaling[index]:
            options = {"multiplier": factor} | ({"residual": True} if residual[index] else {})
            parts.append(_GroupPart([_COMPRESS[kinds[index]], options], f"{prefix}.upsamplers.0"))
            divisor *= factor
        width = outputs[index] // factor
        parts.append(_res_stack(layers[index + 1], prefix, noise[index + 1]))
    return parts, _ratio(outputs[0], divisor)


def _res_stack(layers: int, prefix: str, noise: bool = False) -> _GroupPart:
    return _GroupPart(["res_x", {"num_layers": layers} | ({"inject_noise": True} if noise else {})], prefix)


def _ratio(large: int, small: int) -> int:
    if large % small:
        raise ValueError(f"{large} channels are not a multiple of {small}")
    return large // small


def _per_block(value: bool | Sequence[bool], count: int) -> list[bool]:
    """Return a value per block. diffusers writes one value for all blocks, or a list."""
    return [value] * count if isinstance(value, bool) else list(value)


class PrunedDecoder(NamedTuple):
    """Keys of a pruned decoder's configuration, and the original's tensor names by its names within the network."""

    raw_config: dict[str, Any]
    names: dict[str, str]


class _PrunedPart(NamedTuple):
    """Upsampler, projection or layer of a residual block, and its tensor names by the names within the part."""

    group: int
    tensors: Mapping[str, str]
    weight: Shape  # of the first weight: (output channels, 3, 3, 3, input channels)

    @property
    def is_upsampler(self) -> bool:
        return _UPSAMPLER_WEIGHT in self.tensors

    @property
    def is_layer(self) -> bool:
        return not self.is_upsampler and _SHORTCUT not in self.tensors


def read_pruned_decoder(shapes: Shapes) -> PrunedDecoder | None:
    """Read a decoder from its tensors' channels-last shapes. Returns `None` if it is not a pruned one of LTX-2.3."""
    conv_out = shapes.get("conv_out.conv.weight", ())
    if len(conv_out) != 5 or not any(".conv_shortcut." in name for name in shapes):  # no projection
        return None
    # A block has all consecutive layers of a group, or one upsampler or projection.
    groups = groupby(_read_parts(shapes), lambda part: part.group if part.is_layer else part)
    blocks = [list(block) for _, block in groups]
    widths = [*(part.weight[-1] for part, *_ in blocks), conv_out[-1]]
    if min(widths) < 1:
        return None
    entries = [_make_entry(block, pair) for block, pair in zip(blocks, pairwise(widths), strict=True)]
    upsamplers = [name for (name, _), (part, *_) in zip(entries, blocks, strict=True) if part.is_upsampler]
    if upsamplers != _UPSAMPLERS:
        return None
    raw: dict[str, Any] = {"decoder_blocks": [list(entry) for entry in reversed(entries)]}
    base, remainder = divmod(widths[0], math.prod(options.get("multiplier", 1) for _, options in entries))
    if not remainder:
        raw["decoder_base_channels"] = base
    return PrunedDecoder(raw, {**{name: name for name in shapes}, **_rename(blocks)})


def _read_parts(shapes: Shapes) -> list[_PrunedPart]:
    """Return the parts of all groups in execution order, or none if a part is missing or not supported."""
    tensors_by_part: dict[tuple[int, bool, int], dict[str, str]] = {}
    for name in shapes:
        if match := _TENSOR.fullmatch(name):
            group, layer = (-1 if number is None else int(number) for number in match.group("group", "layer"))
            part_name = match["name"].replace("conv_shortcut.conv.", "conv_shortcut.")
            tensors_by_part.setdefault((group, not match["first"], layer), {})[part_name] = name
    parts: list[_PrunedPart] = []
    for (group, is_inside, layer), tensors in sorted(tensors_by_part.items()):
        weight = shapes.get(tensors.get(_UPSAMPLER_WEIGHT) or tensors.get(_LAYER_WEIGHT, ""), ())
        has_previous = layer < 1 or (group, is_inside, layer - 1) in tensors_by_part
        follows = group - (parts[-1].group if parts else -1) < 2
        if not (has_previous and follows and len(weight) == 5):
            return []
        parts.append(_PrunedPart(group, tensors, weight))
    return parts


def _make_entry(block: Sequence[_PrunedPart], widths: tuple[int, int]) -> tuple[str, dict[str, Any]]:
    """Return a block of the list from its widths. Its name is empty if no upsampler has these widths."""
    width, out_width = widths
    if block[0].is_layer:
        return "res_x", {"num_layers": len(block)}
    if not block[0].is_upsampler:
        return "res_x_y", {"out_channels": out_width}
    factor, remainder = divmod(width, out_width)
    positions, surplus_channels = divmod(block[0].weight[0], out_width)
    name = "" if surplus_channels else _NAMES.get(positions, "")
    return name, {"out_channels": out_width} if remainder else {"multiplier": factor}


def _rename(blocks: Sequence[Sequence[_PrunedPart]]) -> dict[str, str]:
    names: dict[str, str] = {}
    for index, block in enumerate(blocks):
        for layer, part in enumerate(block):
            prefix = f"{STEMS['decoder']}.{index}." + (f"res_blocks.{layer}." if part.is_layer else "")
            names |= {stored_name: prefix + name for name, stored_name in part.tensors.items()}
    return names
