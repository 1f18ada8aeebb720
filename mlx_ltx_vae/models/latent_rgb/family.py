"""Linear projections from latents to small pictures, which `examples/fit_latent_rgb.py` fits to a VAE."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import CheckpointError, excerpt
from ..base import Configuration, Description, Family, Found, Network, NetworkDescription, Shapes, Statistics, Stored
from ..specs import NetworkSpec
from .config import LatentRGBConfig, parse_config
from .network import BIAS, WEIGHT, LatentRGBDecoder, decoder_spec

_NAME = "latent_rgb"  # of the family, and of its entry in a configuration
_PREFIX = "decoder."
_CHANNELS, _PATCH_SIZE = 128, 4  # of a projection for LTX's latents


def _find(shapes: Shapes) -> Found:
    names = {name: _PREFIX + name for name in (WEIGHT, BIAS)}
    return Found({"decoder": names} if shapes.keys() >= set(names.values()) else {})


def _choose_config(contents: Iterable[object]) -> Mapping[str, Any] | None:
    entries = (content.get(_NAME) for content in contents if isinstance(content, Mapping))
    return next((entry for entry in entries if isinstance(entry, Mapping)), None)


def _configure(stated: Mapping[str, Any] | LatentRGBConfig | None, stored: Stored) -> Configuration[LatentRGBConfig]:
    if isinstance(stated, LatentRGBConfig):
        return Configuration(stated, {})
    raw, shape = dict(stated or {}), stored.networks["decoder"][WEIGHT]
    size = math.isqrt(shape[0] // 3) if len(shape) == 2 else 0
    if size < 1 or shape[0] != 3 * size**2:
        raise CheckpointError(
            f"{stored.source}: decoder.{WEIGHT} has the shape {shape}; expected (3*p*p, channels) for p*p pixels; fit "
            "it again."
        )
    return Configuration(parse_config(raw, shape[1], size, stored.source), {_NAME: raw})


def _spec(config: LatentRGBConfig, network: str) -> NetworkSpec:
    if network != "decoder":
        raise CheckpointError(f"a projection from latents to pictures has no {network}.")
    return decoder_spec(config)


def _make(config: LatentRGBConfig, network: str, statistics: Statistics | None) -> Network:
    return LatentRGBDecoder(config)


def _describe(config: LatentRGBConfig) -> Description:
    size = config.patch_size
    entries = {
        "latent_channels": config.latent_channels,
        "patch_size": size,
        "scale": config.scale._asdict(),
        "fitted_to": config.vae,
        "psnr": config.psnr,
    }
    layers = [(layer.name, layer.in_channels, layer.out_channels) for layer in decoder_spec(config).layers]
    fit = f", fitted to {excerpt(config.vae)}" if config.vae else ""
    quality = "" if config.psnr is None else f" ({config.psnr:.1f} dB)"
    pictures = f"one picture per latent frame, {size}x{size} pixels per cell{fit}{quality}"
    return Description(entries, {"decoder": NetworkDescription({}, layers)}, decoder=pictures)


LATENT_RGB = Family(
    name=_NAME,
    decoder="projection",
    kernels=(),
    has_statistics=False,
    config_type=LatentRGBConfig,
    find=_find,
    choose_config=_choose_config,
    configure=_configure,
    spec=_spec,
    make=_make,
    describe=_describe,
    published={"latent-rgb": lambda base_channels: LatentRGBConfig(_CHANNELS, _PATCH_SIZE)},  # it has no width
)
