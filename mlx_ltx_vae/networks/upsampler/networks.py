"""Latent upsampler, whose layers take whole clips (B, T, H, W, C)."""

import math
from functools import partial

import mlx.core as mx
from mlx.utils import tree_unflatten

from ...shapes import Axis
from ...streaming.context import Stage, StreamContext, pointwise
from ..base import Network
from ..convolution.conv2d import Conv2d
from ..convolution.conv3d import Conv3d
from ..layers import add_weights, depth_to_space_order, extend, group_norm, interleave, silu
from ..preview_vae.config import FrameLayerSpec
from ..specs import ConvSpec, LayerSpec, PaddingMode
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


def _make_conv(spec: ConvSpec | FrameLayerSpec) -> Conv2d | Conv3d:
    """Return a convolution whose channels, (c, time, rows, columns) in checkpoints, are ordered for `interleave`."""
    (_, shape), _ = spec.weights
    order = depth_to_space_order(shape[0], spec.up) if math.prod(spec.up) > 1 else None
    if isinstance(spec, ConvSpec):
        return Conv3d(spec.in_channels, shape[0], order=order, rule=spec.rule)
    return Conv2d(shape, order=order)


def _blur(x: mx.array, kernel: mx.array, stride: int) -> mx.array:
    """Convolve each channel of each frame with a kernel (1, 1, 5, 5), with zeros around it, and keep 1 of `stride`."""
    if stride == 1:  # as in the reference, which blurs only where it drops positions
        return x
    channels, size = x.shape[-1], kernel.shape[-1]
    weight = mx.broadcast_to(kernel.astype(mx.float32).reshape(1, size, size, 1), (channels, size, size, 1))
    blurred = mx.conv2d(x.astype(mx.float32).flatten(0, 1), weight, stride, size // 2, groups=channels)
    return mx.unflatten(blurred, 0, x.shape[:2]).astype(x.dtype)
