"""Tiny autoencoders of `madebyollin/taehv` for LTX: their files, and the `info` report."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import CheckpointError
from ..base import NETWORKS, CheckpointParts, Configuration, Family, NetworkTensors
from ..specs import Shapes
from ..stored import WORD, only, read_config, whole
from .config import (
    ENCODER_WIDTH,
    LEVELS,
    LTX_CHANNELS,
    PATCH,
    STANDARD_WIDTHS,
    WIDE_GROUP_WIDTH,
    WIDE_WIDTHS,
    OutputKind,
    PreviewConfig,
    network_spec,
)
from .networks import PreviewDecoder, PreviewEncoder

_CLASS = "TAEHV"
_KEYS = {"_class_name": only(_CLASS), "generation": WORD, "latent_channels": whole(4096, LTX_CHANNELS)}
#: Two files with equal shapes, which their names tell apart.
_NAMES = ("taeltx2_3", "taeltx_2")
_UNKNOWN = "taeltx_2 or taeltx2_3"
_WIDE = "taeltx2_3_wide"
_STEM = "layers."
# The first and the last convolution of each network, whose shapes identify these files.
_FIRST = {"encoder": "layers.0.weight", "decoder": "layers.1.weight"}
_LAST = {"encoder": "layers.17.weight", "decoder": "layers.22.weight"}
_NUMBERED = re.compile(r"(layers\.)?\d+\.")


def find(shapes: Shapes) -> NetworkTensors:
    """Find networks with numbered tensors: `decoder.3.conv.0.weight`, or `decoder.layers.3...` in converted files."""
    return NetworkTensors({network: names for network in NETWORKS if (names := _find_network(shapes, network))})


def _find_network(shapes: Shapes, network: str) -> dict[str, str]:
    prefix = f"{network}."
    suffixes = {name.removeprefix(prefix): name for name in shapes if name.startswith(prefix)}
    if not all(_NUMBERED.match(suffix) for suffix in suffixes):
        return {}
    names = {_STEM + suffix.removeprefix(_STEM): name for suffix, name in suffixes.items()}
    first_weight = names.get(_FIRST[network])
    has_blocks = f"{_STEM}{LEVELS[0] + 1}.conv.0.weight" in names
    return names if first_weight is not None and len(shapes[first_weight]) == 4 and has_blocks else {}


def choose_config(contents: Iterable[object]) -> Mapping[str, Any] | None:
    """Choose the configuration of a converted checkpoint, or of a small model of another VAE."""
    return next((raw for raw in contents if isinstance(raw, Mapping) and raw.get("_class_name") == _CLASS), None)


def configure(config: Mapping[str, Any] | PreviewConfig | None, parts: CheckpointParts) -> Configuration[PreviewConfig]:
    """Infer the widths from the tensors. The latents have LTX's channels, unless the configuration has a number."""
    if isinstance(config, PreviewConfig):
        return Configuration(config, {})
    values = read_config(config or {}, _KEYS, f"{parts.source}: its configuration")
    channels = values["latent_channels"]
    decoder, encoder = (parts.networks.get(network, {}) for network in ("decoder", "encoder"))
    _check_shapes(parts, channels)
    widths = _decoder_widths(decoder, parts.source) if decoder else None
    group_width = _extent(decoder, f"{_STEM}{LEVELS[0]}.conv.6.weight", -1)
    generation = values["generation"] or _generation(parts.source, widths)
    width = _extent(encoder, _FIRST["encoder"], 0)
    raw = {"_class_name": _CLASS, "generation": generation, "latent_channels": channels}
    return Configuration(PreviewConfig(widths, width, group_width, channels, generation=generation), raw)


def _check_shapes(parts: CheckpointParts, channels: int) -> None:
    """Refuse a tiny autoencoder of another model, whose latents have other channels or whose patches another size."""
    for network, shapes in parts.networks.items():
        latent_axis = (_FIRST[network], -1) if network == "decoder" else (_LAST[network], 0)
        pixel_axis = (_LAST[network], 0) if network == "decoder" else (_FIRST[network], -1)
        latent_channels, patch_values = (_extent(shapes, name, axis) for name, axis in (latent_axis, pixel_axis))
        if (latent_channels, patch_values) != (channels, 3 * PATCH**2):
            raise CheckpointError(
                f"{parts.source}: its {network} is a tiny autoencoder of another model, with {latent_channels} latent "
                f"channels and {patch_values} values per patch, and LTX's has {channels} and {3 * PATCH**2}; use "
                "taeltx2_3.safetensors."
            )


def _decoder_widths(shapes: Shapes, source: str) -> tuple[int, int, int, int]:
    names = [_FIRST["decoder"], *(f"{_STEM}{start + 5}.weight" for start in LEVELS)]
    n0, n1, n2, n3 = (_extent(shapes, name, 0) for name in names)
    if n0 is None or n1 is None or n2 is None or n3 is None:
        missing = next(name for name in names if name not in shapes).removeprefix(_STEM)
        raise CheckpointError(f"{source}: its decoder lacks the tensor {missing}; download the file again.")
    return n0, n1, n2, n3


def _extent(shapes: Shapes, name: str, axis: int) -> int | None:
    shape = shapes.get(name)
    return shape[axis] if shape else None


def _generation(source: str, widths: tuple[int, ...] | None) -> str:
    if widths == WIDE_WIDTHS:
        return _WIDE
    if widths not in (None, STANDARD_WIDTHS):
        return "custom"
    return next((name for name in _NAMES if name in source.lower()), _UNKNOWN)


def _published(widths: tuple[int, ...], group_width: int | None, base_channels: int = 128) -> PreviewConfig:
    """Return a configuration as narrow as a conv VAE with this many base channels; LTX-2.3 has 128."""
    n0, n1, n2, n3, encoder = (max(1, width * base_channels // 128) for width in (*widths, ENCODER_WIDTH))
    group_width = group_width and max(1, group_width * base_channels // 128)
    return PreviewConfig((n0, n1, n2, n3), encoder, group_width)


def _describe(config: PreviewConfig) -> dict[str, Any]:
    """Describe an autoencoder. `model` is its LTX model, which the shapes do not tell for two of the files."""
    models = {"taeltx_2": "LTX-2, by the file's name", "taeltx2_3": "LTX-2.3, by the file's name"}
    models[_UNKNOWN] = "LTX-2 or LTX-2.3: their files have equal shapes and differ by their names only"
    widths = {"encoder": config.encoder_width and [config.encoder_width], "decoder": config.decoder_widths}
    networks = {name: {"widths": list(channels)} for name, channels in widths.items() if channels}
    return {"patch_size": PATCH, "model": models.get(config.generation), **networks}


PREVIEW_VAE = Family(
    name="preview_vae",
    decoder="tiny",
    kernels=((3, 3), (1, 1)),
    has_statistics=False,
    config_type=PreviewConfig,
    find=find,
    choose_config=choose_config,
    configure=configure,
    spec=network_spec,
    make=lambda config, network, statistics: (PreviewEncoder if network == "encoder" else PreviewDecoder)(config),
    describe=_describe,
    stills=partial(replace, output=OutputKind.STILLS),
    computes_in_half=NETWORKS,
    published={
        "taehv": partial(_published, STANDARD_WIDTHS, None),
        "taehv-wide": partial(_published, WIDE_WIDTHS, WIDE_GROUP_WIDTH),
    },
    published_dtype="float16",
)
