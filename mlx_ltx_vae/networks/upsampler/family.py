"""Latent upsampler, whose layers take whole clips (B, T, H, W, C), and its files of ltx-core and of diffusers."""

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten

from ...errors import CheckpointError
from ...shapes import Axis
from ...streaming.context import Stage, StreamContext, pointwise
from ..base import UPSAMPLERS, CheckpointParts, Configuration, Family, Network, NetworkTensors
from ..convolution.conv3d import Conv3d
from ..layers import add_weights, depth_to_space_order, extend, group_norm, interleave, silu
from ..preview_vae.config import FrameLayerSpec
from ..preview_vae.networks import FrameConv
from ..specs import ConvSpec, LayerSpec, PaddingMode, Shapes
from ..stored import ANYTHING, choice, flag, read_config, whole
from .config import GROUPS, GroupNormSpec, UpsamplerConfig, upsampler_spec

_EPS = 1e-5


class UpsamplerNetwork(Network):
    """Latent upsampler, of latents as the VAE makes them, not normalized.

    Checkpoint keys: `initial_conv`, `initial_norm`, `res_blocks.i`, `upsampler.0` (or `upsampler.conv` and
    `upsampler.blur_down.kernel`), `post_upsample_res_blocks.i`, `final_conv`.
    """

    def __init__(self, config: UpsamplerConfig) -> None:
        super().__init__(upsampler_spec(config))
        specs = [spec for spec in self.spec.layers if isinstance(spec, (ConvSpec, FrameLayerSpec))]
        for name, modules in tree_unflatten([(spec.name, _make_conv(spec)) for spec in specs]).items():
            self[name] = modules
        add_weights(self, tuple(self.spec.weights.items()))
        self._dims = config.dims

    def stages(self, context: StreamContext) -> list[Stage]:
        """Return a stage for each layer. The input of a block is in `skips` until it is added."""
        skips: list[mx.array] = []
        return [pointwise(partial(self._compute, spec, skips)) for spec in self.spec.layers]

    def _compute(self, spec: LayerSpec, skips: list[mx.array], x: mx.array) -> mx.array:
        module = self.at(spec.name)
        if isinstance(spec, GroupNormSpec):
            clips = x if self._dims == 3 else x.flatten(0, 1)[:, None]
            normalized = group_norm(clips, module, GROUPS, _EPS).reshape(x.shape)
            return silu(normalized + skips.pop() if spec.adds_skip else normalized, x.dtype)
        if spec.name.endswith(".conv1"):
            skips.append(x)
        if isinstance(spec, ConvSpec):
            return interleave(module(extend(x, Axis.TIME, 1, 1, PaddingMode.ZEROS), (0, 1, 1)), spec.up)[:, spec.trim :]
        if isinstance(spec, FrameLayerSpec):
            return interleave(module(x, (1, 1)).astype(x.dtype), spec.up)
        return _blur(x, module.kernel, spec.down[1])


def _make_conv(spec: ConvSpec | FrameLayerSpec) -> FrameConv | Conv3d:
    """Return a convolution whose channels, (c, time, rows, columns) in checkpoints, are ordered for `interleave`."""
    if isinstance(spec, FrameLayerSpec):
        return FrameConv(spec)
    order = depth_to_space_order(spec.conv_channels, spec.up) if math.prod(spec.up) > 1 else None
    return Conv3d(spec.in_channels, spec.conv_channels, order=order)


def _blur(x: mx.array, kernel: mx.array, stride: int) -> mx.array:
    """Convolve each channel of each frame with a kernel (1, 1, 5, 5), with zeros around it, and keep 1 of `stride`."""
    if stride == 1:  # as in the reference, which blurs only where it drops positions
        return x
    channels, size = x.shape[-1], kernel.shape[-1]
    weight = mx.broadcast_to(kernel.astype(mx.float32).reshape(1, size, size, 1), (channels, size, size, 1))
    blurred = mx.conv2d(x.astype(mx.float32).flatten(0, 1), weight, stride, size // 2, groups=channels)
    return mx.unflatten(blurred, 0, x.shape[:2]).astype(x.dtype)


_NETWORK = UPSAMPLERS.networks[0]
# By whose name the tensors of an upsampler are found, and the first parts of all names.
_MARK = "initial_norm.weight"
_STEMS = ("initial_conv", "initial_norm", "res_blocks", "upsampler", "post_upsample_res_blocks", "final_conv")
# Factors of the resampler in space: it makes so many positions of one, and keeps one of so many.
_RATIOS = {0.75: (3, 4), 1.5: (3, 2), 2.0: (2, 1), 4.0: (4, 1)}
# What is missing is read off the tensors. diffusers has other names for the options of the resampler, and null.
_KEYS = {
    "_class_name": ANYTHING,
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
