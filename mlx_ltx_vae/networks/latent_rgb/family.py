"""Linear projections from latents to small pictures, for previews, which `examples/fit_latent_rgb.py` fits to a VAE."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...errors import CheckpointError
from ...shapes import DEFAULT_SCALE, Scaled, ScaleFactors
from ...streaming.context import Stage, StreamContext, pointwise
from ..base import CheckpointParts, Configuration, Decoder, Family, NetworkTensors
from ..layers import add_weights, interleave
from ..specs import LayerSpec, NetworkSpec, Shapes
from ..stored import WORD, Key, grid, is_number, read_config

_KEYS = {"scale": grid(1024, DEFAULT_SCALE), "vae": WORD, "psnr": Key(is_number, "expected a number")}


@dataclass(frozen=True)
class LatentRGBConfig(Scaled):
    """Linear projection from a latent cell to a square of pixels.

    Attributes:
        patch_size: pixels per latent cell along each side of a picture.
        cell: pixels of the video per latent cell. There is one picture for every `cell.time` frames.
        vae: the VAE whose decoded pictures it was fitted to.
        psnr: PSNR in dB against the VAE's decode, reduced to the same size, of pictures that were not used for the fit.
    """

    latent_channels: int
    patch_size: int
    cell: ScaleFactors = DEFAULT_SCALE
    vae: str | None = None
    psnr: float | None = None
    generation: str = "latent_rgb"

    @property
    def scale(self) -> ScaleFactors:
        return self.cell


WEIGHT, BIAS = "to_rgb.weight", "to_rgb.bias"


class LatentRGBDecoder(Decoder):
    """Projection of normalized latents (B, T, H, W, C) to pixels (B, T, p*H, p*W, 3), approximately in [-1, 1].

    Checkpoint keys: `to_rgb.weight` (p*p*3, C), its rows ordered (rows, columns, colors), and `to_rgb.bias` (p*p*3,).
    """

    def __init__(self, config: LatentRGBConfig) -> None:
        super().__init__(decoder_spec(config))
        add_weights(self, tuple(self.spec.weights.items()))
        self._patch_size = config.patch_size

    def stages(self, context: StreamContext) -> list[Stage]:
        patch = (1, self._patch_size, self._patch_size)
        return [pointwise(self.to_rgb), pointwise(partial(interleave, stride=patch))]


def decoder_spec(config: LatentRGBConfig) -> NetworkSpec:
    """Return the spec of the decoder."""
    channels, size = config.latent_channels, config.patch_size
    colors = 3 * size**2
    weights = ((WEIGHT, (colors, channels)), (BIAS, (colors,)))
    projection = LayerSpec("to_rgb", channels, colors, weights=weights)
    return NetworkSpec((projection, LayerSpec("patches", colors, 3, up=(1, size, size))), patch_size=size)


_NAME = "latent_rgb"  # of the family, and of its entry in a configuration
_PREFIX = "decoder."
_CHANNELS, _PATCH_SIZE = 128, 4  # of a projection for LTX's latents


def _find(shapes: Shapes) -> NetworkTensors:
    names = {name: _PREFIX + name for name in (WEIGHT, BIAS)}
    return NetworkTensors({"decoder": names} if shapes.keys() >= set(names.values()) else {})


def _choose_config(contents: Iterable[object]) -> Mapping[str, Any] | None:
    entries = (content.get(_NAME) for content in contents if isinstance(content, Mapping))
    return next((entry for entry in entries if isinstance(entry, Mapping)), None)


def _configure(
    config: Mapping[str, Any] | LatentRGBConfig | None, parts: CheckpointParts
) -> Configuration[LatentRGBConfig]:
    if isinstance(config, LatentRGBConfig):
        return Configuration(config, {})
    raw, shape = dict(config or {}), parts.networks["decoder"][WEIGHT]
    size = math.isqrt(shape[0] // 3) if len(shape) == 2 else 0
    if size < 1 or shape[0] != 3 * size**2:
        raise CheckpointError(
            f"{parts.source}: decoder.{WEIGHT} has the shape {shape}; expected (3*p*p, channels) for p*p pixels; fit "
            "it again."
        )
    values = read_config(raw, _KEYS, f"{parts.source}: its configuration")
    rgb_config = LatentRGBConfig(shape[1], size, ScaleFactors(*values["scale"]), values["vae"], values["psnr"])
    return Configuration(rgb_config, {_NAME: raw})


def _spec(config: LatentRGBConfig, network: str) -> NetworkSpec:
    if network != "decoder":
        raise CheckpointError(f"a projection from latents to pictures has no {network}.")
    return decoder_spec(config)


def _describe(config: LatentRGBConfig) -> dict[str, Any]:
    return {"patch_size": config.patch_size, "fitted_to": config.vae, "psnr": config.psnr, "decoder": {}}


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
    make=lambda config, network, statistics: LatentRGBDecoder(config),
    describe=_describe,
    published={"latent-rgb": lambda *_: LatentRGBConfig(_CHANNELS, _PATCH_SIZE)},  # it has no width
    published_dtype="float32",
)
