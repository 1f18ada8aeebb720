"""Files of latent upsamplers: names of tensors, and configurations of ltx-core and of diffusers."""

from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import CheckpointError
from ..base import UPSAMPLERS, CheckpointParts, Configuration, Family, Network, NetworkTensors, Statistics
from ..specs import NetworkSpec, Shapes
from ..stored import anything, choice, flag, read_config, whole
from .config import GROUPS, UpsamplerConfig, upsampler_spec
from .networks import UpsamplerNetwork

_NETWORK = UPSAMPLERS.networks[0]
_CLASSES = ("LatentUpsampler", "LTXLatentUpsamplerModel", "LTX2LatentUpsamplerModel")
# By whose name the tensors of an upsampler are found, and the first parts of all names.
_MARK = "initial_norm.weight"
_STEMS = ("initial_conv", "initial_norm", "res_blocks", "upsampler", "post_upsample_res_blocks", "final_conv")
# Factors of the resampler in space: so many positions of one, of which one of so many is kept.
_RATIOS = {0.75: (3, 4), 1.5: (3, 2), 2.0: (2, 1), 4.0: (4, 1)}
_SCALE = choice(*_RATIOS, None)
# The same options have two names: ltx-core's, and diffusers'. Those that are missing are read off the tensors.
_KEYS = {
    "_class_name": anything(),
    "in_channels": whole(2**14),
    "mid_channels": whole(2**16),
    "num_blocks_per_stage": whole(256),
    "dims": choice(2, 3),
    "spatial_upsample": flag(None),
    "temporal_upsample": flag(None),
    "spatial_scale": _SCALE,
    "rational_spatial_scale": _SCALE,
    "rational_resampler": flag(None),
    "use_rational_resampler": flag(None),
}


def _find(shapes: Shapes) -> NetworkTensors:
    prefix = next((name.removesuffix(_MARK) for name in shapes if name.endswith(_MARK)), None)
    if prefix is None:
        return NetworkTensors({})
    names = {name.removeprefix(prefix): name for name in shapes if name.startswith(prefix)}
    return NetworkTensors({_NETWORK: {name: full for name, full in names.items() if name.split(".")[0] in _STEMS}})


def _choose_config(contents: Iterable[object]) -> Mapping[str, Any] | None:
    maps = (content for content in contents if isinstance(content, Mapping))
    return next((raw for raw in maps if raw.get("_class_name") in _CLASSES or "mid_channels" in raw), None)


def _configure(
    config: Mapping[str, Any] | UpsamplerConfig | None, parts: CheckpointParts
) -> Configuration[UpsamplerConfig]:
    if isinstance(config, UpsamplerConfig):
        return Configuration(config, {})
    subject, shapes = f"{parts.source}: its configuration", parts.networks[_NETWORK]
    stated = read_config(config or {}, _KEYS, subject)
    values = _read_shapes(shapes, parts.source) | {key: value for key, value in stated.items() if value is not None}
    channels, dims, in_time = values["mid_channels"], values["dims"], values["temporal_upsample"]
    if channels % GROUPS:
        raise CheckpointError(f"{subject} has {channels} mid_channels; its norms need a multiple of {GROUPS}.")
    if not (values["spatial_upsample"] or in_time) or (in_time and dims == 2):
        problem = "upsamples time with dims 2" if in_time else "upsamples neither space nor time"
        raise CheckpointError(f"{subject} {problem}; use the configuration that came with the weights.")
    factor, blur_stride = 2 if values["spatial_upsample"] else 1, None
    if not in_time and values.get("rational_resampler", values.get("use_rational_resampler", values["has_resampler"])):
        factor, blur_stride = _RATIOS[_find_scale(values, parts.source)]
    up = (2 if in_time else 1, factor, factor)
    parsed = UpsamplerConfig(values["in_channels"], channels, values["num_blocks_per_stage"], dims, up, blur_stride)
    return Configuration(parsed, dict(config or {}))


def _read_shapes(shapes: Shapes, source: str) -> dict[str, Any]:
    """Return the options that the shapes of the tensors, channels-last, tell."""
    resampler = "upsampler.conv.weight"
    first, up = shapes.get("initial_conv.weight", ()), shapes.get(resampler, shapes.get("upsampler.0.weight", ()))
    if len(first) not in (4, 5) or len(up) not in (4, 5):
        name = "upsampler.0.weight" if len(first) in (4, 5) else "initial_conv.weight"
        raise CheckpointError(f"{source}: its upsampler lacks a convolution {name}; download the file again.")
    blocks = {name.split(".")[1] for name in shapes if name.startswith("res_blocks.")}
    factor = up[0] // up[-1]
    return {
        "in_channels": first[-1],
        "mid_channels": first[0],
        "num_blocks_per_stage": len(blocks),
        "dims": len(first) - 2,
        "spatial_upsample": len(up) == 4 or factor > 2,
        "temporal_upsample": len(up) == 5,
        "has_resampler": resampler in shapes,
        "resampler_factor": factor,
    }


def _find_scale(values: Mapping[str, Any], source: str) -> float:
    """Return the factor of the resampler. Raises a `CheckpointError` if neither options nor shapes tell it."""
    scale = values.get("spatial_scale", values.get("rational_spatial_scale"))
    scales = [number for number, (up, _) in _RATIOS.items() if up**2 == values["resampler_factor"]]
    if scale is None and len(scales) != 1:
        numbers = " or ".join(map(str, scales or _RATIOS))
        raise CheckpointError(
            f"{source}: nothing states its spatial_scale, {numbers}; use the file with its configuration, or put its "
            "config.json beside it."
        )
    return scales[0] if scale is None else scale


def _spec(config: UpsamplerConfig, network: str) -> NetworkSpec:
    return upsampler_spec(config)


def _make(config: UpsamplerConfig, network: str, statistics: Statistics | None) -> Network:
    return UpsamplerNetwork(config)


def _describe(config: UpsamplerConfig) -> dict[str, Any]:
    return {_NETWORK: {"widths": [config.mid_channels]}}


UPSAMPLER = Family(
    name="upsampler",
    decoder="",
    kernels=((3, 3, 3), (3, 3)),
    has_statistics=False,
    config_type=UpsamplerConfig,
    find=_find,
    choose_config=_choose_config,
    configure=_configure,
    spec=_spec,
    make=_make,
    describe=_describe,
    medium=UPSAMPLERS,
)
