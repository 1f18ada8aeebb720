"""Files of latent upsamplers: names of tensors, and configurations of ltx-core and of diffusers."""

from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import CheckpointError
from ..base import UPSAMPLERS, CheckpointParts, Configuration, Family, NetworkTensors
from ..specs import Shapes
from ..stored import anything, choice, flag, read_config, whole
from .config import GROUPS, UpsamplerConfig, upsampler_spec
from .networks import UpsamplerNetwork

_NETWORK = UPSAMPLERS.networks[0]
# By whose name the tensors of an upsampler are found, and the first parts of all names.
_MARK = "initial_norm.weight"
_STEMS = ("initial_conv", "initial_norm", "res_blocks", "upsampler", "post_upsample_res_blocks", "final_conv")
# Factors of the resampler in space: it makes so many positions of one, and keeps one of so many.
_RATIOS = {0.75: (3, 4), 1.5: (3, 2), 2.0: (2, 1), 4.0: (4, 1)}
# What is missing is read off the tensors. diffusers has other names for the options of the resampler, and null.
_KEYS = {
    "_class_name": anything(),
    "in_channels": whole(2**14),
    "mid_channels": whole(2**16),
    "num_blocks_per_stage": whole(256),
    "dims": choice(2, 3),
    **dict.fromkeys(("spatial_upsample", "temporal_upsample"), flag(None)),
    **dict.fromkeys(("spatial_scale", "rational_spatial_scale"), choice(*_RATIOS, None)),
    **dict.fromkeys(("rational_resampler", "use_rational_resampler"), flag(None)),
}


def _find(shapes: Shapes) -> NetworkTensors:
    prefix = next((name.removesuffix(_MARK) for name in shapes if name.endswith(_MARK)), None)
    if prefix is None:
        return NetworkTensors({})
    names = {name.removeprefix(prefix): name for name in shapes if name.startswith(prefix)}
    return NetworkTensors({_NETWORK: {name: full for name, full in names.items() if name.split(".")[0] in _STEMS}})


def _choose_config(contents: Iterable[object]) -> Mapping[str, Any] | None:
    maps = (content for content in contents if isinstance(content, Mapping))
    return next(
        (raw for raw in maps if "LatentUpsampler" in str(raw.get("_class_name")) or "mid_channels" in raw), None
    )


def _configure(
    config: Mapping[str, Any] | UpsamplerConfig | None, parts: CheckpointParts
) -> Configuration[UpsamplerConfig]:
    if isinstance(config, UpsamplerConfig):
        return Configuration(config, {})
    subject, raw = f"{parts.source}: its configuration", dict(config or {})
    values = {key: value for key, value in read_config(raw, _KEYS, subject).items() if value is not None}
    values = _read_shapes(parts.networks[_NETWORK], parts.source) | values
    mid, dims, in_time = values["mid_channels"], int(values["dims"]), values["temporal_upsample"]  # "dims" may be 3.0
    factor, blur_stride = 2 if values["spatial_upsample"] else 1, None
    problem = None
    if mid % GROUPS:
        problem = f"has mid_channels = {mid}, and its norms need a multiple of {GROUPS}"
    elif not in_time and factor == 1:
        problem = "upsamples neither space nor time"
    elif in_time and dims == 2:
        problem = "upsamples time with dims = 2, which no upsampler does"
    elif not in_time and values.get("rational_resampler", values.get("use_rational_resampler", values["is_rational"])):
        scales = values["scales"] if len(values["scales"]) == 1 else [None]
        scale = values.get("spatial_scale", values.get("rational_spatial_scale", scales[0]))
        problem = None if scale else "states no spatial_scale, and its tensors may be of several"
        factor, blur_stride = _RATIOS.get(scale or 0, (1, 1))
    if problem is not None:
        raise CheckpointError(f"{subject} {problem}; use the configuration that came with the weights.")
    up = (2 if in_time else 1, factor, factor)
    blocks = values["num_blocks_per_stage"]
    return Configuration(UpsamplerConfig(values["in_channels"], mid, blocks, dims, up, blur_stride), raw)


def _read_shapes(shapes: Shapes, source: str) -> dict[str, Any]:
    """Return the options that the shapes of the tensors, channels-last, tell."""
    name = "upsampler.conv.weight" if "upsampler.conv.weight" in shapes else "upsampler.0.weight"
    first, last = shapes.get("initial_conv.weight", ()), shapes.get(name, ())
    if len(first) not in (4, 5) or len(last) not in (4, 5) or 0 in (*first, *last):
        raise CheckpointError(
            f"{source}: its initial_conv.weight or {name} is missing or empty; download the file again."
        )
    factor = last[0] // last[-1]
    return {
        "in_channels": first[-1],
        "mid_channels": first[0],
        "num_blocks_per_stage": len({name.split(".")[1] for name in shapes if name.startswith("res_blocks.")}),
        "dims": len(first) - 2,
        "spatial_upsample": factor > 2,
        "temporal_upsample": len(last) == 5,
        "is_rational": name == "upsampler.conv.weight",
        "scales": [scale for scale, (up, _) in _RATIOS.items() if up**2 == factor],
    }


UPSAMPLER = Family(
    name="upsampler",
    decoder="",
    kernels=((3, 3, 3), (3, 3)),
    has_statistics=False,
    config_type=UpsamplerConfig,
    find=_find,
    choose_config=_choose_config,
    configure=_configure,
    spec=lambda config, network: upsampler_spec(config),
    make=lambda config, network, statistics: UpsamplerNetwork(config),
    describe=lambda config: {_NETWORK: {"widths": [config.mid_channels]}},
    medium=UPSAMPLERS,
)
