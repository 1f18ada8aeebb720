"""Conv VAE of LTX-Video and LTX-2 to 2.5: its names and configurations in checkpoints, and the `info` report."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import CheckpointError
from ..base import NETWORKS, CheckpointParts, Configuration, Family, Network, NetworkTensors, Statistics
from ..convolution.rules import ConvRule, choose
from ..specs import Shapes
from ..stored import STATISTICS_PREFIXES, find_statistics, plain_name, read_config
from .block_types import BLOCKS, KERNEL, STEMS
from .config import (
    CLASS_NAME,
    GENERATIONS,
    KEYS,
    PRUNA_VAED,
    NetworkConfig,
    VAEConfig,
    decoder_spec,
    name_generation,
    network_spec,
    parse_vae_config,
)
from .names import PrunedDecoder, is_diffusers_config, read_diffusers_config, read_pruned_decoder
from .networks import ConvDecoder, ConvEncoder

# Prefixes of a network's names: in original files, in whole models of other programs, in packs of MLX ports (`_conv`,
# and `_av` or `diffusion_` for the two VAEs of LTX-2.5), in split files, and in files with one network only.
_ROOTS = ("vae.", "model.vae.", "first_stage_model.")
_PACKS = ("vae_{network}.", "vae_{network}_conv.", "vae_{network}_av.", "vae_diffusion_{network}.")
_PATTERNS = (*(f"{root}{{network}}." for root in _ROOTS), *_PACKS, "{network}.", "")
#: Possible prefixes of the names of each network.
PREFIXES = {network: [pattern.format(network=network) for pattern in _PATTERNS] for network in NETWORKS}
_MEAN_NAMES = ("mean_of_means", "mean", "latents_mean")
_STD_NAMES = ("std_of_means", "std", "latents_std")
# mlx-video's packs wrap each causal convolution in one more module.
_WRAPPED_CONV = re.compile(r"\b(conv_in|conv_out|conv1|conv2)\.conv\.conv\.")
# PrunaVAED's file leaves out the module in which the original wraps this layer norm.
_BARE_NORM = re.compile(r"\.norm3\.(weight|bias)$")

_DIFFUSION_CLASS = "CausalDiffusionVAE"
_PRUNED_CLASS = "PrunaVAEDDecoder"
_TIMESTEP_TENSOR = "last_scale_shift_table"

# Keys of an encoder's separate configuration, and the keys of a whole VAE's: in mlx-video's packs, and in the file of
# LTX-2.5's diffusion decoder.
_PACK_KEYS = {"out_channels": "latent_channels", "convolution_dimensions": "dims"}
_NESTED_KEYS = {
    **_PACK_KEYS,
    "blocks": "encoder_blocks",
    "base_channels": "encoder_base_channels",
    "spatial_padding_mode": "encoder_spatial_padding_mode",
}

_LTX_2_5 = "LTX-2.5"  # its decoder has the layers of LTX-2.3's

_USUAL_LATENTS = (16, 16, 24)  # grid of 121 frames of 768x512


def find(shapes: Shapes) -> NetworkTensors:
    """Find the networks and the statistics of the latents, for `Family.find`."""
    networks = {network: names for network in NETWORKS if (names := _find_network(shapes, network))}
    prefixes = [*_ROOTS, *PREFIXES["decoder"], *PREFIXES["encoder"]]
    return NetworkTensors(networks, find_statistics(shapes, prefixes, _MEAN_NAMES, _STD_NAMES))


def _find_network(shapes: Shapes, network: str) -> dict[str, str]:
    for prefix in PREFIXES[network]:
        stored_names = {name.removeprefix(prefix): name for name in shapes if name.startswith(prefix)}
        names = {
            _BARE_NORM.sub(r".norm3.norm.\1", _WRAPPED_CONV.sub(r"\1.conv.", name)): stored_name
            for name, stored_name in stored_names.items()
        }
        conv_in = names.get("conv_in.conv.weight")
        has_blocks = any(name.startswith(f"{STEMS[network]}.") for name in names)
        if conv_in is not None and len(shapes[conv_in]) == 5 and has_blocks:
            return {
                name: stored_name
                for name, stored_name in names.items()
                if not (name.startswith(STATISTICS_PREFIXES[0]) or plain_name(name) in _MEAN_NAMES + _STD_NAMES)
            }
    return {}


def choose_config(contents: Iterable[object]) -> dict[str, Any] | None:
    """Return the first configuration of a whole VAE, in the vocabulary of the original or of diffusers.

    If there is none, the configurations of single networks are joined, which list the blocks of one network or of none.
    Returns `None` if there are none of these either. Other configurations are skipped: a transformer's, a network's in
    the vocabulary of a port, and LTX-2.5's diffusion decoder's, except for the part of its encoder.
    """
    parts: dict[str, Any] = {}
    for content in contents:
        for raw in (content.get("vae"), content) if isinstance(content, Mapping) else ():
            if not isinstance(raw, Mapping):
                continue
            if is_diffusers_config(raw) or "blocks" in raw or all(f"{network}_blocks" in raw for network in NETWORKS):
                return dict(raw)
            part = _network_entry(raw)
            parts = part | parts
            if part:
                break
    return parts or None


def configure(config: Mapping[str, Any] | VAEConfig | None, parts: CheckpointParts) -> Configuration[VAEConfig]:
    """Translate names and configurations of diffusers and of pruned decoders to the original's, and parse them."""
    source, networks = parts.source, parts.networks
    translation = None
    if isinstance(config, Mapping) and is_diffusers_config(config):
        translation = read_diffusers_config(config, source)
        config = translation.raw_config
    names: dict[str, dict[str, str]] = {}
    if pruned := read_pruned_decoder(networks.get("decoder", {})):
        names["decoder"] = pruned.names
        if not isinstance(config, VAEConfig):
            config = _complete_pruned(config or {}, pruned, networks, source)
    for network, shapes in networks.items():
        is_diffusers = any(name.startswith("mid_block.") or ".resnets." in name for name in shapes)
        if network not in names and is_diffusers:
            if translation is None:
                raise CheckpointError(
                    f"{source}: its tensors have the names of the diffusers library, so the config.json of that "
                    "library must be beside it; download that file too."
                )
            names[network] = translation.original_names(network, shapes)
    if isinstance(config, VAEConfig):
        return Configuration(config, {}, names)
    original_shapes = {
        network: {names.get(network, {}).get(name, name): shape for name, shape in shapes.items()}
        for network, shapes in networks.items()
    }
    raw = _complete(config, original_shapes, source)
    # If the configuration does not say whether the decoder takes a timestep, the tensors decide: ltx-core assumes that
    # it does, and diffusers that it does not. The tensors also decide the widths of the requested networks.
    defaults: dict[str, Any] = {"timestep_conditioning": _TIMESTEP_TENSOR in original_shapes.get("decoder", {})}
    defaults |= _ends(original_shapes)
    requested_shapes = {name: original_shapes[name] for name in parts.requested_networks if name in original_shapes}
    return Configuration(parse_vae_config({**defaults, **raw}, source, requested_shapes), raw, names)


def _complete_pruned(
    raw: Mapping[str, Any], pruned: PrunedDecoder, networks: Mapping[str, Shapes], source: str
) -> dict[str, Any]:
    """Complete `raw` with the block list and the padding of a pruned decoder of LTX-2.3 where they are missing.

    A list of LTX-2.3 itself is replaced: it is from a pack that may also have the original decoder.
    """
    values = read_config(raw, KEYS, f"{source}: its configuration")
    blocks = values["decoder_blocks"] or values["blocks"]
    is_listed = blocks and name_generation(None, blocks, False) != "LTX-2.3"
    defaults = {"_class_name": CLASS_NAME, **_ends(networks)}
    if not (values["spatial_padding_mode"] or values["decoder_spatial_padding_mode"]):
        defaults["decoder_spatial_padding_mode"] = GENERATIONS["LTX-2.3"]["spatial_padding_mode"]
    return {**defaults, **raw, **({} if is_listed else pruned.raw_config)}


def _complete(raw: Mapping[str, Any] | None, networks: Mapping[str, Shapes], source: str) -> dict[str, Any]:
    """Complete `raw` with the `networks` of the one published generation that has these tensors."""
    raw = dict(raw or {})
    missing = [name for name in networks if not (f"{name}_blocks" in raw or "blocks" in raw)]
    if raw and not missing:
        return raw
    read_config(raw, KEYS, f"{source}: its configuration")
    matches: dict[str, dict[str, Any]] = {}
    for name, generation in GENERATIONS.items():
        if name == PRUNA_VAED:  # its encoder is LTX-2.3's, and its decoder was read from the tensors
            continue
        candidate = _candidate(raw, generation, missing, networks)
        has_weights = all(_weight_names(candidate, network) == networks[network].keys() for network in missing)
        if has_weights and candidate not in matches.values():
            matches[name] = candidate
    if len(matches) != 1:
        result = f"match {' and '.join(matches)}" if matches else "match no published generation"
        problem = f"its configuration lists no {missing[0]}_blocks" if raw else "it has no configuration"
        raise CheckpointError(
            f"{source}: {problem}, and its tensors {result}; add one as the metadata entry 'config' of the file, or a "
            "config.json beside it."
        )
    return json.loads(json.dumps(next(iter(matches.values()))))  # lists instead of tuples, as in a file


def _candidate(
    raw: Mapping[str, Any], generation: Mapping[str, Any], missing: Sequence[str], networks: Mapping[str, Shapes]
) -> dict[str, Any]:
    """Return `raw` completed by a generation's configuration, or only by its blocks if `raw` lists some blocks."""
    widths = {"_class_name": CLASS_NAME, **_widths(networks)}
    if not any(f"{name}_blocks" in raw for name in NETWORKS):
        return {**generation, **widths, **raw}
    defaults = {f"{name}_blocks": generation.get(f"{name}_blocks", generation.get("blocks")) for name in missing}
    if "decoder" in missing:
        defaults["timestep_conditioning"] = generation.get("timestep_conditioning", False)
        if "spatial_padding_mode" in generation and "spatial_padding_mode" not in raw:
            defaults["decoder_spatial_padding_mode"] = generation["spatial_padding_mode"]
    return {**defaults, **widths, **raw}


def _weight_names(raw: Mapping[str, Any], network: str) -> Set[str]:
    """Return the weight names of a network that a configuration describes, none if it describes no VAE."""
    try:
        config = parse_vae_config({"spatial_padding_mode": "zeros", **raw}, "")  # any mode: no weight's name has it
    except CheckpointError:  # the scales of the configured network and of this generation's differ
        return set()
    return network_spec(config, network).weights.keys()


def _network_entry(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of one network in the vocabulary of a whole VAE, empty if it is not one."""
    class_name = raw.get("_class_name")
    if class_name == _DIFFUSION_CLASS:
        encoder = raw.get("encoder")
        return _rename(encoder, _NESTED_KEYS) if isinstance(encoder, Mapping) else {}
    if class_name == _PRUNED_CLASS:
        return _rename(raw, {})
    networks = [network for network in NETWORKS if _is_block_list(raw.get(f"{network}_blocks"), network)]
    if networks == ["encoder"] and "latent_channels" not in raw and raw.get("out_channels", 3) != 3:
        return _rename(raw, _PACK_KEYS)
    return dict(raw) if networks or class_name == CLASS_NAME else {}


def _rename(raw: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in raw.items() if key != "_class_name"}


def _is_block_list(blocks: object, network: str) -> bool:
    """Return whether blocks are listed as in the original: [name, options], with at least one of its names."""
    if not isinstance(blocks, list):
        return False
    names = [block[0] for block in blocks if isinstance(block, (list, tuple)) and len(block) == 2]
    return any(isinstance(name, str) and name in BLOCKS[network] for name in names)


def _widths(networks: Mapping[str, Shapes]) -> dict[str, int]:
    """Return latent channels, patch size and base widths. A missing network gets the base width of the other one."""
    widths: dict[str, int] = {}
    patch_channels = 0
    if "encoder" in networks:
        base, patch_channels = _channels(networks["encoder"], "conv_in")
        moments, _ = _channels(networks["encoder"], "conv_out")
        widths = {"encoder_base_channels": base, "decoder_base_channels": base, "latent_channels": moments - 1}
    if "decoder" in networks:
        _, latent_channels = _channels(networks["decoder"], "conv_in")
        patch_channels, base = _channels(networks["decoder"], "conv_out")
        widths = {"encoder_base_channels": base} | widths
        widths |= {"decoder_base_channels": base, "latent_channels": latent_channels}
    return {**widths, "patch_size": math.isqrt(patch_channels // 3)}


def _ends(networks: Mapping[str, Shapes]) -> dict[str, int]:
    widths = _widths(networks)
    return {key: widths[key] for key in ("latent_channels", "patch_size") if key in widths}


def _channels(shapes: Shapes, conv: str) -> tuple[int, int]:
    """Return the (output, input) channels of a convolution, (0, 0) if it does not exist."""
    shape = shapes.get(f"{conv}.conv.weight")
    return (shape[0], shape[-1]) if shape else (0, 0)


def _make(config: VAEConfig, network: str, statistics: Statistics | None, rule: ConvRule = choose) -> Network:
    assert statistics is not None  # has_statistics
    return ConvEncoder(config, statistics, rule) if network == "encoder" else ConvDecoder(config, statistics, rule)


def _published(layers: str, base_channels: int | None = None, *, generation: str | None = None) -> VAEConfig:
    """Return the configuration with the `layers` of a generation, for that generation or another one."""
    keys = ("decoder_base_channels", "encoder_base_channels")
    widths = {} if base_channels is None else dict.fromkeys(keys, base_channels)
    config = parse_vae_config({**GENERATIONS[layers], **widths}, layers)
    return config if generation is None else replace(config, generation=generation)


def _describe(config: VAEConfig) -> dict[str, Any]:
    """Describe a VAE. `work_relative_to_ltx_2_3` is a pruned decoder's share of LTX-2.3's multiply-adds."""
    is_pruned = config.generation == PRUNA_VAED and config.decoder is not None
    return {
        "patch_size": config.patch_size,
        "causal_decoder": config.causal_decoder,
        "timestep_conditioning": config.timestep_conditioning,
        **({"work_relative_to_ltx_2_3": _work_share(config)} if is_pruned else {}),
        **({} if config.encoder is None else {"encoder": _describe_network(config.encoder)}),
        **({} if config.decoder is None else {"decoder": _describe_network(config.decoder)}),
    }


def _describe_network(network: NetworkConfig) -> dict[str, Any]:
    """Describe a network. The `stride` of a block is (time, height, width)."""
    changes = [block.out_channels for block in network.blocks if block.out_channels != block.in_channels]
    return {
        "in_channels": network.in_channels,
        "out_channels": network.out_channels,
        "causal": network.options.causal,
        "padding": network.options.padding.value,
        "widths": [network.blocks[0].in_channels, *changes],
        "blocks": [
            {
                "kind": block.type.name,
                "in_channels": block.in_channels,
                "out_channels": block.out_channels,
                "layers": block.num_layers,
                "stride": list(block.stride),
                "residual": block.residual,
                "inject_noise": block.inject_noise,
            }
            for block in network.blocks
        ],
    }


def _work_share(config: VAEConfig) -> float:
    """Return the work of a decoder, as a share of LTX-2.3's with the same first width."""
    blocks = parse_vae_config(GENERATIONS["LTX-2.3"], "LTX-2.3").network("decoder").blocks
    first_width = config.network("decoder").blocks[0].in_channels
    base = max(1, blocks[-1].out_channels * first_width // blocks[0].in_channels)
    ends = {"latent_channels": config.latent_channels, "patch_size": config.patch_size}
    ltx_2_3 = parse_vae_config({**GENERATIONS["LTX-2.3"], **ends, "decoder_base_channels": base}, "LTX-2.3")
    work, ltx_2_3_work = (decoder_spec(vae).multiply_adds(_USUAL_LATENTS) for vae in (config, ltx_2_3))
    return round(work / ltx_2_3_work, 2)


CONV_VAE = Family(
    name="video_vae",
    decoder="convolutional",
    kernels=(KERNEL,),
    has_statistics=True,
    config_type=VAEConfig,
    find=find,
    choose_config=choose_config,
    configure=configure,
    spec=network_spec,
    make=_make,
    describe=_describe,
    published={
        **{name.split()[-1].lower(): partial(_published, name) for name in GENERATIONS},
        "ltx-2.5": partial(_published, "LTX-2.3", generation=_LTX_2_5),
    },
    same_layers={("LTX-2.3", (2, 5)): _LTX_2_5},
)
