"""The conv VAE of LTX-Video and LTX-2 to 2.5: its names and configurations in checkpoints; what `info` says."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any

from ...errors import CheckpointError
from ..base import NETWORKS, CheckpointParts, Configuration, Family, Network, NetworkTensors, Statistics
from ..convolution.rules import ConvRule, choose
from ..specs import Shapes
from ..stored import STATISTICS_PREFIXES, find_statistics, plain_name
from .block_types import BLOCKS, KERNEL, STEMS
from .config import (
    CLASS_NAME,
    GENERATIONS,
    PRUNA_VAED,
    NetworkConfig,
    VAEConfig,
    check_config,
    decoder_spec,
    name_generation,
    network_spec,
    parse_vae_config,
)
from .names import PrunedDecoder, has_diffusers_names, is_diffusers_config, read_diffusers_config, read_pruned_decoder
from .networks import ConvDecoder, ConvEncoder

# Prefixes of a network's names: the original files, whole models of other programs, packs of MLX ports (`_conv` and
# `_av` for the two VAEs of LTX-2.5), split files, and files with one network and nothing else.
_ROOTS = ("vae.", "model.vae.", "first_stage_model.")
_PACKS = ("vae_{network}.", "vae_{network}_conv.", "vae_{network}_av.")
_PREFIXES = (*(f"{root}{{network}}." for root in _ROOTS), *_PACKS, "{network}.", "")
_MEAN_NAMES = ("mean_of_means", "mean", "latents_mean")
_STD_NAMES = ("std_of_means", "std", "latents_std")
# mlx-video's packs wrap each causal convolution in one more module.
_WRAPPED_CONV = re.compile(r"\b(conv_in|conv_out|conv1|conv2)\.conv\.conv\.")
# PrunaVAED's file leaves out the module in which the original wraps this layer norm.
_BARE_NORM = re.compile(r"\.norm3\.(weight|bias)$")

_DIFFUSION_CLASS = "CausalDiffusionVAE"
_PRUNED_CLASS = "PrunaVAEDDecoder"
_TIMESTEP_TENSOR = "last_scale_shift_table"

# Keys of an encoder's own configuration, and their names in a whole VAE's: in mlx-video's packs, and in
# the file of LTX-2.5's diffusion decoder.
_PACK_KEYS = {"out_channels": "latent_channels", "convolution_dimensions": "dims"}
_NESTED_KEYS = {
    **_PACK_KEYS,
    "blocks": "encoder_blocks",
    "base_channels": "encoder_base_channels",
    "spatial_padding_mode": "encoder_spatial_padding_mode",
}

_USUAL_LATENTS = (16, 16, 24)  # of 121 frames of 768x512


def find(shapes: Shapes) -> NetworkTensors:
    """The `find` of the family."""
    networks = {network: names for network in NETWORKS if (names := _find_network(shapes, network))}
    return NetworkTensors(networks, _find_statistics(shapes))


def _find_network(shapes: Shapes, network: str) -> dict[str, str]:
    for prefix in network_prefixes(network):
        inside = {_original_name(name.removeprefix(prefix)): name for name in shapes if name.startswith(prefix)}
        conv_in = inside.get("conv_in.conv.weight")
        has_blocks = any(name.startswith(f"{STEMS[network]}.") for name in inside)
        if conv_in is not None and len(shapes[conv_in]) == 5 and has_blocks:
            return {
                name: stored
                for name, stored in inside.items()
                if not (name.startswith(STATISTICS_PREFIXES[0]) or plain_name(name) in _MEAN_NAMES + _STD_NAMES)
            }
    return {}


def _find_statistics(shapes: Shapes) -> tuple[str, str] | None:
    prefixes = [*_ROOTS, *network_prefixes("decoder"), *network_prefixes("encoder")]
    return find_statistics(shapes, prefixes, _MEAN_NAMES, _STD_NAMES)


def network_prefixes(network: str) -> list[str]:
    """The possible beginnings of the names of an encoder or a decoder."""
    return [prefix.format(network=network) for prefix in _PREFIXES]


def _original_name(name: str) -> str:
    return _BARE_NORM.sub(r".norm3.norm.\1", _WRAPPED_CONV.sub(r"\1.conv.", name))


def choose_config(contents: Iterable[object]) -> dict[str, Any] | None:
    """The first configuration of a whole VAE, in the vocabulary of the original or of diffusers.

    If there is none, the configurations of single networks together, which list the blocks of one network or of none;
    None if there are none of these either. Configurations of anything else are skipped: a transformer, a network in a
    port's own vocabulary, and the diffusion decoder of LTX-2.5, beside which its encoder's is used.
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


def configure(stated: Mapping[str, Any] | VAEConfig | None, stored: CheckpointParts) -> Configuration[VAEConfig]:
    """Names and configurations of diffusers and of pruned decoders are translated to the original's."""
    source, networks = stored.source, stored.networks
    translation = None
    if isinstance(stated, Mapping) and is_diffusers_config(stated):
        translation = read_diffusers_config(stated, source)
        stated = translation.raw_config
    names: dict[str, dict[str, str]] = {}
    if pruned := read_pruned_decoder(networks.get("decoder", {})):
        names["decoder"] = pruned.names
        if not isinstance(stated, VAEConfig):
            stated = _complete_pruned(stated or {}, pruned, networks, source)
    for network, shapes in networks.items():
        if network not in names and has_diffusers_names(shapes):
            if translation is None:
                raise CheckpointError(
                    f"{source}: its tensors have the names of the diffusers library, so the config.json of that "
                    "library must be beside it; download that file too."
                )
            names[network] = translation.original_names(network, shapes)
    if isinstance(stated, VAEConfig):
        return Configuration(stated, {}, names)
    translated = {
        network: {names.get(network, {}).get(name, name): shape for name, shape in shapes.items()}
        for network, shapes in networks.items()
    }
    raw = _complete(stated, translated, source)
    # The tensors decide whether the decoder takes a timestep, if it is not stated: ltx-core then assumes that it does,
    # diffusers not. And they decide the widths of the networks that are wanted.
    implied: dict[str, Any] = {"timestep_conditioning": _TIMESTEP_TENSOR in translated.get("decoder", {})}
    implied |= _ends(translated)
    wanted = {name: translated[name] for name in stored.requested_networks if name in translated}
    return Configuration(parse_vae_config({**implied, **raw}, source, wanted), raw, names)


def _complete_pruned(
    stated: Mapping[str, Any], pruned: PrunedDecoder, networks: Mapping[str, Shapes], source: str
) -> dict[str, Any]:
    """`stated`, and of a pruned decoder of LTX-2.3 the list and the padding where they are not stated.

    The list of LTX-2.3 itself is not this decoder's: it comes from a pack, in which the whole one may be too.
    """
    values = check_config(stated, source)
    blocks = values["decoder_blocks"] or values["blocks"]
    is_listed = blocks and name_generation(None, blocks, False) != "LTX-2.3"
    added = {"_class_name": CLASS_NAME, **_ends(networks)}
    if not (values["spatial_padding_mode"] or values["decoder_spatial_padding_mode"]):
        added["decoder_spatial_padding_mode"] = GENERATIONS["LTX-2.3"]["spatial_padding_mode"]
    return {**added, **stated, **({} if is_listed else pruned.raw_config)}


def _complete(stated: Mapping[str, Any] | None, networks: Mapping[str, Shapes], source: str) -> dict[str, Any]:
    """Complete `stated` with the `networks` of the one published generation that has these tensors."""
    stated = dict(stated or {})
    missing = [name for name in networks if not (f"{name}_blocks" in stated or "blocks" in stated)]
    if stated and not missing:
        return stated
    check_config(stated, source)
    matches: dict[str, dict[str, Any]] = {}
    for generation, known in GENERATIONS.items():
        if generation == PRUNA_VAED:  # its encoder is LTX-2.3's, and its decoder was read from the tensors
            continue
        candidate = _candidate(stated, known, missing, networks)
        has_these = all(_weight_names(candidate, name) == networks[name].keys() for name in missing)
        if has_these and candidate not in matches.values():
            matches[generation] = candidate
    if len(matches) != 1:
        result = f"match {' and '.join(matches)}" if matches else "match no published generation"
        what = f"its configuration lists no {missing[0]}_blocks" if stated else "it has no configuration"
        raise CheckpointError(
            f"{source}: {what}, and its tensors {result}; add one as the metadata entry 'config' of the file, or a "
            "config.json beside it."
        )
    return json.loads(json.dumps(next(iter(matches.values()))))  # lists instead of tuples, as in a file


def _candidate(
    stated: Mapping[str, Any], known: Mapping[str, Any], missing: Sequence[str], networks: Mapping[str, Shapes]
) -> dict[str, Any]:
    """The configuration of a known generation; or what is stated, with that generation's blocks where none are."""
    widths = {"_class_name": CLASS_NAME, **_widths(networks)}
    if not any(f"{name}_blocks" in stated for name in NETWORKS):
        return {**known, **widths, **stated}
    added = {f"{name}_blocks": known.get(f"{name}_blocks", known.get("blocks")) for name in missing}
    if "decoder" in missing:
        added["timestep_conditioning"] = known.get("timestep_conditioning", False)
        if "spatial_padding_mode" in known and "spatial_padding_mode" not in stated:
            added["decoder_spatial_padding_mode"] = known["spatial_padding_mode"]
    return {**added, **widths, **stated}


def _weight_names(raw: Mapping[str, Any], network: str) -> Set[str]:
    """The names of the weights of a network that a configuration describes; empty if it describes no VAE."""
    try:
        config = parse_vae_config({"spatial_padding_mode": "zeros", **raw}, "")  # any: it is in no weight's name
    except CheckpointError:  # the stated network and this generation's differ in scale
        return set()
    return network_spec(config, network).weights.keys()


def _network_entry(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of one network in the vocabulary of a whole VAE; empty if it is not one."""
    class_name = raw.get("_class_name")
    if class_name == _DIFFUSION_CLASS:
        encoder = raw.get("encoder")
        return _rename(encoder, _NESTED_KEYS) if isinstance(encoder, Mapping) else {}
    if class_name == _PRUNED_CLASS:
        return _rename(raw, {})
    listed = [network for network in NETWORKS if _is_known_list(raw.get(f"{network}_blocks"), network)]
    if listed == ["encoder"] and "latent_channels" not in raw and raw.get("out_channels", 3) != 3:
        return _rename(raw, _PACK_KEYS)
    return dict(raw) if listed or class_name == CLASS_NAME else {}


def _rename(raw: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in raw.items() if key != "_class_name"}


def _is_known_list(blocks: object, network: str) -> bool:
    """Return whether blocks are listed as in the original: [name, options], with at least one name that it has."""
    if not isinstance(blocks, list):
        return False
    names = [block[0] for block in blocks if isinstance(block, (list, tuple)) and len(block) == 2]
    return any(isinstance(name, str) and name in BLOCKS[network] for name in names)


def _widths(networks: Mapping[str, Shapes]) -> dict[str, int]:
    """Latent channels, patch size and base widths. A network that is missing gets the base width of the other."""
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
    """(output, input) channels of a convolution, (0, 0) if it does not exist."""
    shape = shapes.get(f"{conv}.conv.weight")
    return (shape[0], shape[-1]) if shape else (0, 0)


def _make(config: VAEConfig, network: str, statistics: Statistics | None, rule: ConvRule = choose) -> Network:
    assert statistics is not None  # has_statistics
    return ConvEncoder(config, statistics, rule) if network == "encoder" else ConvDecoder(config, statistics, rule)


def _published(name: str, base_channels: int | None = None) -> VAEConfig:
    keys = ("decoder_base_channels", "encoder_base_channels")
    widths = {} if base_channels is None else dict.fromkeys(keys, base_channels)
    return parse_vae_config({**GENERATIONS[name], **widths}, name)


def _describe(config: VAEConfig) -> dict[str, Any]:
    """`work_relative_to_ltx_2_3` is of a pruned decoder: the share of the multiply-adds that it computes."""
    is_pruned = config.generation == PRUNA_VAED and config.decoder is not None
    return {
        "patch_size": config.patch_size,
        "causal_decoder": config.causal_decoder,
        "timestep_conditioning": config.timestep_conditioning,
        **({"work_relative_to_ltx_2_3": _work_share(config)} if is_pruned else {}),
        **{name: _describe_network(network) for name, network in config.networks.items()},
    }


def _describe_network(network: NetworkConfig) -> dict[str, Any]:
    """Each block has its `stride` as (time, height, width)."""
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
    """The work of a decoder, as a share of LTX-2.3's with the same first width."""
    published = parse_vae_config(GENERATIONS["LTX-2.3"], "LTX-2.3").network("decoder").blocks
    first_width = config.network("decoder").blocks[0].in_channels
    base = max(1, published[-1].out_channels * first_width // published[0].in_channels)
    ends = {"latent_channels": config.latent_channels, "patch_size": config.patch_size}
    whole = parse_vae_config({**GENERATIONS["LTX-2.3"], **ends, "decoder_base_channels": base}, "LTX-2.3")
    work, of_whole = (decoder_spec(each).multiply_adds(_USUAL_LATENTS) for each in (config, whole))
    return round(work / of_whole, 2)


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
        "ltx-2.5": partial(_published, "LTX-2.3"),
    },
)
